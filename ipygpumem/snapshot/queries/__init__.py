"""Queries on snapshots."""
