"""Readings, reports, the memory breakdown, and helpers that all features share."""
