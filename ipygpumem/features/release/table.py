"""The table of ``%gpumem free``: memory before and after."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, signed, size

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.features.release.model import Release

__all__ = ["release_tables"]

_HEADER = ("before", "after", "change")


def release_tables(release: Release) -> list[Table]:
    """A table for each device that this process uses; if there is none, one for main memory."""
    tables = []
    for name, after in release.after.devices.items():
        before = release.before.devices.get(name)
        if after.context and before is not None:
            tables.append(_device_table(before, after))
    if not tables:
        rss = _row("this process (RSS)", release.before.host.rss, release.after.host.rss, 0)
        tables = [Table("host memory", _HEADER, (rss,))]
    removed = f"freed: {'; '.join(release.removed)}" if release.removed else "nothing to free"
    return [*tables[:-1], replace(tables[-1], remarks=(removed, *release.notes))]


def _device_table(before: DeviceReading, after: DeviceReading) -> Table:
    rows = [_row("allocated (tensors)", before.allocated, after.allocated, 1)]
    if before.pending or after.pending:
        rows.append(_row("pending (freed, waiting for a stream)", before.pending, after.pending, 1))
    rows.append(_row("cached", before.cached, after.cached, 1))
    rows.append(_row("free", before.free, after.free, 0))
    return Table(after.name, _HEADER, tuple(rows))


def _row(label: str, before: int | None, after: int | None, level: int) -> TableRow:
    texts = ["unknown" if nbytes is None else size(nbytes) for nbytes in (before, after)]
    change = "unknown" if before is None or after is None else _change(after - before)
    return TableRow(label, (*texts, change), level)


def _change(nbytes: int) -> str:
    if abs(nbytes) >= VISIBLE:
        return signed(nbytes)
    return "0" if nbytes == 0 else "<0.1 MiB"
