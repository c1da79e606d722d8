"""Data sets as arrays, batches as tensors, and the problem that all folders share."""
