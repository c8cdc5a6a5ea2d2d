"""CUDA memory allocated outside PyTorch, by library."""
