"""Compare two runs of a notebook, cell by cell, and compare a cell with its previous run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipygpumem.core.report import Report
from ipygpumem.core.units import VISIBLE, difference, duration, signed
from ipygpumem.features.history.model import ReportRow, report_rows

_RunRows = dict[tuple[object, ...], ReportRow]

_PATTERNS = {"held": "{} held", "peak": "peak {}", "outside": "outside PyTorch {}"}


@dataclass(frozen=True, slots=True)
class RowPair:
    """The rows of the same code and device in two runs of a notebook: ``before`` in the first, ``after`` in the second.

    A row is None if its run does not contain the code. ``row`` is ``after`` or, if ``after`` is None, ``before``.
    """

    row: ReportRow
    before: ReportRow | None
    after: ReportRow | None

    def change(self, name: str) -> Any:
        """Return the change in a field from ``before`` to ``after``, or None if either value is unknown."""
        return difference(getattr(self.before, name, None), getattr(self.after, name, None))


def pair_rows(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> tuple[list[RowPair], tuple[int, int]]:
    """Match the rows of two runs of a notebook.

    Cells are matched by the front end's cell ID if the runs have IDs in common, otherwise by the number in
    ``In [n]``, because a recreated or converted notebook has different IDs. Code outside cells is matched by its
    position in the run. Only the last execution of each cell in a run is compared.

    Returns:
        ``(pairs, (skipped_before, skipped_after))``: the pairs in the order of the second run, followed by those of
        rows that only the first run contains; and the numbers of cell executions skipped in ``before`` and ``after``.
    """
    by_id = not {row.cell_id for row in before if row.cell_id}.isdisjoint(row.cell_id for row in after)
    first, skipped_before = _last_runs(before, by_id=by_id)
    second, skipped_after = _last_runs(after, by_id=by_id)
    pairs = [RowPair(row, first.get(key), row) for key, row in second.items()]
    pairs += [RowPair(row, row, None) for key, row in first.items() if key not in second]
    return pairs, (skipped_before, skipped_after)


def _last_runs(rows: Sequence[ReportRow], *, by_id: bool) -> tuple[_RunRows, int]:
    """Return the rows of the last execution of each cell, and the number of earlier executions."""
    runs, kernel, next_number = [], 0, math.inf
    for row in reversed(rows):  # reports of code inside a cell precede the report of the cell
        if row.cell is not None:
            kernel -= row.cell > next_number  # another kernel has continued the log
            next_number = row.cell
        # keys are texts, because a file can contain many numbers with the same hash
        cell = repr(row.cell_id if by_id and row.cell_id else row.cell)
        runs.append((cell, f"{kernel} {row.cell}", row))
    runs.reverse()
    last = {cell: run for cell, run, _ in runs}
    counts: Counter[tuple[str, str]] = Counter()
    keyed: _RunRows = {}
    for cell, run, row in runs:
        if run == last[cell]:
            counts[cell, row.device] += 1
            keyed[cell, row.device, counts[cell, row.device]] = row
    skipped = {(cell, run) for cell, run, row in runs if run != last[cell] and row.cell is not None}
    return keyed, len(skipped)


def previous_run_note(report: Report, earlier: Report, threshold: int, *, always: bool = False) -> str | None:
    """Return a note on the memory usage of a cell's previous run, whose report is ``earlier``.

    If no value differs by at least ``threshold`` bytes, return None unless ``always`` is true.
    """
    rows = {row.device: row for row in report_rows(report)}
    pairs = [(before, rows[before.device]) for before in report_rows(earlier) if before.device in rows]
    parts = []
    for before, now in pairs:
        values = {name: (getattr(before, name), getattr(now, name)) for name in _PATTERNS if _exact(name, before, now)}
        if any(abs(new - old) >= max(threshold, VISIBLE) for old, new in values.values()):
            labels = [
                _PATTERNS[name].format(signed(old) if abs(old) >= VISIBLE else "0")
                for name, (old, new) in values.items()
                if max(abs(old), abs(new)) >= VISIBLE
            ]
            parts.append(f"{before.device} {' · '.join(labels)}" if len(pairs) > 1 else " · ".join(labels))
    title = "previous run" if earlier.cell is None else f"previous run, In [{earlier.cell}]"
    if parts:
        return f"{title}: {'; '.join(parts)}, {duration(earlier.seconds)}"
    return f"{title}: same memory usage, {duration(earlier.seconds)}" if always and pairs else None


def _exact(name: str, *rows: ReportRow) -> bool:
    return all(getattr(row, name) is not None and getattr(row, f"{name}_trust", "exact") == "exact" for row in rows)
