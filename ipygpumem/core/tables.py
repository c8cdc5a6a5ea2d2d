"""Tables and their text and HTML representations.

The HTML uses inline styles, but no script, style, svg or iframe elements, which untrusted notebooks, nbconvert and
GitHub remove. Text inherits the page's color. Bars are visible on white and black backgrounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ipygpumem.core.reading import Accuracy
from ipygpumem.core.text import printable
from ipygpumem.core.units import VISIBLE

_BAR_CELLS = 10
_CODE_WIDTH = 100
_MAX_WIDTH = 200
BAR_PIXELS = 96
BAR_COLORS = {"tensors": "#3b82f6", "cache": "#93c5fd", "outside PyTorch": "#f59e0b", "other processes": "#9ca3af"}

_TABLES = """\
<div style="font-family:monospace;font-size:90%;margin:4px 0;overflow-x:auto">
{%- for table in tables %}
<table style="border-collapse:collapse;margin:0 0 8px 0">
<tr><th style="text-align:left;padding:1px 12px 1px 0">{{ table.title }}</th>
{%- for name in table.header %}<th style="text-align:right;padding:1px 12px;font-weight:normal;opacity:0.65">\
{{ name }}</th>{% endfor %}<th></th><th></th></tr>
{%- for row in table.rows %}
<tr{% if row.level == 0 %} style="border-top:1px solid #9ca3af"{% endif %}>\
<td style="text-align:left;padding:1px 12px 1px {{ row.level * 14 }}px;white-space:pre-wrap">{{ row.label }}</td>
{%- for cell in row.cells %}<td style="text-align:right;padding:1px 12px;white-space:nowrap">{{ cell }}</td>
{%- endfor -%}
<td style="text-align:left;padding:1px 8px 1px 0;white-space:nowrap">
{%- for width, color in row | bars if width %}<span style="display:inline-block;height:7px;width:{{ width }}px;\
background-color:{{ color }}"></span>{% endfor -%}
</td><td style="text-align:left;padding:1px 0;opacity:{{ 1 if table.code and row.bar is not none else 0.65 }};\
{% if table.code or (row | note | length) <= 48 %}white-space:pre{% else %}overflow-wrap:anywhere;min-width:12em\
{% endif %}">{{ row | note }}</td></tr>
{%- endfor %}
</table>
{%- for note in table.notes %}
<div style="opacity:0.75{% if loop.last %};margin-bottom:8px{% endif %}">{{ note }}</div>
{%- endfor %}
{%- endfor %}
</div>"""


@dataclass(frozen=True, slots=True)
class TableRow:
    """Row of a table.

    Attributes:
        grade: Accuracy of the values; None if it is not shown.
        bar: Length of the row's bar, from 0 to 1; None for a row without a bar.
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
    """Table with notes below the rows. ``code`` is True if the rows' notes are source code, which is not wrapped."""

    title: str
    header: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    code: bool = False


def is_visible(*changes: int | None) -> bool:
    """Return whether any of the changes (in bytes) is large enough not to be printed as 0.0 MiB."""
    return any(change is not None and abs(change) >= VISIBLE for change in changes)


def text_tables(tables: Iterable[Table]) -> str:
    """Render tables as aligned text. Values that are not exact are marked with ``~`` and explained below the table."""
    return "\n\n".join(map(_text_table, tables))


def _printable_table(table: Table) -> Table:
    rows = (
        replace(row, label=_clip(printable(row.label)), cells=tuple(map(_clip, row.cells)), note=printable(row.note))
        for row in table.rows
    )
    return replace(table, title=printable(table.title), rows=tuple(rows), notes=tuple(map(printable, table.notes)))


def _clip(text: str) -> str:
    """Limit the width of a column. All rows are padded to this width, and names can have any length."""
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


@lru_cache(maxsize=8)
def template(source: str) -> Callable[..., str]:
    """Compile a Jinja template that escapes all values, and return the function that renders it."""
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    environment.filters |= {"bars": _bars, "note": _note}
    render: Callable[..., str] = environment.from_string(source).render
    return render


def html_tables(tables: Iterable[Table]) -> str:
    """Render tables as HTML. Rows with values that are not exact end with the reason."""
    return template(_TABLES)(tables=map(_printable_table, tables))


def _note(row: TableRow) -> str:
    return row.note if row.grade is None or row.grade.trust == "exact" else str(row.grade)


def _bars(row: TableRow) -> list[tuple[int, str]]:
    dark = max(round(BAR_PIXELS * min(row.bar, 1)), 1) if row.bar else 0
    light = max(round(BAR_PIXELS * min(row.light_bar, 1)) - dark, 0)
    return [(dark, BAR_COLORS["tensors"]), (light, BAR_COLORS["cache"])]


def tables_bundle(tables: Sequence[Table]) -> dict[str, str]:
    """Render tables as a MIME bundle with text and HTML."""
    return {"text/plain": text_tables(tables), "text/html": html_tables(tables)}


class TableRepr:
    """Base class of objects that are displayed as tables."""

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
