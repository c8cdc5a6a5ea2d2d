"""The panel under a cell that ran out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.breakdown import breakdown
from ipygpumem.core.units import VISIBLE, signed, size
from ipygpumem.display.table import Table, TableRow
from ipygpumem.features.holders.table import holders_tables

if TYPE_CHECKING:
    from ipygpumem.core.baseline import Baseline
    from ipygpumem.features.oom.model import Failure, OutOfMemory

__all__ = ["oom_tables"]

_HOLDERS = 5
_NEIGHBOURS = 3
_VISIBLE = 0.005
"""The least share of a card that gets a bar."""
_LEFT_OUT = {"device total", "free"}


def oom_tables(panel: OutOfMemory, baseline: Baseline | None = None) -> list[Table]:
    """What was asked for, the card's books at that moment, the largest holders, and what follows."""
    failure = panel.failure
    tables = [_card(panel, baseline)]
    if panel.holders is not None:
        own = [
            one for one in holders_tables(panel.holders, most=_HOLDERS, parts=0) if one.title.startswith(failure.device)
        ]
        tables += own[:1]
    last = tables[-1]
    then = "at the failure" if panel.count == 1 else "when the first of them failed"
    when = then if panel.caught else "now"
    title = f"{last.title} {when}" if len(tables) > 1 else last.title
    tables[-1] = Table(title, last.header, last.rows, (*_notes(last), *_after(panel)))
    return tables


def _card(panel: OutOfMemory, baseline: Baseline | None) -> Table:
    failure = panel.failure
    caught = " (the code went on)" if panel.caught else ""
    title = f"{failure.device} is out of memory: {size(failure.asked)} asked for{caught}"
    reading = failure.reading
    rows = []
    lines = [] if reading is None else breakdown(reading, baseline)
    whole = next((line.nbytes for line in lines if line.label == "device total"), None)
    shown = [line for line in lines if line.label not in _LEFT_OUT and line.nbytes]
    below = [*(line.level for line in shown[1:]), 0]
    for line, level in zip(shown, below, strict=True):
        share = (line.nbytes or 0) / whole if whole else 0
        bar = share if level <= line.level and share >= _VISIBLE else None
        rows.append(
            TableRow(line.label, (size(line.nbytes or 0),), line.level, line.grade, bar, _beside(line.label, failure))
        )
        if line.label == "other processes":
            rows += _neighbours(failure)
    rows.append(TableRow("free", (size(failure.free),), 0, remark=_allowed(failure)))
    return Table(title, ("at the failure",), tuple(rows), tuple(_asked(panel)))


def _beside(label: str, failure: Failure) -> str:
    pieces = failure.pieces
    if label != "cached" or pieces is None or not pieces.pieces:
        return ""
    plural = "" if pieces.pieces == 1 else "s"
    return f"{pieces.pieces:,} free piece{plural}, the largest {_level(pieces.largest)}"


def _allowed(failure: Failure) -> str:
    capacity = None if failure.reading is None else failure.reading.capacity
    if capacity is None or failure.allowed >= capacity * 0.99:
        return ""
    return f"PyTorch may have {size(failure.allowed)}"


def _neighbours(failure: Failure) -> list[TableRow]:
    largest = failure.neighbours[:_NEIGHBOURS]
    return [TableRow(one.title, ("unknown" if one.amount is None else size(one.amount),), 2) for one in largest]


def _asked(panel: OutOfMemory) -> list[str]:
    failure = panel.failure
    where = f"in thread {failure.thread}" if failure.thread else ""
    parts = [part for part in (panel.line, where) if part]
    sentences = [f"asked by {', '.join(parts)}"] if parts else []
    if panel.count > 1:
        sentences.append(f"{panel.count:,} allocations failed in this cell; this is the last")
    return sentences


def _notes(table: Table) -> list[str]:
    """The holders' own remarks; what `%gpumem free` would give back is told in our own words."""
    return [remark for remark in table.remarks if not remark.startswith("%gpumem")]


def _after(panel: OutOfMemory) -> list[str]:
    sentences = []
    if panel.cells:
        cells = ", ".join(f"In [{number}] {signed(amount)}" for number, amount in panel.cells)
        sentences.append(f"cells that added most since the baseline: {cells}")
    sentences += panel.advice
    if panel.freeable >= VISIBLE and not any(one.startswith("%gpumem free gives") for one in panel.advice):
        sentences.append(f"%gpumem free would give {size(panel.freeable)} back now")
    if panel.failure.saved:
        sentences.append(panel.failure.saved)
    return sentences


def _level(amount: int) -> str:
    return size(amount) if amount >= VISIBLE else "<0.1 MiB"
