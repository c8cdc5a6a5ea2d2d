"""Comparison of the ranks of a distributed job."""

DEFAULT_ROWS = 32
"""Default maximum number of rows per table."""
