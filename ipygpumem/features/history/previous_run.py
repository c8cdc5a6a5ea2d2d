"""The previous run of a cell, and how it differs from the current one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.units import VISIBLE, duration, signed
from ipygpumem.features.history.model import ReportRow, report_rows

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["CellRuns", "last_run"]

_MAX_REPORTS = 50
"""Reports kept for one run of a cell: a cell can measure many statements."""
_FIGURES = (("held", "{} held"), ("peak", "peak {}"), ("outside", "outside PyTorch {}"))


@dataclass(slots=True)
class _Runs:
    number: int | None
    current: list[Report] = field(default_factory=list)
    previous: list[Report] = field(default_factory=list)


class CellRuns:
    """The reports of the current and the previous run of each cell, by the front end's cell id."""

    def __init__(self) -> None:
        self._cells: dict[str, _Runs] = {}

    def add(self, report: Report) -> None:
        """Record a new report."""
        if report.cell_id is None:
            return
        runs = self._cells.setdefault(report.cell_id, _Runs(report.cell))
        if runs.number != report.cell:
            runs.number, runs.previous, runs.current = report.cell, runs.current, []
        if len(runs.current) < _MAX_REPORTS:
            runs.current.append(report)

    def previous(self, report: Report) -> Report | None:
        """The report of the same measurement in the cell's previous run, if any.

        Call this before `add`: the n-th report of a run corresponds to the n-th report of the previous run.
        """
        runs = self._cells.get(report.cell_id or "")
        if runs is None:
            return None
        reports, index = (runs.previous, len(runs.current)) if runs.number == report.cell else (runs.current, 0)
        return reports[index] if index < len(reports) else None

    def discard(self, report: Report) -> None:
        """Drop a report."""
        runs = self._cells.get(report.cell_id or "")
        if runs is None:
            return
        runs.current = [other for other in runs.current if other is not report]
        runs.previous = [other for other in runs.previous if other is not report]
        if not runs.current and not runs.previous:
            del self._cells[report.cell_id or ""]


def last_run(report: Report, earlier: Report, threshold: int, *, always: bool = False) -> str | None:
    """Describe the previous run of a cell if it differs by at least ``threshold`` bytes.

    Args:
        report: The current run.
        earlier: The previous run.
        threshold: Smallest difference to mention, in bytes.
        always: Whether to mention a run that does not differ, too.
    """
    earlier_rows = {row.device: row for row in report_rows(earlier)}
    pairs = [(earlier_rows[row.device], row) for row in report_rows(report) if row.device in earlier_rows]
    parts = []
    for before, now in pairs:
        if _differs(before, now, threshold):
            figures = _figures(before, now)
            parts.append(f"{before.device} {figures}" if len(pairs) > 1 else figures)
    title = "last run" if earlier.cell is None else f"last run, In [{earlier.cell}]"
    if parts:
        return f"{title}: {'; '.join(parts)}, {duration(earlier.seconds)}"
    return f"{title}: the same, {duration(earlier.seconds)}" if always and pairs else None


def _differs(before: ReportRow, now: ReportRow, threshold: int) -> bool:
    for name, _ in _FIGURES:
        figure, current = getattr(before, name), getattr(now, name)
        known = None not in {figure, current} and _exact(before, now, name)
        if known and abs(figure - current) >= max(threshold, VISIBLE):
            return True
    return False


def _exact(before: ReportRow, now: ReportRow, name: str) -> bool:
    """Whether both figures are exact: bounds, and figures of the whole device, cannot be compared."""
    return all(getattr(row, f"{name}_trust", "exact") == "exact" for row in (before, now))


def _figures(before: ReportRow, now: ReportRow) -> str:
    parts = []
    for name, pattern in _FIGURES:
        figure, current = getattr(before, name), getattr(now, name)
        if figure is None or (name == "outside" and before.device == HOST):
            continue
        if max(abs(figure), abs(current or 0)) >= VISIBLE and _exact(before, now, name):
            parts.append(pattern.format(signed(figure) if abs(figure) >= VISIBLE else "0"))
    return " · ".join(parts)
