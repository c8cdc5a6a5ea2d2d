"""NVIDIA CUPTI: activity records of device memory allocations."""
