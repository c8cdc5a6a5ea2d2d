"""Measurement of running code: readings before and after it, peaks, samples and recorded allocation history."""
