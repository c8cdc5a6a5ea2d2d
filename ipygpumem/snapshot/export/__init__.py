"""Snapshots as text, tables and packed columns."""
