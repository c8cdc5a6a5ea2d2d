"""Records of device memory allocations from NVIDIA's CUPTI library."""
