"""A device's memory at its peak, by category."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import amount, duration
from ipygpumem.display.table import Table, TableRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.profile.model import CategoryPeak

__all__ = ["category_tables"]


def category_tables(peaks: Sequence[CategoryPeak]) -> list[Table]:
    """A table for each device: the largest category first, those without a byte left out."""
    tables = []
    for peak in peaks:
        held = sorted((one for one in peak.categories if one[1]), key=lambda one: -one[1])
        rows = [TableRow(name, (amount(count), _share(count, peak.bytes)), 1) for name, count in held]
        rows.append(TableRow("all of these", (amount(peak.bytes), ""), 0))
        title = f"{peak.device} at its peak by category, {duration(peak.seconds)} after the profile began"
        tables.append(Table(title, ("bytes", "share"), tuple(rows)))
    return tables


def _share(count: int, whole: int) -> str:
    return f"{100 * count / whole:.1f} %" if whole > 0 else ""
