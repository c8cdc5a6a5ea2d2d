"""Predictions of how changes to a program would reduce the memory usage of a step."""
