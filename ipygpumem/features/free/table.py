"""Tables of the memory usage before and after ``%gpumem free``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import change_text, difference, usage_text

_HEADER = ("before", "after", "change")


def release_tables(before: Reading, after: Reading, removed: Sequence[str], notes: Sequence[str]) -> list[Table]:
    """Create a table for each device that this process uses or, if it uses none, for host memory."""
    tables = [
        _device_table(before.devices[name], device)
        for name, device in after.devices.items()
        if device.context and name in before.devices
    ]
    if not tables:
        rss = _row("this process (RSS)", before.host.rss, after.host.rss, 0)
        tables = [Table("host memory", _HEADER, (rss,))]
    freed = f"freed: {'; '.join(removed)}" if removed else "nothing to free"
    return [*tables[:-1], replace(tables[-1], notes=(freed, *notes))]


def _device_table(before: DeviceReading, after: DeviceReading) -> Table:
    rows = [_row("allocated (tensors)", before.allocated, after.allocated, 1)]
    if before.pending or after.pending:
        rows.append(_row("pending (freed, waiting for another stream)", before.pending, after.pending, 1))
    rows.append(_row("cached", before.cached, after.cached, 1))
    rows.append(_row("free", before.free, after.free, 0))
    return Table(after.name, _HEADER, tuple(rows))


def _row(label: str, before: int | None, after: int | None, level: int) -> TableRow:
    return TableRow(label, (usage_text(before), usage_text(after), change_text(difference(before, after))), level)
