"""Replay of a recording with the rules of PyTorch's CUDA caching allocator. Requires neither torch nor CUDA."""
