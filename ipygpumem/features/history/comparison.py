"""Compare runs: two runs of a notebook cell by cell, and a cell with its previous run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import VISIBLE, difference, duration, signed
from ipygpumem.features.history.model import report_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.history.model import ReportRow

    _RunRows = dict[tuple[object, ...], ReportRow]

_PATTERNS = {"held": "{} held", "peak": "peak {}", "outside": "outside PyTorch {}"}


@dataclass(frozen=True, slots=True)
class RowPair:
    """The same code on the same device in two runs; None for a run that lacks it.

    ``row`` is that of the second run, or of the first if the second lacks it.
    """

    row: ReportRow
    before: ReportRow | None
    after: ReportRow | None

    def change(self, name: str) -> Any:
        """Difference of a figure between the runs, in bytes or seconds; None if it is unknown in one of them."""
        return difference(getattr(self.before, name, None), getattr(self.after, name, None))


def pair_rows(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> tuple[list[RowPair], tuple[int, int]]:
    """Pair the rows of two runs, in the order of the second run; rows that only the first run has come last.

    Cells match by the front end's cell id if the runs share any, else by In number (a notebook that was recreated or
    converted has other ids). Code outside cells matches by position. If a cell ran more than once, its last run
    counts; if several kernels wrote one log, the last of them that ran the cell. The second result is, for both runs,
    the number of runs of cells that are left out because the cell ran again.
    """
    by_id = not {row.cell_id for row in before if row.cell_id}.isdisjoint(row.cell_id for row in after)
    first, first_earlier = _last_runs(before, by_id=by_id)
    second, second_earlier = _last_runs(after, by_id=by_id)
    pairs = [RowPair(row, first.get(key), row) for key, row in second.items()]
    pairs += [RowPair(row, row, None) for key, row in first.items() if key not in second]
    return pairs, (first_earlier, second_earlier)


def _last_runs(rows: Sequence[ReportRow], *, by_id: bool) -> tuple[_RunRows, int]:
    """The rows of each cell's last run, by cell, device and position in that run; and the number of earlier runs."""
    runs = []
    for kernel, row in _kernels(rows):
        cell = row.cell_id if by_id and row.cell_id else row.cell
        runs.append((cell, (kernel, row.cell), row))
    last = {cell: run for cell, run, _ in runs}
    counts: Counter[tuple[object, str]] = Counter()
    keyed: _RunRows = {}
    for cell, run, row in runs:
        if run == last[cell]:
            counts[cell, row.device] += 1
            keyed[cell, row.device, counts[cell, row.device]] = row
    earlier = {(cell, run) for cell, run, row in runs if run != last[cell] and row.cell is not None}
    return keyed, len(earlier)


def _kernels(rows: Sequence[ReportRow]) -> Iterator[tuple[int, ReportRow]]:
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


def last_run(report: Report, earlier: Report, threshold: int, *, always: bool = False) -> str | None:
    """Describe the previous run of a cell if it differs by at least ``threshold`` bytes, or ``always``."""
    rows = {row.device: row for row in report_rows(report)}
    pairs = [(before, rows[before.device]) for before in report_rows(earlier) if before.device in rows]
    parts = []
    for before, now in pairs:
        figures = {name: (getattr(before, name), getattr(now, name)) for name in _PATTERNS if _exact(before, now, name)}
        if any(abs(new - old) >= max(threshold, VISIBLE) for old, new in figures.values()):
            texts = [
                _PATTERNS[name].format(signed(old) if abs(old) >= VISIBLE else "0")
                for name, (old, new) in figures.items()
                if max(abs(old), abs(new)) >= VISIBLE
            ]
            parts.append(f"{before.device} {' · '.join(texts)}" if len(pairs) > 1 else " · ".join(texts))
    title = "last run" if earlier.cell is None else f"last run, In [{earlier.cell}]"
    if parts:
        return f"{title}: {'; '.join(parts)}, {duration(earlier.seconds)}"
    return f"{title}: the same, {duration(earlier.seconds)}" if always and pairs else None


def _exact(before: ReportRow, now: ReportRow, name: str) -> bool:
    """Whether both figures are known and exact: bounds, and figures of the whole device, cannot be compared."""
    return all(
        getattr(row, name) is not None and getattr(row, f"{name}_trust", "exact") == "exact" for row in (before, now)
    )
