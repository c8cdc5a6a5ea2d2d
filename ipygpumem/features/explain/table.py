"""A waterfall as text and as small HTML: each part begins where the one above it ended.

Bars are blocks of colour, not SVG: an untrusted notebook and GitHub drop the latter and keep the former.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import amount, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ipygpumem.features.explain.model import Step, Waterfall

__all__ = ["html_waterfalls", "text_waterfalls"]

_CELLS = 30
_WIDEST = 44
"""Characters of a label."""
_LEAST = 1
"""Percent of the column for the thinnest bar."""
_COLOURS = {
    "total": "#6b7280",
    "driver": "#9ca3af",
    "others": "#a78bfa",
    "unattributed": "#d8b4fe",
    "outside": "#f59e0b",
    "cache": "#93c5fd",
    "tensors": "#3b82f6",
}
_GRADES = {"bound": "at most", "device": "whole card", "sampled": "at least"}
_VISIBLE = (1 << 20) // 20


@dataclass(frozen=True, slots=True)
class _Row:
    """One step with its bar from ``start`` to ``end``, parts of the whole from 0 to 1; None where there is none."""

    step: Step
    text: str
    start: float | None
    end: float | None
    last: bool


def _rows(fall: Waterfall) -> Iterator[_Row]:
    whole = max((step.amount or 0 for step in fall.totals), default=0)
    level: int | None = None
    for i, step in enumerate(fall.steps):
        last = i == len(fall.steps) - 1
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
        start, end = (min(part / whole, 1) if whole else 0 for part in ends)
        yield _Row(step, _amount(step), start, end, last)


def _amount(step: Step) -> str:
    if step.kind == "total":
        return size(step.amount or 0)
    text = size(abs(step.amount or 0)) if abs(step.amount or 0) >= _VISIBLE else amount(abs(step.amount or 0))
    return f"{'+' if (step.amount or 0) < 0 else '-'} {text}"


def _title(fall: Waterfall) -> str:
    return f"{fall.device}, {fall.label}" if fall.label else fall.device


def text_waterfalls(falls: Iterable[Waterfall], note: str = "") -> str:
    """Each device in words, then as steps with bars, the trust in each and what can be done about it."""
    return "\n\n".join([*([note] if note else []), *(_text(fall) for fall in falls)])


def _text(fall: Waterfall) -> str:
    rows = list(_rows(fall))
    labels = [("" if row.step.kind == "total" else "  ") + _clipped(row.step.label) for row in rows]
    width, wide = max(map(len, labels)), max(len(row.text) for row in rows)
    grade_wide = max(len(_grade(row.step)) for row in rows)
    lines = [_title(fall), fall.words, ""]
    for label, row in zip(labels, rows, strict=True):
        line = f"{label.ljust(width)}  {row.text.rjust(wide)}  {_bar(row)}  {_grade(row.step).ljust(grade_wide)}"
        lines.append(f"{line}  {row.step.todo}".rstrip())
    reasons = [f"{row.step.label}: {row.step.grade}" for row in rows if row.step.grade.trust != "exact"]
    remarks = [f"{row.step.label}: {row.step.remark}" for row in rows if row.step.remark]
    return "\n".join([*lines, "", *dict.fromkeys(remarks), *dict.fromkeys(reasons), *fall.notes]).rstrip()


def _bar(row: _Row) -> str:
    if row.start is None or row.end is None or row.start == row.end:
        return " " * _CELLS
    first = min(round(row.start * _CELLS), _CELLS - 1)
    count = max(round(row.end * _CELLS) - first, 1)
    return (" " * first + ("█" if row.step.kind == "total" else "▒") * count).ljust(_CELLS)


def _grade(step: Step) -> str:
    return _GRADES.get(step.grade.trust, step.grade.trust)


def _clipped(label: str) -> str:
    """A label of a length that leaves room for the rest: a process's name may be long."""
    return label if len(label) <= _WIDEST else f"{label[: _WIDEST - 1]}…"


_HTML = """\
<div style="font-family:monospace;font-size:90%;margin:4px 0;overflow-x:auto">
{%- if note %}<div style="margin:0 0 4px 0">{{ note }}</div>{% endif %}
{%- for fall in falls %}
<div style="margin:0 0 2px 0"><b>{{ fall.title }}</b></div>
<div style="margin:0 0 6px 0;white-space:normal">{{ fall.words }}</div>
<table style="border-collapse:collapse;margin:0 0 6px 0">
{%- for row in fall.rows %}
<tr{% if row.total %} style="border-top:1px solid #9ca3af;font-weight:bold"{% endif %}>\
<td style="text-align:left;padding:1px 12px 1px {{ 0 if row.total else 14 }}px;overflow-wrap:anywhere;min-width:8em">\
{{ row.label }}</td>\
<td style="text-align:right;padding:1px 12px 1px 0;white-space:nowrap">{{ row.text }}</td>\
<td style="text-align:left;padding:1px 12px 1px 0;white-space:nowrap;opacity:0.65;font-weight:normal" \
title="{{ row.reason }}">{{ row.grade }}</td>\
<td style="text-align:left;padding:0 12px 0 0;white-space:nowrap;width:20%;min-width:60px">\
<span style="display:inline-block;height:11px;width:{{ row.before }}%"></span>\
<span style="display:inline-block;height:11px;width:{{ row.bar }}%;background-color:{{ row.colour }}" \
title="{{ row.hint }}"></span></td>\
<td style="text-align:left;padding:1px 0;opacity:0.8;font-weight:normal;overflow-wrap:anywhere;min-width:7em">\
{{ row.todo }}</td></tr>
{%- endfor %}
</table>
{%- for line in fall.notes %}
<div style="opacity:0.75{% if loop.last %};margin-bottom:8px{% endif %}">{{ line }}</div>
{%- endfor %}
{%- endfor %}
</div>"""


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(_HTML)


def html_waterfalls(falls: Iterable[Waterfall], note: str = "") -> str:
    """The same as a table a device; hovering a grade tells its reason."""
    shown = [
        {
            "title": _title(fall),
            "words": fall.words,
            "rows": [_cells(row) for row in _rows(fall)],
            "notes": [*dict.fromkeys(_reasons(fall)), *fall.notes],
        }
        for fall in falls
    ]
    text: str = _template().render(falls=shown, note=note)
    return text


def _reasons(fall: Waterfall) -> Iterator[str]:
    """What has to be read without hovering."""
    for step in fall.steps:
        if step.grade.trust in {"unknown", "device"}:
            yield f"{step.label}: {step.grade}"
        if step.remark:
            yield f"{step.label}: {step.remark}"


def _cells(row: _Row) -> dict[str, Any]:
    step, bar, before = row.step, 0.0, 0.0
    if row.start is not None and row.end is not None and row.end > row.start:
        bar = max((row.end - row.start) * 100, _LEAST)
        before = min(row.start * 100, 100 - bar)
    return {
        "label": _clipped(step.label),
        "text": row.text,
        "total": step.kind == "total",
        "bar": round(bar, 1),
        "before": round(before, 1),
        "colour": _COLOURS["tensors" if row.last else step.kind],
        "hint": f"{step.label} {row.text}",
        "grade": _grade(step),
        "reason": str(step.grade),
        "todo": step.todo,
    }
