"""Versions and capabilities of this machine."""
