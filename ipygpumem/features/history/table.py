"""Tables of the measurements of a session, and of the comparison of two runs of a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ipygpumem.core.device_names import HOST
from ipygpumem.core.errors import OptionError
from ipygpumem.core.tables import Table, TableRow, is_visible
from ipygpumem.core.text import clip
from ipygpumem.core.units import VISIBLE, change_text, duration, many, signed
from ipygpumem.features.history.model import PAGE, SORT_COLUMNS, ReportRow, RowPair

HOST_NOTE = "on the host, held and peak refer to the resident memory of the process"
_CODE_WIDTH, _COMPARED_CODE_WIDTH = 38, 30


@dataclass(frozen=True, slots=True)
class TablePage:
    """A page of a table: the order of the table's rows, the number of the page, and its size.

    Attributes:
        by: Column to sort by in descending order, or ``in`` for execution order, with the newest rows on page 1.
        number: Page number, starting at 1.
        size: Number of rows per page.
    """

    by: str = "in"
    number: int = 1
    size: int = PAGE

    def select(self, rows: Sequence[ReportRow]) -> Sequence[ReportRow]:
        first = (self.number - 1) * self.size
        if self.by == "in":
            end = len(rows) - first
            return rows[max(end - self.size, 0) : max(end, 0)]

        in_order = sorted(rows, key=lambda row: descending(getattr(row, SORT_COLUMNS[self.by])))
        return in_order[first : first + self.size]


def descending(value: float | None) -> float:
    return math.inf if value is None else -value


def select_devices(rows: Sequence[ReportRow], names: Sequence[str]) -> Sequence[ReportRow]:
    available = sorted({row.device for row in rows}, key=lambda name: (len(name), name))
    missing_names = [name for name in names if name not in available]
    if missing_names and available:
        raise OptionError(f"no measurements on {', '.join(missing_names)}; measured devices: {', '.join(available)}")
    return [row for row in rows if row.device in names] if names else rows


def history_tables(
    rows: Sequence[ReportRow], page: TablePage, *, title: str = "this session", dropped: int = 0
) -> list[Table]:
    """Rows of successful measurements without a memory change are listed only if the table is sorted by ``time``."""
    listed_rows = rows if page.by == "time" else [row for row in rows if not _is_unchanged(row)]
    several = len({row.device for row in rows}) > 1
    bar_field = page.by if page.by in {"held", "outside"} else "peak"
    largest = max((abs(getattr(row, bar_field) or 0) for row in rows), default=0) or 1
    page_rows = page.select(listed_rows)
    body = [
        TableRow("", row_cells(row), 1, bar=max(getattr(row, bar_field) or 0, 0) / largest, note=row_outcome(row))
        for row in page_rows
    ]
    measurements = {row.measurement for row in rows}
    count = many(len(measurements), "measurement") if rows else "no measurements yet"
    notes = _notes(listed_rows, len(rows) - len(listed_rows), page, dropped)
    title = f"{title}: {count}{', one row per device with changes' if several else ''}"
    table = Table(title, ("held", "peak", "outside", "time"), tuple(body), tuple(notes))
    return [_with_cells(table, page_rows, _CODE_WIDTH, several=several)]


def _with_cells(table: Table, rows: Sequence[ReportRow], code_width: int, *, several: bool) -> Table:
    if not rows:
        return replace(table, header=())
    numbers = ["" if row.cell is None else f"In [{row.cell}]" for row in rows]
    width = max(map(len, numbers))
    body = []
    for number, row, line in zip(numbers, rows, table.rows, strict=True):
        label = f"{number.ljust(width)}  {clip(row.code, code_width)}".rstrip()
        body.append(replace(line, label=label, cells=(row.device, *line.cells) if several else line.cells))
    return replace(table, header=("device", *table.header) if several else table.header, rows=tuple(body))


def _is_unchanged(row: ReportRow | None) -> bool:
    if row is None:
        return False
    changes = (row.held, row.peak, *(() if row.device == HOST else (row.outside,)))
    return None not in changes and not is_visible(*changes) and not row.changed and not row_outcome(row)


def _notes(rows: Sequence[ReportRow], omitted: int, page: TablePage, dropped: int) -> list[str]:
    notes = []
    if omitted:
        notes.append(f"not shown: {many(omitted, 'row')} without a memory change (--by time shows all rows)")
    if any(row.device == HOST for row in rows):
        notes.append(HOST_NOTE)
    pages = max(-(-len(rows) // page.size), 1)
    if page.number > pages:
        notes.append(f"page {page.number:,} does not exist: the last page is {pages:,}")
    elif pages > 1:
        hint = f" (next page: --page {page.number + 1})" if page.number < pages else ""
        notes.append(f"page {page.number:,} of {pages:,}{hint}")
    if dropped:
        notes.append(f"discarded: {many(dropped, 'older report')} (set GPUMem.log to write all reports to a file)")
    return notes


def row_cells(row: ReportRow) -> tuple[str, ...]:
    outside = "" if row.device == HOST else change_text(row.outside)
    if row.outside_trust == "device":
        outside = f"~{outside}"
    peak = change_text(row.peak)
    if row.peak_trust == "bound":
        peak = f"at most {peak}"
    return (change_text(row.held), peak, outside, duration(row.seconds))


def row_outcome(row: ReportRow) -> str:
    """Example: ``"out of memory, CUDA initialized"``."""
    failure = "out of memory" if row.ooms else "failed" if row.success is False else ""
    return ", ".join(part for part in (failure, "CUDA initialized" if row.started else "") if part)


def comparison_tables(
    pairs: Sequence[RowPair], by: str, names: tuple[str, str], skipped: tuple[int, int] = (0, 0)
) -> list[Table]:
    """Return a list of one table, which contains the second run with the changes from the first run.

    The rows are sorted by the absolute change in the column ``by``, largest first; ``"in"`` keeps the order of
    ``pairs``. Rows without a memory change in either run are omitted, unless ``by`` is ``"time"``. ``names`` contains
    the names of both runs, and ``skipped`` the number of cell executions in each run that are omitted because the cell
    was executed again later.
    """
    if by != "in":
        pairs = sorted(pairs, key=lambda pair: -abs(pair.change(SORT_COLUMNS[by]) or 0))
    listed_pairs = [
        pair for pair in pairs if by == "time" or not (_is_unchanged(pair.before) and _is_unchanged(pair.after))
    ]
    matched_count = sum(pair.before is not None and pair.after is not None for pair in pairs)
    different_count = sum(is_visible(*(pair.change(name) for name in ("held", "peak", "outside"))) for pair in pairs)
    title = f"{names[1]} compared with {names[0]} (rows in both: {matched_count:,}, different: {different_count:,})"
    notes = [
        f"{name}: only the last run of each cell is compared (skipped: {many(count, 'earlier run')})"
        for name, count in zip(names, skipped, strict=True)
        if count
    ]
    if len(listed_pairs) < len(pairs):
        notes.append(f"not shown: {many(len(pairs) - len(listed_pairs), 'row')} without a memory change in either run")
    body = tuple(TableRow("", _compared_cells(pair), 1, note=_pair_note(pair, names)) for pair in listed_pairs)
    several = len({pair.row.device for pair in pairs}) > 1
    table = Table(title, ("held", "change", "peak", "change", "time", "change"), body, tuple(notes))
    return [_with_cells(table, [pair.row for pair in listed_pairs], _COMPARED_CODE_WIDTH, several=several)]


def _compared_cells(pair: RowPair) -> tuple[str, ...]:
    held, peak, _, time = row_cells(pair.row)
    seconds = pair.change("seconds")
    time_change = "" if seconds is None else f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"
    return held, _change_text(pair.change("held")), peak, _change_text(pair.change("peak")), time, time_change


def _change_text(change: float | None) -> str:
    return "" if change is None else signed(int(change)) if abs(change) >= VISIBLE else "="


def _pair_note(pair: RowPair, names: tuple[str, str]) -> str:
    if pair.before is None:
        return f"only in {names[1]}"
    if pair.after is None:
        return f"only in {names[0]}"
    runs = [name for name, row in zip(names, (pair.before, pair.after), strict=True) if row.success is False]
    parts = [] if not runs else ["failed in both runs" if len(runs) == len(names) else f"failed in {runs[0]}"]
    outside = pair.change("outside")
    if outside is not None and abs(outside) >= VISIBLE:
        parts.append(f"outside PyTorch {signed(int(outside))}")
    return ", ".join(parts)
