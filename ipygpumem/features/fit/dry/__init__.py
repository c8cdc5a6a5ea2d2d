"""Computation of the memory usage of a step without running it on a device: its tensors have no data."""
