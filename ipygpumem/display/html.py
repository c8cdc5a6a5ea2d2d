"""Facts as small HTML: inline style only, no script, style, svg or iframe element, so that it shows everywhere.

An untrusted notebook, nbconvert and GitHub keep inline styles and drop the rest. Colours are the reader's own but for
the bar, whose four read on white and on black.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ipygpumem.display.columns import footer, notes, rows
from ipygpumem.features.outside.table import outside_sentences
from ipygpumem.features.processes.table import other_process_sentences

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.core.report import Report
    from ipygpumem.display.table import Table

__all__ = ["html_line", "html_tables"]

_BAR_PIXELS = 96
_LONG = 48
"""Characters of a remark that is wrapped: a command line."""
_BAR_COLOURS = {"tensors": "#3b82f6", "cache": "#93c5fd", "outside PyTorch": "#f59e0b", "other processes": "#9ca3af"}
_FIGURE_COLOURS = {"held": "#3b82f6", "peak": "#3b82f6", "outside": "#d97706", "outside_peak": "#d97706"}

_USED_TITLE = "what programs have of the card, without what the driver keeps for itself: {}"

_LINE = """\
<div style="font-family:monospace;font-size:90%;line-height:1.5;margin:2px 0">
{%- for row in rows %}
<div>
{%- if row.bar %}<span style="display:inline-block;width:{{ width }}px;height:9px;border:1px solid #9ca3af;\
margin-right:8px;overflow:hidden;white-space:nowrap" title="{{ row.bar_title }}">
{%- for part in row.bar %}<span style="display:inline-block;height:9px;width:{{ part.width }}px;\
background-color:{{ part.colour }}"></span>{% endfor %}</span>{% endif -%}
<b>{{ row.name }}</b>&ensp;
{%- for column in row.columns %}<span title="{{ column.title }}"
{%- if column.colour %} style="border-bottom:2px solid {{ column.colour }}"{% endif %}>{{ column.text }}</span>\
 &middot; \
{% endfor %}<span title="{{ row.used_title }}">{{ row.used }}</span>\
{% if loop.first %}&emsp;<span style="opacity:0.65">{{ footer }}</span>{% endif %}</div>
{%- endfor %}
{%- for note in notes %}
<div style="opacity:0.75">{{ note }}</div>
{%- endfor %}
</div>"""

_TABLES = """\
<div style="font-family:monospace;font-size:90%;margin:4px 0;overflow-x:auto">
{%- for table in tables %}
<table style="border-collapse:collapse;margin:0 0 8px 0">
<tr><th style="text-align:left;padding:1px 12px 1px 0">{{ table.title }}</th>
{%- for name in table.header %}<th style="text-align:right;padding:1px 12px;font-weight:normal;opacity:0.65">\
{{ name }}</th>{% endfor %}<th></th></tr>
{%- for row in table.rows %}
<tr{% if row.level == 0 %} style="border-top:1px solid #9ca3af"{% endif %}>\
<td style="text-align:left;padding:1px 12px 1px {{ row.level * 14 }}px">{{ row.label }}</td>
{%- for cell in row.cells %}<td style="text-align:right;padding:1px 12px;white-space:nowrap">{{ cell }}</td>
{%- endfor -%}
<td style="text-align:left;padding:1px 0;{% if row.remark|length > long %}overflow-wrap:anywhere;min-width:12em\
{% else %}white-space:nowrap{% endif %}">\
{%- if row.bar %}<span style="display:inline-block;height:7px;width:{{ row.bar }}px;background-color:{{ bar_colour }};\
margin-right:8px"></span>{% endif %}<span style="opacity:0.65">{{ row.remark }}</span></td></tr>
{%- endfor %}
</table>
{%- for remark in table.remarks %}
<div style="opacity:0.75{% if loop.last %};margin-bottom:8px{% endif %}">{{ remark }}</div>
{%- endfor %}
{%- endfor %}
</div>"""


@lru_cache(maxsize=2)
def _template(text: str) -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(text)


def html_line(report: Report) -> str:
    """The automatic report, with a bar for each card; hovering a figure tells its grade."""
    shown = [
        {
            "name": row.name,
            "used": " · ".join(part for part in ("nothing moved" if row.still else "", row.used) if part),
            "used_title": "" if row.device is None else _USED_TITLE.format(row.device.grades["used"]),
            "columns": [
                {"text": one.text, "title": str(one.grade), "colour": _FIGURE_COLOURS.get(one.kind)}
                for one in row.columns
            ],
            **(_bar(row.device.after) if row.device is not None else {}),
        }
        for row in rows(report)
    ]
    said = [*outside_sentences(report), *other_process_sentences(report), *notes(report)]
    text: str = _template(_LINE).render(rows=shown, footer=footer(report), notes=said, width=_BAR_PIXELS)
    return text


def _bar(reading: DeviceReading) -> dict[str, Any]:
    """The card as a bar: what of its capacity is whose."""
    capacity = reading.capacity
    if not capacity or reading.in_use is None:
        return {}
    amounts = {
        "tensors": reading.allocated or 0,
        "cache": (reading.cached or 0) + (reading.pending or 0),
        "outside PyTorch": max(reading.outside or 0, 0),
        "other processes": (reading.others or 0) + max(reading.unattributed or 0, 0),
    }
    # figures of two instants, or of a list that counts something twice, may come to more than the card
    whole = max(capacity, sum(amounts.values()))
    parts = [
        {"width": round(_BAR_PIXELS * amount / whole, 1), "colour": _BAR_COLOURS[name]}
        for name, amount in amounts.items()
        if amount > 0
    ]
    title = ", ".join(f"{name} {amount / whole:.1%}" for name, amount in amounts.items())
    return {"bar": parts, "bar_title": f"of this card: {title}"}


def html_tables(tables: list[Table]) -> str:
    """Full tables; what is not exact has its reason beside it."""
    shown = [
        {
            "title": table.title,
            "header": table.header,
            "remarks": table.remarks,
            "rows": [
                {
                    "label": row.label.replace("  ", " \u00a0"),  # columns inside a label stay columns
                    "cells": row.cells,
                    "level": row.level,
                    "remark": row.remark if row.grade is None or row.grade.trust == "exact" else str(row.grade),
                    "bar": row.bar and max(round(_BAR_PIXELS * min(row.bar, 1)), 1),
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]
    text: str = _template(_TABLES).render(tables=shown, long=_LONG, bar_colour=_BAR_COLOURS["tensors"])
    return text
