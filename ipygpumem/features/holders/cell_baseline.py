"""What was there when a cell began, or when somebody last asked: what is new is told against it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.units import MIB
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.storage_baseline import mark

if TYPE_CHECKING:
    from ipygpumem.core.report import Report
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.holders.storage_baseline import Mark
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["Marks"]

_QUICK = 5.0
"""Seconds that a cell's table waits for the walk."""
_ASKS = re.compile(r"%gpumem\s+who\b.*--new\b")


class Marks:
    """The marks of one shell. A mark costs a look at every object, so that it is taken only where it is asked for."""

    def __init__(self, session: Runtime) -> None:
        self._session = session
        self._cell: Mark | None = None
        self._last: Mark | None = None

    def begin(self, text: str) -> None:
        """A cell begins: its text says whether it will ask what is new."""
        self._cell = None
        if _ASKS.search(text) and not _alone(text):
            self.take()

    def take(self) -> None:
        """Mark what is there now as older than the cell."""
        self._cell = self.now()

    def take_blocks(self) -> None:
        """The same of GPUs alone, which costs little: before a cell that did not ask what is new."""
        if self._cell is None and not self._session.host_only:
            self._cell = mark(storages=False)

    def now(self) -> Mark:
        """What is there."""
        return mark(host=self._session.host_only)

    def told(self) -> None:
        """Somebody has seen all that is there."""
        self._last = self.now()

    @property
    def cell(self) -> Mark | None:
        """What was there when the cell began; None where nobody asked."""
        return self._cell

    def new(self, report: Report) -> Holders | None:
        """Who holds what a cell has added to a GPU, where its beginning was marked and it added something."""
        mark = self._cell
        grown = [name for name, device in report.devices.items() if (device.held or 0) >= MIB]
        if mark is None or not grown:
            return None
        return replace(holders(device=grown, since=mark, limit=_QUICK), since="this cell began")

    def since(self) -> tuple[Mark | None, str]:
        """What to compare with, and what it is called; None, and what to do, where there is nothing."""
        if self._cell is not None:
            return self._cell, "this cell began"
        if self._last is not None:
            return self._last, "the last %gpumem who"
        return None, (
            "there is nothing to compare with yet: write it into the cell that makes the tensors, or ask"
            " %gpumem who before"
        )


def _alone(text: str) -> bool:
    """Whether a cell does nothing but ask."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return len(lines) == 1
