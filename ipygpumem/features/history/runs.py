"""The runs of each cell: what it did when it ran before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["Runs"]

_MOST = 50
"""Reports of one run of one cell that are kept for its next: a cell may measure many statements."""


@dataclass(slots=True)
class _Cell:
    number: int | None
    now: list[Report] = field(default_factory=list)
    before: list[Report] = field(default_factory=list)


class Runs:
    """The newest run of each cell, and the one before it, by the front end's cell id."""

    def __init__(self) -> None:
        self._cells: dict[str, _Cell] = {}

    def add(self, report: Report) -> None:
        """A report has settled."""
        if report.cell_id is None:
            return
        cell = self._cells.setdefault(report.cell_id, _Cell(report.cell))
        if cell.number != report.cell:
            cell.number, cell.before, cell.now = report.cell, cell.now, []
        if len(cell.now) < _MOST:
            cell.now.append(report)

    def earlier(self, report: Report) -> Report | None:
        """What the same measurement of the same cell gave when the cell ran last; None where it did not.

        Asked before `add`: measurements of one run follow each other in the same order as in the last.
        """
        cell = self._cells.get(report.cell_id or "")
        if cell is None:
            return None
        last, place = (cell.before, len(cell.now)) if cell.number == report.cell else (cell.now, 0)
        return last[place] if place < len(last) else None

    def forget(self, report: Report) -> None:
        """A report is no longer kept: nor is it kept here."""
        cell = self._cells.get(report.cell_id or "")
        if cell is None:
            return
        cell.now = [one for one in cell.now if one is not report]
        cell.before = [one for one in cell.before if one is not report]
        if not cell.now and not cell.before:
            del self._cells[report.cell_id or ""]
