"""Two runs, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.ledger.entry import Entry

__all__ = ["Pair", "pairs"]


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

    A cell is known by the front end's cell id where both runs have such ids, else by its In number; what was measured
    outside a cell by its place among its like. Of a cell that ran more than once its last run counts.
    """
    by_id = any(one.cell_id for one in before) and any(one.cell_id for one in after)
    first, second = _keyed(before, by_id=by_id), _keyed(after, by_id=by_id)
    found = [Pair(first.get(key), row) for key, row in second.items()]
    return found + [Pair(row, None) for key, row in first.items() if key not in second]


def _keyed(rows: Sequence[Entry], *, by_id: bool) -> dict[tuple[object, ...], Entry]:
    """Each row under what it is known by: its cell, its place among the rows of that cell's last run, its device."""
    names = [(row.cell_id if by_id and row.cell_id else row.cell, row) for row in rows]
    last = {name: row.cell for name, row in names if name is not None}
    counts: dict[tuple[object, ...], int] = {}
    found: dict[tuple[object, ...], Entry] = {}
    for name, row in names:
        if name is not None and row.cell != last[name]:
            continue
        kind = (name, row.device)
        counts[kind] = counts.get(kind, 0) + 1
        found[name, row.device, counts[kind]] = row
    return found
