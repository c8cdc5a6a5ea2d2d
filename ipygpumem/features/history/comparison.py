"""Two runs, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipygpumem.features.history.model import Entry

__all__ = ["Pair", "earlier_runs", "pairs"]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same code on the same device in two runs; None where one of them lacks it."""

    before: Entry | None
    after: Entry | None

    @property
    def entry(self) -> Entry:
        """The newer of the two that are there."""
        one = self.after or self.before
        if one is None:
            raise ValueError("a pair of nothing")
        return one

    def change(self, name: str) -> float | None:
        """How much more a figure is in the second run; None where one of the two is unknown."""
        if self.before is None or self.after is None:
            return None
        before, after = getattr(self.before, name), getattr(self.after, name)
        return None if before is None or after is None else after - before


def pairs(before: Sequence[Entry], after: Sequence[Entry]) -> list[Pair]:
    """Rows that belong together, in the order of the second run; then what only the first has.

    A cell is known by the front end's cell id where the runs share such ids, else by its In number (a notebook that is
    made anew, or converted, gets other ids); what was measured outside a cell by its place among its like. Of a cell
    that ran more than once its last run counts, of a log that several kernels wrote one after the other the last of
    them that ran the cell.
    """
    by_id = _by_id(before, after)
    first, second = _keyed(before, by_id=by_id), _keyed(after, by_id=by_id)
    found = [Pair(first.get(key), row) for key, row in second.items()]
    return found + [Pair(row, None) for key, row in first.items() if key not in second]


def earlier_runs(before: Sequence[Entry], after: Sequence[Entry]) -> tuple[int, int]:
    """How many runs of cells do not count in each of the two, because the cell ran again there."""
    by_id = _by_id(before, after)
    return _earlier(before, by_id=by_id), _earlier(after, by_id=by_id)


def _earlier(rows: Sequence[Entry], *, by_id: bool) -> int:
    runs = {(_name(row, by_id=by_id), kernel, row.cell) for kernel, row in _kernels(rows) if row.cell is not None}
    return len(runs) - len({name for name, _, _ in runs})


def _by_id(before: Sequence[Entry], after: Sequence[Entry]) -> bool:
    return not {one.cell_id for one in before if one.cell_id}.isdisjoint(one.cell_id for one in after)


def _name(row: Entry, *, by_id: bool) -> str | int | None:
    return row.cell_id if by_id and row.cell_id else row.cell


def _keyed(rows: Sequence[Entry], *, by_id: bool) -> dict[tuple[object, ...], Entry]:
    """Each row under what it is known by: its cell, its place among the rows of that cell's last run, its device."""
    runs = [(_name(row, by_id=by_id), kernel, row) for kernel, row in _kernels(rows)]
    last = {name: (kernel, row.cell) for name, kernel, row in runs}
    counts: dict[tuple[object, ...], int] = {}
    found: dict[tuple[object, ...], Entry] = {}
    for name, kernel, row in runs:
        if (kernel, row.cell) != last[name]:
            continue
        kind = (name, row.device)
        counts[kind] = counts.get(kind, 0) + 1
        found[name, row.device, counts[kind]] = row
    return found


def _kernels(rows: Sequence[Entry]) -> Iterator[tuple[int, Entry]]:
    """Each row with the number of its kernel: where In numbers begin anew, another kernel went on with the log."""
    kernel, number = 0, 0
    waiting: list[Entry] = []  # a block inside a cell settles before the cell does
    for row in rows:
        waiting.append(row)
        if row.cell is not None:
            kernel += row.cell < number
            number = row.cell
            yield from ((kernel, one) for one in waiting)
            waiting = []
    yield from ((kernel, one) for one in waiting)
