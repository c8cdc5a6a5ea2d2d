"""Benchmarks, each with an alternative in the same run: ``make bench``, or ``python -m tests.benchmarks [NAME...]``."""
