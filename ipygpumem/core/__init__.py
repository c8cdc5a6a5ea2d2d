"""Readings, reports, the memory breakdown, and functions that several features share."""
