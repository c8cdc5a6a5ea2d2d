"""Limits on the memory that a measurement may use."""
