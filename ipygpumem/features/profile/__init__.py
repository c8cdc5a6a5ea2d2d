"""Memory usage by category over time, from torch.profiler."""
