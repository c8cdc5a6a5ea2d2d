"""Replay of a recording by the rules of PyTorch's CUDA caching allocator. It requires neither torch nor CUDA."""
