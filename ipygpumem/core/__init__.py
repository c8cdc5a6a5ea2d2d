"""Readings, reports, the memory breakdown, and functions that all features share."""
