"""Tensors in, tensors out: the mathematics, with no metric, no Lightning and no files."""
