"""Tables of a session cell by cell, and of two runs compared."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.errors import OptionError
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, change_text, duration, signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.history.comparison import RowPair
    from ipygpumem.features.history.model import ReportRow

__all__ = [
    "COLUMNS",
    "PAGE",
    "Page",
    "comparison_tables",
    "history_tables",
    "row_figures",
    "row_outcome",
    "select_devices",
]

COLUMNS = {"in": "cell", "held": "held", "peak": "peak", "outside": "outside", "time": "seconds"}
"""The columns by which a history can be sorted, with the field of `ReportRow` that each shows."""
PAGE = 30
_CODE_WIDTH, _COMPARED_CODE_WIDTH = 38, 30
_HEADER = ("held", "peak", "outside", "time")


@dataclass(frozen=True, slots=True)
class Page:
    """Selection of rows: page ``number`` of pages with ``size`` rows.

    ``by`` is the column to sort by, largest first; ``in`` keeps the order of execution, with the newest page first.
    """

    by: str = "in"
    number: int = 1
    size: int = PAGE

    def pages(self, count: int) -> int:
        """Number of pages needed for ``count`` rows."""
        return max(-(-count // self.size), 1)


def select_devices(rows: Sequence[ReportRow], names: Sequence[str]) -> Sequence[ReportRow]:
    """Keep the rows of the named devices, or all rows without names; `OptionError` if a device has none."""
    available = sorted({row.device for row in rows}, key=lambda name: (len(name), name))
    missing = [name for name in names if name not in available]
    if missing and available:
        raise OptionError(f"no measurements of {', '.join(missing)}: the devices measured are {', '.join(available)}")
    return [row for row in rows if row.device in names] if names else rows


def history_tables(
    rows: Sequence[ReportRow],
    page: Page,
    *,
    title: str = "this session",
    dropped: int = 0,
    next_page: str = "--page {}",
) -> list[Table]:
    """A row for each cell and device. Rows without any change are shown only if sorted by time.

    ``next_page`` says how to request another page, with its number in braces.
    """
    if not rows:
        return [Table(f"{title}: no measurements yet", (), (), _remarks(rows, 0, page, dropped, next_page))]
    listed = rows if page.by == "time" else [row for row in rows if not _is_unchanged(row)]
    shown = _select_page(listed, page)
    several = len({row.device for row in rows}) > 1
    figure = COLUMNS[page.by]
    bar_figure = "peak" if figure in {"cell", "seconds"} else figure
    largest = max((abs(getattr(row, bar_figure) or 0) for row in rows), default=0) or 1
    width = max((len(_cell_number(row)) for row in shown), default=0)
    body = tuple(
        TableRow(
            _label(row, width, _CODE_WIDTH),
            (*((row.device,) if several else ()), *row_figures(row)),
            1,
            bar=max(getattr(row, bar_figure) or 0, 0) / largest,
            remark=row_outcome(row),
        )
        for row in shown
    )
    remarks = _remarks(listed, len(rows) - len(listed), page, dropped, next_page)
    header = (*(("device",) if several else ()), *_HEADER)
    return [Table(f"{title}: {_count(rows, several)}", header, body, remarks)]


def _is_unchanged(row: ReportRow) -> bool:
    """Whether every figure is known to be zero, or too small to show, and the code succeeded."""
    figures = (row.held, row.peak, *(() if row.device == HOST else (row.outside,)))
    zero = all(figure is not None and abs(figure) < VISIBLE for figure in figures)
    return zero and not row.changed and not row_outcome(row)


def _select_page(rows: Sequence[ReportRow], page: Page) -> Sequence[ReportRow]:
    first = (page.number - 1) * page.size
    if page.by == "in":
        end = len(rows) - first
        return rows[max(end - page.size, 0) : max(end, 0)]
    value = attrgetter(COLUMNS[page.by])
    known = sorted((row for row in rows if value(row) is not None), key=value, reverse=True)
    return [*known, *(row for row in rows if value(row) is None)][first : first + page.size]


def _count(rows: Sequence[ReportRow], several: bool) -> str:
    count = len({(row.time, row.cell, row.seconds) for row in rows})
    return f"{count:,} measurement{'' if count == 1 else 's'}{', one row per device that changed' if several else ''}"


def _remarks(rows: Sequence[ReportRow], omitted: int, page: Page, dropped: int, next_page: str) -> tuple[str, ...]:
    remarks = []
    if omitted:
        remarks.append(f"{omitted:,} row{'' if omitted == 1 else 's'} without a change not shown (--by time shows all)")
    hosts = sum(row.device == HOST for row in rows)
    if hosts and hosts == len(rows):
        remarks.append("without a GPU: held and peak are this process's resident memory")
    elif hosts:
        remarks.append("rows of host: no GPU was in use yet, held and peak are this process's resident memory")
    pages = page.pages(len(rows))
    if page.number > pages:
        remarks.append(f"page {page.number:,} does not exist: the last page is {pages:,}")
    elif pages > 1:
        hint = f": {next_page.format(page.number + 1)} shows the next" if page.number < pages else ""
        remarks.append(f"page {page.number:,} of {pages:,}{hint}")
    if dropped:
        remarks.append(f"{dropped:,} older reports have been discarded: set GPUMem.log to keep all reports in a file")
    return tuple(remarks)


def _label(row: ReportRow, number_width: int, code_width: int) -> str:
    code = row.code if len(row.code) <= code_width else f"{row.code[: code_width - 1]}…"
    return f"{_cell_number(row).ljust(number_width)}  {code}".rstrip()


def _cell_number(row: ReportRow) -> str:
    return "" if row.cell is None else f"In [{row.cell}]"


def row_figures(row: ReportRow) -> tuple[str, ...]:
    """Held, peak, memory outside PyTorch and time as text."""
    outside = "" if row.device == HOST else change_text(row.outside)
    if row.outside_trust == "device":
        outside = f"~{outside}"
    peak = change_text(row.peak)
    if row.peak_trust == "bound":
        peak = f"at most {peak}"
    return (change_text(row.held), peak, outside, duration(row.seconds))


def row_outcome(row: ReportRow) -> str:
    """What else happened: out of memory, failed, CUDA started."""
    parts = []
    if row.ooms:
        parts.append("out of memory")
    if row.success is False and not row.ooms:
        parts.append("failed")
    if row.started:
        parts.append("CUDA started")
    return ", ".join(parts)


def comparison_tables(
    pairs: Sequence[RowPair], by: str, names: tuple[str, str], earlier: tuple[int, int] = (0, 0)
) -> list[Table]:
    """The figures of the second run, each with its change from the first.

    ``by`` is a key of `COLUMNS`: rows are sorted by its change, largest first; ``in`` keeps the order. ``earlier`` is
    the number of runs left out of each, because the cell ran again.
    """
    if by != "in":
        pairs = sorted(pairs, key=lambda pair: -abs(pair.change(COLUMNS[by]) or 0))
    listed = pairs if by == "time" else [pair for pair in pairs if not _is_unchanged_pair(pair)]
    several = len({pair.row.device for pair in pairs}) > 1
    width = max((len(_cell_number(pair.row)) for pair in listed), default=0)
    body = tuple(
        TableRow(
            _label(pair.row, width, _COMPARED_CODE_WIDTH),
            (*((pair.row.device,) if several else ()), *_compared_figures(pair)),
            1,
            remark=_pair_remark(pair, names),
        )
        for pair in listed
    )
    header = (*(("device",) if several else ()), "held", "change", "peak", "change", "time", "change")
    both = sum(pair.before is not None and pair.after is not None for pair in pairs)
    title = f"{names[1]} compared with {names[0]}: {both:,} rows in both, {sum(map(_differs, pairs)):,} differ"
    remarks = [
        f"{name}: {count:,} earlier run{'' if count == 1 else 's'} of repeated cells not compared, only the last"
        for name, count in zip(names, earlier, strict=True)
        if count
    ]
    omitted = len(pairs) - len(listed)
    if omitted:
        remarks.append(f"{omitted:,} row{'' if omitted == 1 else 's'} without memory use in either run not shown")
    return [Table(title, header if body else (), body, tuple(remarks))]


def _is_unchanged_pair(pair: RowPair) -> bool:
    before, after = pair.before, pair.after
    return before is not None and after is not None and _is_unchanged(before) and _is_unchanged(after)


def _compared_figures(pair: RowPair) -> tuple[str, ...]:
    held, peak, _, time = row_figures(pair.row)
    cells = []
    for text, name in ((held, "held"), (peak, "peak")):
        change = pair.change(name)
        cells += [text, "" if change is None else "=" if abs(change) < VISIBLE else signed(int(change))]
    seconds = pair.change("seconds")
    cells += [time, "" if seconds is None else f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"]
    return tuple(cells)


def _differs(pair: RowPair) -> bool:
    changes = (pair.change(name) for name in ("held", "peak", "outside"))
    return any(change is not None and abs(change) >= VISIBLE for change in changes)


def _pair_remark(pair: RowPair, names: tuple[str, str]) -> str:
    if pair.before is None:
        return f"only in {names[1]}"
    if pair.after is None:
        return f"only in {names[0]}"
    failed = [name for name, row in zip(names, (pair.before, pair.after), strict=True) if row.success is False]
    parts = [] if not failed else ["failed in both" if len(failed) == len(names) else f"failed in {failed[0]}"]
    outside = pair.change("outside")
    if outside is not None and abs(outside) >= VISIBLE:
        parts.append(f"outside PyTorch {signed(int(outside))}")
    return ", ".join(parts)
