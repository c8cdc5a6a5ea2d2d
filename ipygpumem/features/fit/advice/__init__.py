"""Predictions of how much changes of a program reduce the memory usage of a step."""
