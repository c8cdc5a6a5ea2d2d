"""Before and after a release, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import VISIBLE, signed, size
from ipygpumem.display.table import Table, TableRow

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.features.release.model import Release

__all__ = ["release_tables"]

_HEADER = ("before", "after", "change")


def release_tables(release: Release) -> list[Table]:
    """A table for each device that this process uses; where there is none, the host's."""
    tables = []
    for name, after in release.after.devices.items():
        before = release.before.devices.get(name)
        if after.context and before is not None:
            tables.append(_device(before, after))
    if not tables:
        before_rss, after_rss = release.before.host.rss, release.after.host.rss
        tables = [Table("host memory", _HEADER, (_row("this process (RSS)", before_rss, after_rss, 0),))]
    gone = f"let go: {'; '.join(release.gone)}" if release.gone else "there was nothing to let go"
    last = tables[-1]
    return [*tables[:-1], Table(last.title, last.header, last.rows, (gone, *release.notes))]


def _device(before: DeviceReading, after: DeviceReading) -> Table:
    rows = [
        _row("allocated (tensors)", before.allocated, after.allocated, 1),
        _row("cached", before.cached, after.cached, 1),
        _row("free", before.free, after.free, 0),
    ]
    pending = _row("pending (freed, wait for a stream)", before.pending, after.pending, 1)
    return Table(after.name, _HEADER, (rows[0], *([pending] if before.pending or after.pending else []), *rows[1:]))


def _row(label: str, before: int | None, after: int | None, level: int) -> TableRow:
    change = None if before is None or after is None else after - before
    text = "unknown" if change is None else _change(change)
    return TableRow(label, (_level(before), _level(after), text), level)


def _change(amount: int) -> str:
    if abs(amount) >= VISIBLE:
        return signed(amount)
    return "0" if amount == 0 else "<0.1 MiB"


def _level(amount: int | None) -> str:
    return "unknown" if amount is None else size(amount)
