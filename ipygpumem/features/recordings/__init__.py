"""Allocation history across cells, and the display of snapshots."""
