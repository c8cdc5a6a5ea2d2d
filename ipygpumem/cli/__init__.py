"""The command line, one module for each group of commands."""

from ipygpumem.cli.parser import main

__all__ = ["main"]
