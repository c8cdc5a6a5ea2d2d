"""Tables and their text and HTML representations.

The HTML uses inline styles, but no script, style, svg or iframe elements, which untrusted notebooks, nbconvert and
GitHub remove. Text inherits the page's color. Bars are visible on white and black backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import Accuracy
from ipygpumem.core.text import printable
from ipygpumem.core.units import VISIBLE

_BAR_CELLS = 10
_CODE_WIDTH = 100
_MAX_WIDTH = 200
_MAX_LEVEL = 100
BAR_PIXELS = 96
BAR_COLORS = {"tensors": "#3b82f6", "cache": "#93c5fd", "outside PyTorch": "#f59e0b", "other processes": "#9ca3af"}

AS_TEXT = 'class="tex2jax_ignore mathjax_ignore"'
"""Attribute of elements in which Jupyter does not typeset text between dollar signs."""
HTML_START = f'<div {AS_TEXT} style="font-family:monospace;font-size:90%;margin:4px 0;overflow-x:auto">'
"""Start tag of the element that contains the HTML of tables."""
_TITLE = "text-align:left;padding:1px 12px 1px 0"
_COLUMN = "text-align:right;padding:1px 12px;font-weight:normal;opacity:0.65"
_LABEL = "text-align:left;white-space:pre-wrap;padding:1px 12px 1px"
_NOTE = "overflow-wrap:anywhere;min-width:12em"
_SHORT_NOTE = 48
"""Number of characters up to which a note is not wrapped."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """Row of a table.

    Attributes:
        cells: Texts of all columns except the first.
        level: Nesting level, by which the label is indented.
        grade: Accuracy of the values; None if it is not shown.
        bar: Length of the row's bar, from 0 to 1; None for a row without a bar.
        note: Text after the last column.
        light_bar: Length to which a lighter bar extends the bar, from 0 to 1.
    """

    label: str
    cells: tuple[str, ...]
    level: int
    grade: Accuracy | None = None
    bar: float | None = None
    note: str = ""
    light_bar: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """``header`` contains headings for all columns except the first, or is empty.

    The notes of the table are sentences below the rows. If ``code`` is true, the notes of the rows are lines of source
    code, which are not wrapped.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    code: bool = False


def is_visible(*changes: int | None) -> bool:
    return any(change is not None and abs(change) >= VISIBLE for change in changes)


def text_tables(tables: Iterable[Table]) -> str:
    """Return tables as plain text, in which ``~`` marks inexact values. Notes explain inexact and unknown values."""
    return "\n\n".join(map(_text_table, tables))


def _printable_table(table: Table) -> Table:
    rows = tuple(map(_printable_row, table.rows))
    return replace(table, title=_printable(table.title), rows=rows, notes=tuple(map(_printable, table.notes)))


def _printable_row(row: TableRow) -> TableRow:
    """Replace control characters, and limit lengths and numbers, because reports from files can contain any values."""
    return replace(
        row,
        label=_clip(_printable(row.label)),
        cells=tuple(map(_clip, row.cells)),
        note=_printable(row.note),
        level=min(max(0, row.level), _MAX_LEVEL),
        bar=row.bar and min(max(0.0, row.bar), 1.0),
        light_bar=min(max(0.0, row.light_bar), 1.0),
    )


def _printable(text: str) -> str:
    return printable(text).expandtabs(4)  # a tab has an unknown width


def _clip(text: str) -> str:
    # all cells of a column are padded to the width of the longest
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"


