"""Device memory allocated outside PyTorch, by library."""
