"""Recording of device memory allocations with NVIDIA's CUPTI library."""
