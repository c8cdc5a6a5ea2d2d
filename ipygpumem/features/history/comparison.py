"""Compare two runs of a notebook cell by cell, and a cell with its previous run."""

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
    """The rows of the same code on the same device in two runs. A row is None if the run does not contain the code.

    ``row`` is the row of the second run, or of the first run if the second does not contain the code.
    """

    row: ReportRow
    before: ReportRow | None
    after: ReportRow | None

    def change(self, name: str) -> Any:
        """Return the difference of a field in bytes or seconds; None if the field is unknown in one of the runs."""
        return difference(getattr(self.before, name, None), getattr(self.after, name, None))


def pair_rows(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> tuple[list[RowPair], tuple[int, int]]:
    """Return ``(pairs, (before_earlier, after_earlier))``, where the latter are the numbers of runs skipped.

    Cells are matched by the front end's cell id if the runs have ids in common, otherwise by In number (recreated or
    converted notebooks have different ids). Code outside cells is matched by position. If a cell ran more than once,
    only its last run is compared; if several kernels wrote to one log, the run in the last of these kernels. Pairs
    are in the order of the second run, followed by rows that only the first run contains.
    """
    by_id = not {row.cell_id for row in before if row.cell_id}.isdisjoint(row.cell_id for row in after)
    first, before_earlier = _last_runs(before, by_id=by_id)
    second, after_earlier = _last_runs(after, by_id=by_id)
    pairs = [RowPair(row, first.get(key), row) for key, row in second.items()]
    pairs += [RowPair(row, row, None) for key, row in first.items() if key not in second]
    return pairs, (before_earlier, after_earlier)


def _last_runs(rows: Sequence[ReportRow], *, by_id: bool) -> tuple[_RunRows, int]:
    """Return each cell's last run, by cell, device and position in the run, with the number of earlier runs."""
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
    """Yield rows with kernel numbers. If In numbers start again, another kernel has continued the log."""
    kernel, last_number = 0, 0
    pending: list[ReportRow] = []  # reports of code inside a cell precede the report of the cell
    for row in rows:
        pending.append(row)
        if row.cell is not None:
            kernel += row.cell < last_number
            last_number = row.cell
            yield from ((kernel, pending_row) for pending_row in pending)
            pending = []
    yield from ((kernel, row) for row in pending)


def last_run(report: Report, earlier: Report, threshold: int, *, always: bool = False) -> str | None:
    """Describe the previous run of a cell if a value differs by at least ``threshold`` bytes or ``always`` is true."""
    rows = {row.device: row for row in report_rows(report)}
    pairs = [(before, rows[before.device]) for before in report_rows(earlier) if before.device in rows]
    parts = []
    for before, now in pairs:
        values = {name: (getattr(before, name), getattr(now, name)) for name in _PATTERNS if _exact(before, now, name)}
        if any(abs(new - old) >= max(threshold, VISIBLE) for old, new in values.values()):
            labels = [
                _PATTERNS[name].format(signed(old) if abs(old) >= VISIBLE else "0")
                for name, (old, new) in values.items()
                if max(abs(old), abs(new)) >= VISIBLE
            ]
            parts.append(f"{before.device} {' · '.join(labels)}" if len(pairs) > 1 else " · ".join(labels))
    title = "last run" if earlier.cell is None else f"last run, In [{earlier.cell}]"
    if parts:
        return f"{title}: {'; '.join(parts)}, {duration(earlier.seconds)}"
    return f"{title}: the same, {duration(earlier.seconds)}" if always and pairs else None


def _exact(before: ReportRow, now: ReportRow, name: str) -> bool:
    """Return whether both values are known and exact; bounds and device-wide values cannot be compared."""
    return all(
        getattr(row, name) is not None and getattr(row, f"{name}_trust", "exact") == "exact" for row in (before, now)
    )
