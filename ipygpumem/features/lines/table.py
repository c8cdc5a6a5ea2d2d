"""Tables of source code with the memory usage of each line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import precise_size

if TYPE_CHECKING:
    from ipygpumem.features.lines.model import DeviceLines, LineUsage, SourceLine

_HEADER = ("after", "peak", "allocated", "freed", "kept")
_EMPTY = ("",) * len(_HEADER)
_NOTE = (
    "after: memory in use on the device after the line ran; peak: highest usage while it ran; "
    "allocated, freed, kept (still in use at the end): memory of the line and of the functions that it calls"
)
_LONG_LISTING = 40
_CONTEXT_LINES = 3


def line_table(device: DeviceLines) -> Table:
    scale = max(device.peak_requested, 1)
    rows: list[TableRow] = []
    for listing in device.listings:
        rows += [TableRow("", _EMPTY, 0, note=listing.title), *_source_rows(listing.lines, scale)]
    if device.elsewhere is not None:
        rows.append(TableRow("", _EMPTY, 0, note="elsewhere"))
        rows.append(_use_row("", "other code and threads", device.elsewhere, scale))
    rows.append(TableRow("", _EMPTY, 0, note="entire device, at the end and at the peak"))
    for label, end, peak, is_shown in (
        ("requested", device.end_requested, device.peak_requested, True),
        ("rounding by the allocator", device.end_rounding, device.peak_rounding, device.peak_rounding is None),
        ("freed, waiting for another stream", device.end_pending, device.peak_pending, False),
        ("allocated (allocator's counter)", device.end_allocated, device.peak_allocated, True),
    ):
        if is_shown or end or peak:
            cells = (precise_size(end), precise_size(peak), "", "", "")
            rows.append(TableRow("", cells, 1, note=label))
    title = f"{device.device} by line of code: requested bytes, {precise_size(device.before)} in use at the start"
    return Table(title, _HEADER, tuple(rows), (_NOTE,), code=True)


def _source_rows(lines: Sequence[SourceLine], scale: int) -> Iterator[TableRow]:
    dedented = textwrap.dedent("\n".join(line.text for line in lines)).split("\n")
    used_lines = [index for index, line in enumerate(lines) if line.use is not None]
    near = {index + offset for index in (0, *used_lines) for offset in range(-_CONTEXT_LINES, _CONTEXT_LINES + 1)}
    for skip, group in groupby(range(len(lines)), lambda index: len(lines) > _LONG_LISTING and index not in near):
        indexes = list(group)
        if skip and len(indexes) > 1:
            yield TableRow("", _EMPTY, 1, note=f"… {len(indexes):,} lines that neither allocated nor freed memory")
            continue
        for index in indexes:
            yield _use_row(f"{lines[index].number:>3}", dedented[index], lines[index].use, scale)


def _use_row(number: str, text: str, use: LineUsage | None, scale: int) -> TableRow:
    if use is None:
        return TableRow(number, _EMPTY, 1, note=text)
    usage = ["" if nbytes is None else precise_size(nbytes) for nbytes in (use.after, use.peak, use.kept or None)]
    counts = _bytes_and_count(use.allocated, use.allocations), _bytes_and_count(use.freed, use.frees)
    cells = (*usage[:2], *counts, usage[2])
    return TableRow(number, cells, 1, bar=(use.after or 0) / scale, light_bar=(use.peak or 0) / scale, note=text)


def _bytes_and_count(nbytes: int, count: int) -> str:
    if not count:
        return ""
    return precise_size(nbytes) if count == 1 else f"{precise_size(nbytes)} ×{count:,}"  # noqa: RUF001 (multiplication sign)
