"""Memory by category over time, from torch.profiler."""
