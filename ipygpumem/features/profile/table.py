"""Tables of memory by category at the peak."""

from __future__ import annotations

from collections.abc import Sequence

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import duration, precise_size
from ipygpumem.features.profile.model import CategoryPeak


def category_tables(peaks: Sequence[CategoryPeak]) -> list[Table]:
    """Return a table for each device with the categories of memory in use at its peak, largest first."""
    tables = []
    for peak in peaks:
        rows = [
            TableRow(category, (precise_size(nbytes), f"{nbytes / peak.bytes:.1%}" if peak.bytes > 0 else ""), 1)
            for category, nbytes in sorted(peak.categories, key=lambda entry: -entry[1])
            if nbytes
        ]
        rows.append(TableRow("all categories", (precise_size(peak.bytes), ""), 0))
        title = f"{peak.device} at its peak ({duration(peak.seconds)} after the start of the profile), by category"
        tables.append(Table(title, ("bytes", "share"), tuple(rows)))
    return tables
