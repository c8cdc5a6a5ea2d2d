"""``%gpumem monitor``: show memory usage over time."""

from __future__ import annotations

import argparse

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import attempt
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option

_SHORTEST, _LONGEST = 0.25, 60.0


def _seconds(text: str) -> float:
    seconds: float = attempt(lambda: float(text)) or 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise OptionError(f"expected a number of seconds from {_SHORTEST} to {_LONGEST:.0f}, but got {text!r}")
    return seconds


def _run(notebook: Notebook, arguments: argparse.Namespace) -> None:
    notebook.claim_cell()
    notebook.monitoring.open(arguments.every)


MONITOR = Command(
    "monitor",
    "show the memory usage of each GPU over time, with the cells that ran",
    (Option(("--every",), "SECONDS", "seconds between readings, from 0.25 to 60 (default: 1)", type=_seconds), HELP),
    magic=_run,
)
