"""Tables, and their text form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.units import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.core.grade import Grade

__all__ = ["Table", "TableRow", "is_visible", "text_tables"]

_BAR_CELLS = 10


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table.

    Attributes:
        label: Name of the row.
        cells: Text of each column.
        level: Depth of indentation.
        grade: How accurate the figures are; None if that is not shown.
        bar: Share of the whole, from 0 to 1, drawn as a bar.
        remark: Text behind the columns.
    """

    label: str
    cells: tuple[str, ...]
    level: int
    grade: Grade | None = None
    bar: float | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, the names of its columns, its rows and the sentences below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[TableRow, ...]
    remarks: tuple[str, ...] = ()


def is_visible(*changes: int | None) -> bool:
    """Whether any of these changes in bytes is large enough to be printed."""
    return any(change is not None and abs(change) >= VISIBLE for change in changes)


def text_tables(tables: Iterable[Table]) -> str:
    """Tables as aligned text. A figure that is not exact is marked with ``~``, and the reason is given below."""
    return "\n\n".join(map(_text_table, tables))


def _text_table(table: Table) -> str:
    body = [("  " * row.level + row.label, *row.cells, _mark(row.grade)) for row in table.rows]
    widths = [max((len(line[i]) for line in body), default=0) for i in range(len(table.header) + 1)]
    widths = [widths[0], *(max(width, len(name)) for width, name in zip(widths[1:], table.header, strict=True))]
    lines = [table.title]
    if table.rows:
        lines.append("  ".join(["".ljust(widths[0]), *_align_right(table.header, widths[1:])]).rstrip())
    has_bars = any(row.bar for row in table.rows)
    has_remarks = has_bars or any(row.remark for row in table.rows)
    for line, row in zip(body, table.rows, strict=True):
        text = "  ".join([line[0].ljust(widths[0]), *_align_right(line[1:-1], widths[1:])])
        text = f"{text if has_remarks else text.rstrip()}{line[-1]}"
        if has_bars:
            bar = "█" * max(round(row.bar * _BAR_CELLS), 1) if row.bar else ""
            text += f"  {bar.ljust(_BAR_CELLS)}"
        lines.append(f"{text}  {row.remark}".rstrip())
    return "\n".join([*lines, *_reasons(table.rows), *table.remarks])


def _align_right(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


def _mark(grade: Grade | None) -> str:
    return " ~" if grade is not None and grade.trust not in {"exact", "unknown"} else ""


def _reasons(rows: Iterable[TableRow]) -> list[str]:
    grades = [row.grade for row in rows if row.grade is not None and row.grade.trust != "exact"]
    return list(dict.fromkeys(f"{'unknown:' if g.trust == 'unknown' else '~'} {g.reason}" for g in grades))
