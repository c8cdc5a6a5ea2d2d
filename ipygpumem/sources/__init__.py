"""Modules that read memory usage from PyTorch, NVML, CUDA, CUPTI and the operating system."""
