"""Measurements of code: readings before and after, peaks, samples and recordings of allocation history."""
