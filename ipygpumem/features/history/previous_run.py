"""The previous run of a cell, and how it differs from the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.units import VISIBLE, duration, signed
from ipygpumem.features.history.model import ReportRow, report_rows

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["last_run"]

_FIGURES = (("held", "{} held"), ("peak", "peak {}"), ("outside", "outside PyTorch {}"))


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
