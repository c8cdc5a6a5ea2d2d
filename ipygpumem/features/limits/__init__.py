"""Limits on the memory usage of measured code."""
