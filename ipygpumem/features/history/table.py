"""A session cell by cell, and two sessions side by side, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import duration, signed
from ipygpumem.display.columns import VISIBLE
from ipygpumem.display.table import Table, TableRow
from ipygpumem.features.history.model import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.history.comparison import Pair
    from ipygpumem.features.history.model import Entry

__all__ = ["COLUMNS", "PAGE", "Page", "comparison_tables", "history_tables", "merged_tables", "rows_of"]

COLUMNS = {"in": "cell", "held": "held", "peak": "peak", "outside": "outside", "time": "seconds"}
"""What a history may be sorted by, with the figure's name."""
PAGE = 30
_CODE, _CODE_COMPARED = 38, 30


@dataclass(frozen=True, slots=True)
class Page:
    """Which rows to show: the ``number``-th ``size`` of them.

    ``by``: the column to sort by, the worst first; ``in``: as they ran, the newest page first.
    """

    by: str = "in"
    number: int = 1
    size: int = PAGE

    def pages(self, count: int) -> int:
        """How many there are of so many rows."""
        return max(-(-count // self.size), 1)


def rows_of(rows: Sequence[Entry], names: Sequence[str]) -> Sequence[Entry]:
    """The rows of some devices.

    Args:
        rows: Of all.
        names: Of the devices (``cuda:0``, ``host``); none takes all.

    Raises:
        OptionError: There is none of a device: there are others.
    """
    there = sorted({row.device for row in rows}, key=lambda name: (len(name), name))
    missing = [name for name in names if name not in there]
    if missing and there:
        raise OptionError(f"nothing of {', '.join(missing)} is here: there is {', '.join(there)}")
    return [row for row in rows if row.device in names] if names else rows


def history_tables(
    rows: Sequence[Entry], page: Page, *, title: str = "this session", dropped: int = 0, more: str = "--page {}"
) -> list[Table]:
    """A row for each cell and device.

    Args:
        rows: In the order in which they ran.
        page: What to show of them.
        title: Of what this is the history.
        dropped: Older reports, which are no longer there.
        more: How the next page is asked for, with its number in braces.
    """
    figure = COLUMNS[page.by]
    shown = _shown(rows, page)
    several = len({row.device for row in rows}) > 1
    bar = "peak" if figure in {"cell", "seconds"} else figure
    largest = max((abs(getattr(row, bar) or 0) for row in rows), default=0) or 1
    width = max((len(_number(row)) for row in shown), default=0)
    body = tuple(
        TableRow(
            _label(row, width),
            (*((row.device,) if several else ()), *_figures(row)),
            1,
            bar=max(getattr(row, bar) or 0, 0) / largest,
            remark=_remark(row),
        )
        for row in shown
    )
    header = (*(("device",) if several else ()), "held", "peak", "outside", "time")
    remarks = _remarks(rows, page, dropped, more)
    if not rows:
        return [Table(f"{title}: nothing was measured yet", (), (), remarks)]
    return [Table(f"{title}: {_count(rows, several)}", header, body, remarks)]


def _shown(rows: Sequence[Entry], page: Page) -> Sequence[Entry]:
    first = (page.number - 1) * page.size
    if page.by == "in":
        end = len(rows) - first
        return rows[max(end - page.size, 0) : max(end, 0)]
    value = attrgetter(COLUMNS[page.by])
    known = sorted((row for row in rows if value(row) is not None), key=value, reverse=True)
    return [*known, *(row for row in rows if value(row) is None)][first : first + page.size]


def _count(rows: Sequence[Entry], several: bool) -> str:
    count = len({(row.time, row.cell, row.seconds) for row in rows})
    return f"{count:,} measurement{'' if count == 1 else 's'}{', a row for each device that moved' if several else ''}"


def _remarks(rows: Sequence[Entry], page: Page, dropped: int, more: str) -> tuple[str, ...]:
    sentences = []
    hosts = sum(row.device == HOST for row in rows)
    if hosts and hosts == len(rows):
        sentences.append("without a GPU: held and peak are of this process's resident memory")
    elif hosts:
        sentences.append("rows of host: no GPU was in use yet, held and peak are of this process's resident memory")
    pages = page.pages(len(rows))
    if page.number > pages:
        sentences.append(f"there is no page {page.number:,}: the last is {pages:,}")
    elif pages > 1:
        goes_on = f": {more.format(page.number + 1)} goes on" if page.number < pages else ""
        sentences.append(f"page {page.number:,} of {pages:,}{goes_on}")
    if dropped:
        sentences.append(f"{dropped:,} older reports are no longer kept: GPUMem.log writes all to a file")
    return tuple(sentences)


def _label(row: Entry, width: int, most: int = _CODE) -> str:
    code = row.code if len(row.code) <= most else f"{row.code[: most - 1]}…"
    return f"{_number(row).ljust(width)}  {code}".rstrip()


def _number(row: Entry) -> str:
    return "" if row.cell is None else f"In [{row.cell}]"


def _figures(row: Entry) -> tuple[str, ...]:
    outside = "" if row.device == HOST else _change(row.outside)
    if row.outside_trust == "device":
        outside = f"~{outside}"
    peak = _change(row.peak)
    if row.peak_trust == "bound":
        peak = f"at most {peak}"
    return (_change(row.held), peak, outside, duration(row.seconds))


def _change(count: int | None) -> str:
    if count is None:
        return "unknown"
    return signed(count) if abs(count) >= VISIBLE else "0" if not count else "<0.1 MiB"


def _remark(row: Entry) -> str:
    words = []
    if row.ooms:
        words.append("out of memory")
    if row.success is False and not row.ooms:
        words.append("failed")
    if row.started:
        words.append("CUDA started")
    return ", ".join(words)


def merged_tables(rows: Sequence[tuple[str, Entry]], lost: Sequence[str] = ()) -> list[Table]:
    """A row for each source and device; the highest and the lowest peak are named, and nothing is added up.

    Args:
        rows: Each with its source.
        lost: Sources that sent nothing.
    """
    known = [row.peak for _, row in rows if row.peak is not None]
    whole = max(known, default=0) or 1
    body = tuple(
        TableRow(
            source,
            (row.device, *_figures(row)),
            1,
            bar=max(row.peak or 0, 0) / whole,
            remark=", ".join(word for word in (_extreme(row, known), _remark(row)) if word),
        )
        for source, row in rows
    )
    sources = len({source for source, _ in rows})
    missing = (f"sent nothing: {', '.join(lost)}",) if lost else ()
    title = f"{sources:,} source{'' if sources == 1 else 's'}"
    return [Table(title, ("device", "held", "peak", "outside", "time") if rows else (), body, missing)]


def _extreme(row: Entry, known: Sequence[int]) -> str:
    if row.peak is None or max(known) - min(known) < VISIBLE:
        return ""
    return "highest peak" if row.peak == max(known) else "lowest peak" if row.peak == min(known) else ""


def comparison_tables(
    found: Sequence[Pair], by: str, names: tuple[str, str], earlier: tuple[int, int] = (0, 0)
) -> list[Table]:
    """Each figure of the second run with its change against the first; sorted by the change, the largest first.

    Args:
        found: Rows of the two runs.
        by: A key of `COLUMNS`; ``in`` leaves the order.
        names: Of the two runs.
        earlier: How many runs of cells do not count in each of the two, for the cell ran again.
    """
    if by != "in":
        found = sorted(found, key=lambda pair: -abs(pair.change(COLUMNS[by]) or 0))
    several = len({pair.entry.device for pair in found}) > 1
    width = max((len(_number(pair.entry)) for pair in found), default=0)
    body = tuple(
        TableRow(
            _label(pair.entry, width, _CODE_COMPARED),
            (*((pair.entry.device,) if several else ()), *_compared(pair)),
            1,
            remark=_only(pair, names),
        )
        for pair in found
    )
    header = (*(("device",) if several else ()), "held", "change", "peak", "change", "time", "change")
    both = sum(pair.before is not None and pair.after is not None for pair in found)
    changed = sum(_differs(pair) for pair in found)
    title = f"{names[1]} against {names[0]}: {both:,} in both, {changed:,} of them differ"
    remarks = tuple(
        f"{name}: {count:,} earlier run{'' if count == 1 else 's'} of cells that ran again left out, the last counts"
        for name, count in dict(zip(names, earlier, strict=True)).items()
        if count
    )
    return [Table(title, header, body, remarks)]


def _compared(pair: Pair) -> tuple[str, ...]:
    held, peak, _, time = _figures(pair.entry)
    cells = []
    for text, name in ((held, "held"), (peak, "peak")):
        change = pair.change(name)
        cells += [text, "" if change is None else "=" if abs(change) < VISIBLE else signed(int(change))]
    seconds = pair.change("seconds")
    cells += [time, "" if seconds is None else f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"]
    return tuple(cells)


def _differs(pair: Pair) -> bool:
    changes = (pair.change(name) for name in ("held", "peak", "outside"))
    return any(change is not None and abs(change) >= VISIBLE for change in changes)


def _only(pair: Pair, names: tuple[str, str]) -> str:
    if pair.before is None:
        return f"only in {names[1]}"
    if pair.after is None:
        return f"only in {names[0]}"
    failed = [name for name, one in zip(names, (pair.before, pair.after), strict=True) if one.success is False]
    words = [] if not failed else ["failed in both" if len(failed) == len(names) else f"failed in {failed[0]}"]
    outside = pair.change("outside")
    if outside is not None and abs(outside) >= VISIBLE:
        words.append(f"outside PyTorch {signed(int(outside))}")
    return ", ".join(words)
