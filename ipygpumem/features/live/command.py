"""``%gpumem monitor``: follow the memory while one works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command
from ipygpumem.jupyter.options import Option, parse

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["MONITOR"]

_LEAST, _MOST = 0.25, 60.0
_OPTIONS = (
    Option(("--every",), "SECONDS", "the time between two readings: 1 by default, 0.25 at least"),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> None:
    words = parse("%gpumem monitor", _OPTIONS, rest)
    every = None
    if words.every is not None:
        try:
            every = float(words.every)
        except ValueError:
            every = 0.0
        if not _LEAST <= every <= _MOST:
            raise UsageError(f"%gpumem monitor: --every takes seconds from {_LEAST} to {_MOST:.0f}, not {words.every}")
    magics.cells.claim()
    magics.monitoring.open(every)


MONITOR = Command("monitor", "follow the memory of each GPU while you work, with the cells", _run, options=_OPTIONS)
