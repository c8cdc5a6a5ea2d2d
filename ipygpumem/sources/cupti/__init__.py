"""Recording of memory allocations with NVIDIA's CUPTI library."""
