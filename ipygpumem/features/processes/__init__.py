"""Processes that use the devices, and changes in their memory usage."""
