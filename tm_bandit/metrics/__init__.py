"""The streaming torchmetrics classes."""
