"""Tables that are shown below a cell in which an allocation failed."""

from __future__ import annotations

from dataclasses import replace

from ipygpumem.core.reading import Baseline, breakdown
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, many, signed, size
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.features.oom.model import FailedAllocation, OutOfMemoryReport

_MAX_HOLDERS = 5
_MAX_PROCESSES = 3
_MIN_BAR_SHARE = 0.005  # share of the device's memory below which a row has no bar
_OMITTED_LINES = {"device total", "free"}


def oom_tables(panel: OutOfMemoryReport, baseline: Baseline | None = None) -> list[Table]:
    failure = panel.failure
    tables = [_device_table(panel, baseline)]
    if panel.holders is not None:
        by_device = holders_tables(panel.holders, limit=_MAX_HOLDERS, parts=0)
        tables += [table for table in by_device if table.title.startswith(failure.device)][:1]
    last = tables[-1]
    title = last.title
    if len(tables) > 1:
        failure_time = "at the time of the failure" if panel.count == 1 else "at the time of the first failure"
        title = f"{title} {failure_time if panel.at_failure else 'now'}"
    notes = (note for note in last.notes if not note.startswith("%gpumem"))  # the advice contains these
    cells = ", ".join(f"In [{number}] {signed(nbytes)}" for number, nbytes in panel.cells)
    cells_line = f"cells that added the most memory since the baseline: {cells}" if cells else ""
    advice = filter(None, (cells_line, *panel.advice, panel.failure.saved))
    tables[-1] = replace(last, title=title, notes=(*notes, *advice))
    return tables


def _device_table(panel: OutOfMemoryReport, baseline: Baseline | None) -> Table:
    failure = panel.failure
    lines = [] if failure.reading is None else breakdown(failure.reading, baseline)
    total = next((line.nbytes for line in lines if line.label == "device total"), None)
    shown_lines = [line for line in lines if line.label not in _OMITTED_LINES and line.nbytes]
    next_levels = [*(line.level for line in shown_lines[1:]), 0]
    rows = []
    for line, next_level in zip(shown_lines, next_levels, strict=True):
        share = (line.nbytes or 0) / total if total else 0
        bar = share if next_level <= line.level and share >= _MIN_BAR_SHARE else None
        note = _free_blocks(failure) if line.label == "cached" else ""
        rows.append(TableRow(line.label, (size(line.nbytes or 0),), line.level, line.grade, bar, note))
        if line.label == "other processes":
            for process in failure.other_processes[:_MAX_PROCESSES]:
                text = "unknown" if process.amount is None else size(process.amount)
                rows.append(TableRow(process.title, (text,), 2))
    rows.append(TableRow("free", (size(failure.free),), 0, note=_limit(failure)))
    caught = " (caught by the code)" if panel.caught else ""
    title = f"{failure.device} is out of memory: {size(failure.requested)} requested{caught}"
    return Table(title, ("at failure",), tuple(rows), tuple(_request(panel)))


def _free_blocks(failure: FailedAllocation) -> str:
    blocks = failure.free_blocks
    if blocks is None or not blocks.count:
        return ""
    largest = size(blocks.largest) if blocks.largest >= VISIBLE else "<0.1 MiB"
    return f"{many(blocks.count, 'free block')}, the largest {largest}"


def _limit(failure: FailedAllocation) -> str:
    capacity = None if failure.reading is None else failure.reading.capacity
    if capacity is None or failure.limit >= capacity * 0.99:
        return ""
    return f"PyTorch is limited to {size(failure.limit)}"


def _request(panel: OutOfMemoryReport) -> list[str]:
    thread = f"in thread {panel.failure.thread}" if panel.failure.thread else ""
    origin = ", ".join(part for part in (panel.line, thread) if part)
    sentences = [f"requested by {origin}"] if origin else []
    if panel.count > 1:
        sentences.append(f"{panel.count:,} allocations failed in this cell; the last failure is shown")
    return sentences
