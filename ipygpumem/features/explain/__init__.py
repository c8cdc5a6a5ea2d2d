"""Explain the difference between the memory usage reported by nvidia-smi and by PyTorch."""
