"""Benchmarks of the package: ``python -m benchmarks``."""
