"""Predicted changes of a program that reduce the memory usage of a step."""
