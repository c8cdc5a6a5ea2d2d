"""Explanation of the difference between memory usage in nvidia-smi and in PyTorch."""
