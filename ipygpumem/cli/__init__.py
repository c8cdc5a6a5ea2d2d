"""Implementation of the shell command ``ipygpumem``."""

from ipygpumem.cli.parser import main

__all__ = ["main"]
