"""Waterfalls as text and as HTML, in which each bar begins where the one above it ends.

HTML bars are colored blocks instead of SVG, which untrusted notebooks and GitHub remove.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.tables import template
from ipygpumem.core.units import VISIBLE, precise_size, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ipygpumem.features.explain.model import Step, Waterfall

__all__ = ["html_waterfalls", "text_waterfalls"]

_BAR_CELLS = 30
_MAX_LABEL = 44
_MIN_BAR = 1
"""Width of the narrowest bar in percent."""
_COLORS = {
    "total": "#6b7280",
    "driver": "#9ca3af",
    "others": "#a78bfa",
    "unattributed": "#d8b4fe",
    "outside": "#f59e0b",
    "cache": "#93c5fd",
    "tensors": "#3b82f6",
}
_GRADES = {"bound": "at most", "device": "whole device", "sampled": "at least"}


@dataclass(frozen=True, slots=True)
class _Row:
    """A step with its bar from ``start`` to ``end``, as fractions of the largest total; None for no bar."""

    step: Step
    text: str
    start: float | None
    end: float | None
    last: bool

    @property
    def is_total(self) -> bool:
        return self.step.kind == "total"

    @property
    def label(self) -> str:
        label = self.step.label
        return label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 1]}…"

    @property
    def grade(self) -> str:
        return _GRADES.get(self.step.grade.trust, self.step.grade.trust)


def _rows(waterfall: Waterfall) -> Iterator[_Row]:
    maximum = max((step.amount or 0 for step in waterfall.totals), default=0)
    level: int | None = None
    for i, step in enumerate(waterfall.steps):
        last = i == len(waterfall.steps) - 1
        if step.amount is None:
            level = None if step.kind == "total" else level
            yield _Row(step, "unknown", None, None, last)
            continue
        if step.kind == "total":
            level = step.amount
            ends = (0, level)
        elif level is None:
            ends = (0, 0)
        else:
            level -= step.amount
            ends = (max(level, 0), max(level + step.amount, 0))
        start, end = (min(nbytes / maximum, 1) if maximum else 0 for nbytes in ends)
        yield _Row(step, _size(step.kind, step.amount), start, end, last)


def _size(kind: str, nbytes: int) -> str:
    if kind == "total":
        return size(nbytes)
    text = size(abs(nbytes)) if abs(nbytes) >= VISIBLE else precise_size(abs(nbytes))
    return f"{'+' if nbytes < 0 else '-'} {text}"


def _title(waterfall: Waterfall) -> str:
    return f"{waterfall.device}, {waterfall.label}" if waterfall.label else waterfall.device


def text_waterfalls(waterfalls: Iterable[Waterfall], note: str = "") -> str:
    """Return each waterfall as a summary and steps with bars, accuracy and advice."""
    return "\n\n".join([*([note] if note else []), *(_text(waterfall) for waterfall in waterfalls)])


def _text(waterfall: Waterfall) -> str:
    rows = list(_rows(waterfall))
    labels = [row.label if row.is_total else f"  {row.label}" for row in rows]
    label_width, size_width = max(map(len, labels)), max(len(row.text) for row in rows)
    grade_width = max(len(row.grade) for row in rows)
    lines = [_title(waterfall), waterfall.summary, ""]
    for label, row in zip(labels, rows, strict=True):
        columns = (label.ljust(label_width), row.text.rjust(size_width), _bar(row), row.grade.ljust(grade_width))
        lines.append("  ".join([*columns, row.step.todo]).rstrip())
    remarks = [f"{row.step.label}: {row.step.remark}" for row in rows if row.step.remark]
    reasons = [f"{row.step.label}: {row.step.grade}" for row in rows if row.step.grade.trust != "exact"]
    return "\n".join([*lines, "", *dict.fromkeys(remarks), *dict.fromkeys(reasons), *waterfall.notes]).rstrip()


def _bar(row: _Row) -> str:
    if row.start is None or row.end is None or row.start == row.end:
        return " " * _BAR_CELLS
    first = min(round(row.start * _BAR_CELLS), _BAR_CELLS - 1)
    count = max(round(row.end * _BAR_CELLS) - first, 1)
    return (" " * first + ("█" if row.is_total else "▒") * count).ljust(_BAR_CELLS)


_HTML = """\
<div style="font-family:monospace;font-size:90%;margin:4px 0;overflow-x:auto">
{%- if note %}<div style="margin:0 0 4px 0">{{ note }}</div>{% endif %}
{%- for waterfall in waterfalls %}
<div style="margin:0 0 2px 0"><b>{{ waterfall.title }}</b></div>
<div style="margin:0 0 6px 0;white-space:normal">{{ waterfall.summary }}</div>
<table style="border-collapse:collapse;margin:0 0 6px 0">
{%- for row in waterfall.rows %}
<tr{% if row.total %} style="border-top:1px solid #9ca3af;font-weight:bold"{% endif %}>\
<td style="text-align:left;padding:1px 12px 1px {{ 0 if row.total else 14 }}px;overflow-wrap:anywhere;min-width:8em">\
{{ row.label }}</td>\
<td style="text-align:right;padding:1px 12px 1px 0;white-space:nowrap">{{ row.text }}</td>\
<td style="text-align:left;padding:1px 12px 1px 0;white-space:nowrap;opacity:0.65;font-weight:normal" \
title="{{ row.reason }}">{{ row.grade }}</td>\
<td style="text-align:left;padding:0 12px 0 0;white-space:nowrap;width:20%;min-width:60px">\
<span style="display:inline-block;height:11px;width:{{ row.before }}%"></span>\
<span style="display:inline-block;height:11px;width:{{ row.bar }}%;background-color:{{ row.color }}" \
title="{{ row.tooltip }}"></span></td>\
<td style="text-align:left;padding:1px 0;opacity:0.8;font-weight:normal;overflow-wrap:anywhere;min-width:7em">\
{{ row.todo }}</td></tr>
{%- endfor %}
</table>
{%- for line in waterfall.notes %}
<div style="opacity:0.75{% if loop.last %};margin-bottom:8px{% endif %}">{{ line }}</div>
{%- endfor %}
{%- endfor %}
</div>"""


def html_waterfalls(waterfalls: Iterable[Waterfall], note: str = "") -> str:
    """Return each waterfall as a table; the reason of an accuracy is its tooltip."""
    values = [
        {
            "title": _title(waterfall),
            "summary": waterfall.summary,
            "rows": [_html_row(row) for row in _rows(waterfall)],
            "notes": [*dict.fromkeys(_html_notes(waterfall)), *waterfall.notes],
        }
        for waterfall in waterfalls
    ]
    text: str = template(_HTML).render(waterfalls=values, note=note)
    return text


def _html_notes(waterfall: Waterfall) -> Iterator[str]:
    """Yield what must be visible without tooltips."""
    for step in waterfall.steps:
        if step.grade.trust in {"unknown", "device"}:
            yield f"{step.label}: {step.grade}"
        if step.remark:
            yield f"{step.label}: {step.remark}"


def _html_row(row: _Row) -> dict[str, Any]:
    step, bar, before = row.step, 0.0, 0.0
    if row.start is not None and row.end is not None and row.end > row.start:
        bar = max((row.end - row.start) * 100, _MIN_BAR)
        before = min(row.start * 100, 100 - bar)
    return {
        "label": row.label,
        "text": row.text,
        "total": row.is_total,
        "bar": round(bar, 1),
        "before": round(before, 1),
        "color": _COLORS["tensors" if row.last else step.kind],
        "tooltip": f"{step.label} {row.text}",
        "grade": row.grade,
        "reason": str(step.grade),
        "todo": step.todo,
    }
