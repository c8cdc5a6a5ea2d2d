"""Computation of the memory usage of a step on fake tensors, which have no data, without running it on a GPU."""
