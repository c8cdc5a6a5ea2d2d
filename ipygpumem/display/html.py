"""Tables as HTML.

Inline styles only, and no script, style, svg or iframe elements: untrusted notebooks, nbconvert and GitHub remove
everything else. Text has the reader's own colors; the colors of bars are readable on white and on black.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.display.table import Table

__all__ = ["BAR_COLORS", "BAR_PIXELS", "html_tables", "template"]

BAR_PIXELS = 96
BAR_COLORS = {"tensors": "#3b82f6", "cache": "#93c5fd", "outside PyTorch": "#f59e0b", "other processes": "#9ca3af"}
_LONG_REMARK = 48
"""Longer remarks, in characters, are wrapped, as command lines are."""

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
{%- if row.bar %}<span style="display:inline-block;height:7px;width:{{ row.bar }}px;background-color:{{ bar_color }};\
margin-right:8px"></span>{% endif %}<span style="opacity:0.65">{{ row.remark }}</span></td></tr>
{%- endfor %}
</table>
{%- for remark in table.remarks %}
<div style="opacity:0.75{% if loop.last %};margin-bottom:8px{% endif %}">{{ remark }}</div>
{%- endfor %}
{%- endfor %}
</div>"""


@lru_cache(maxsize=8)
def template(source: str) -> Any:
    """Compile a Jinja template that escapes all values."""
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(source)


def html_tables(tables: Iterable[Table]) -> str:
    """Tables as HTML. A figure that is not exact has the reason next to it."""
    shown = [
        {
            "title": table.title,
            "header": table.header,
            "remarks": table.remarks,
            "rows": [
                {
                    "label": row.label.replace("  ", " \u00a0"),  # HTML would collapse the spaces of aligned labels
                    "cells": row.cells,
                    "level": row.level,
                    "remark": row.remark if row.grade is None or row.grade.trust == "exact" else str(row.grade),
                    "bar": row.bar and max(round(BAR_PIXELS * min(row.bar, 1)), 1),
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]
    html: str = template(_TABLES).render(tables=shown, long=_LONG_REMARK, bar_color=BAR_COLORS["tensors"])
    return html
