"""Match the rows of two runs of a notebook, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipygpumem.features.history.model import ReportRow

__all__ = ["RowPair", "earlier_runs", "pair_rows"]


@dataclass(frozen=True, slots=True)
class RowPair:
    """The same code on the same device in two runs; None for a run that lacks it."""

    before: ReportRow | None
    after: ReportRow | None

    @property
    def row(self) -> ReportRow:
        """The row of the second run, or of the first if the second lacks it."""
        row = self.after or self.before
        if row is None:
            raise ValueError("a pair needs at least one row")
        return row

    def change(self, name: str) -> float | None:
        """Difference of a figure between the runs; None if it is unknown in one of them."""
        if self.before is None or self.after is None:
            return None
        before, after = getattr(self.before, name), getattr(self.after, name)
        return None if before is None or after is None else after - before


def pair_rows(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> list[RowPair]:
    """Pair the rows of two runs, in the order of the second run; rows that only the first run has come last.

    Cells match by the front end's cell id if the runs share any, else by In number (a notebook that was recreated or
    converted has other ids). Code outside cells matches by position. If a cell ran more than once, its last run
    counts; if several kernels wrote one log, the last of them that ran the cell.
    """
    by_id = _share_ids(before, after)
    first, second = _last_runs(before, by_id=by_id), _last_runs(after, by_id=by_id)
    pairs = [RowPair(first.get(key), row) for key, row in second.items()]
    return pairs + [RowPair(row, None) for key, row in first.items() if key not in second]


def earlier_runs(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> tuple[int, int]:
    """How many runs of cells `pair_rows` leaves out in each of the two, because the cell ran again."""
    by_id = _share_ids(before, after)
    return _count_earlier(before, by_id=by_id), _count_earlier(after, by_id=by_id)


def _count_earlier(rows: Sequence[ReportRow], *, by_id: bool) -> int:
    numbered = [(kernel, row) for kernel, row in _with_kernel(rows) if row.cell is not None]
    runs = {(_cell_key(row, by_id=by_id), kernel, row.cell) for kernel, row in numbered}
    return len(runs) - len({key for key, _, _ in runs})


def _share_ids(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> bool:
    return not {row.cell_id for row in before if row.cell_id}.isdisjoint(row.cell_id for row in after)


def _cell_key(row: ReportRow, *, by_id: bool) -> str | int | None:
    return row.cell_id if by_id and row.cell_id else row.cell


def _last_runs(rows: Sequence[ReportRow], *, by_id: bool) -> dict[tuple[object, ...], ReportRow]:
    """The rows of each cell's last run, by cell, device and position within that run."""
    runs = [(_cell_key(row, by_id=by_id), kernel, row) for kernel, row in _with_kernel(rows)]
    last = {key: (kernel, row.cell) for key, kernel, row in runs}
    counts: dict[tuple[object, ...], int] = {}
    keyed: dict[tuple[object, ...], ReportRow] = {}
    for key, kernel, row in runs:
        if (kernel, row.cell) != last[key]:
            continue
        cell_and_device = (key, row.device)
        counts[cell_and_device] = counts.get(cell_and_device, 0) + 1
        keyed[key, row.device, counts[cell_and_device]] = row
    return keyed


def _with_kernel(rows: Sequence[ReportRow]) -> Iterator[tuple[int, ReportRow]]:
    """Number the kernels that wrote the rows: when In numbers start again, another kernel has continued the log."""
    kernel, last_number = 0, 0
    pending: list[ReportRow] = []  # a block inside a cell is reported before the cell
    for row in rows:
        pending.append(row)
        if row.cell is not None:
            kernel += row.cell < last_number
            last_number = row.cell
            yield from ((kernel, pending_row) for pending_row in pending)
            pending = []
    yield from ((kernel, row) for row in pending)
