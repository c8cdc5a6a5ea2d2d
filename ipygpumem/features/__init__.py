"""Capabilities of the package, one folder each."""