def _text_table(table: Table) -> str:
    table = _printable_table(table)
    body = [("  " * row.level + row.label, *row.cells, _mark(row.grade)) for row in table.rows]
    widths = [max((len(line[i]) for line in body), default=0) for i in range(len(table.header) + 1)]
    widths = [widths[0], *(max(width, len(name)) for width, name in zip(widths[1:], table.header, strict=True))]
    lines = [table.title]
    if table.rows and table.header:
        lines.append("  ".join(["".ljust(widths[0]), *_align_right(table.header, widths[1:])]).rstrip())
    has_bars = any(row.bar for row in table.rows)
    has_notes = has_bars or any(row.note for row in table.rows)
    for line, row in zip(body, table.rows, strict=True):
        text = "  ".join([line[0].ljust(widths[0]), *_align_right(line[1:-1], widths[1:])])
        text = f"{text if has_notes else text.rstrip()}{line[-1]}"
        if has_bars:
            bar = "█" * max(round(row.bar * _BAR_CELLS), 1) if row.bar else ""
            text += f"  {bar.ljust(round(row.light_bar * _BAR_CELLS), '░').ljust(_BAR_CELLS)}"
        clipped = table.code and len(row.note) > _CODE_WIDTH
        note = f"{row.note[: _CODE_WIDTH - 1]}…" if clipped else row.note
        lines.append(f"{text}  {note}".rstrip())
    grades = [row.grade for row in table.rows if row.grade is not None and row.grade.trust != "exact"]
    reasons = dict.fromkeys(f"{'unknown:' if g.trust == 'unknown' else '~'} {g.reason}" for g in grades)
    return "\n".join([*lines, *reasons, *table.notes])


def _align_right(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


def _mark(grade: Accuracy | None) -> str:
    return " ~" if grade is not None and grade.trust not in {"exact", "unknown"} else ""


def html_tables(tables: Iterable[Table]) -> str:
    """Render tables as HTML. Rows with values that are not exact end with the accuracy instead of the row's note."""
    lines = [line for table in tables for line in _html_table(_printable_table(table))]
    return "\n".join([HTML_START, *lines, "</div>"])


def _html_table(table: Table) -> list[str]:
    header = "".join(f'<th style="{_COLUMN}">{escape(name)}</th>' for name in table.header)
    return [
        '<table style="border-collapse:collapse;margin:0 0 8px 0">',
        f'<tr><th style="{_TITLE}">{escape(table.title)}</th>{header}<th></th><th></th></tr>',
        *(_html_row(row, code=table.code) for row in table.rows),
        "</table>",
        *html_notes(table.notes),
    ]


def html_notes(notes: Sequence[str]) -> list[str]:
    return [
        f'<div style="opacity:0.75{";margin-bottom:8px" if position == len(notes) else ""}">{escape(note)}</div>'
        for position, note in enumerate(notes, 1)
    ]


def _html_row(row: TableRow, *, code: bool) -> str:
    border = "" if row.level else ' style="border-top:1px solid #9ca3af"'
    cells = "".join(
        f'<td style="text-align:right;padding:1px 12px;white-space:nowrap">{escape(cell)}</td>' for cell in row.cells
    )
    bars = "".join(
        f'<span style="display:inline-block;height:7px;width:{width}px;background-color:{color}"></span>'
        for width, color in _bars(row)
        if width
    )
    note = _note(row)
    opacity = 1 if code and row.bar is not None else 0.65
    wrap = "white-space:pre" if code or len(note) <= _SHORT_NOTE else _NOTE
    return (
        f'<tr{border}><td style="{_LABEL} {row.level * 14}px">{escape(row.label)}</td>{cells}'
        f'<td style="text-align:left;padding:1px 8px 1px 0;white-space:nowrap">{bars}</td>'
        f'<td style="text-align:left;padding:1px 0;opacity:{opacity};{wrap}">{escape(note)}</td></tr>'
    )


def _note(row: TableRow) -> str:
    return row.note if row.grade is None or row.grade.trust == "exact" else str(row.grade)


def _bars(row: TableRow) -> list[tuple[int, str]]:
    dark = max(round(BAR_PIXELS * row.bar), 1) if row.bar else 0
    light = max(round(BAR_PIXELS * row.light_bar) - dark, 0)
    return [(dark, BAR_COLORS["tensors"]), (light, BAR_COLORS["cache"])]


def tables_bundle(tables: Sequence[Table]) -> dict[str, str]:
    return {"text/plain": text_tables(tables), "text/html": html_tables(tables)}


class TableRepr:
    __slots__ = ()

    def tables(self) -> list[Table]:
        """Return the tables to display."""
        raise NotImplementedError

    def __str__(self) -> str:
        return text_tables(self.tables())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 (IPython's signature)
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return html_tables(self.tables())
