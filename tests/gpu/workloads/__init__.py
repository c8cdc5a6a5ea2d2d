"""Small training and inference programs, run with and without the extension: ``make workloads``."""
