"""The shell command ``ipygpumem``, with a module for each group of subcommands."""

from ipygpumem.cli.parser import main

__all__ = ["main"]
