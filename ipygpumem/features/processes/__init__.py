"""Processes that use the devices."""
