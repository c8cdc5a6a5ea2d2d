"""Speed and cost, each beside its peer in one run: ``make bench``, or ``python -m tests.benchmarks [NAME...]``."""
