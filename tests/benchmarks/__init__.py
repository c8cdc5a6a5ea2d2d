"""Benchmarks: ``make bench`` or ``python -m tests.benchmarks [NAME...]``. Alternatives are measured in the same run."""
