"""Conversion of snapshots to text, tables and packed columns."""
