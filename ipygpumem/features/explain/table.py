"""Waterfall charts as text and HTML, in which each bar starts where the previous bar ends.

In HTML, the bars are colored elements because GitHub and, in untrusted notebooks, Jupyter remove SVG images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from ipygpumem.core.tables import HTML_START, html_notes
from ipygpumem.core.units import precise_size, size
from ipygpumem.features.explain.model import DeviceExplanation, ExplanationStep

_BAR_CELLS = 30
_MAX_LABEL = 52
_COLORS = {
    "total": "#6b7280",
    "driver": "#9ca3af",
    "others": "#a78bfa",
    "unattributed": "#d8b4fe",
    "outside": "#f59e0b",
    "cache": "#93c5fd",
    "tensors": "#3b82f6",
}
_TRUST = {"bound": "at most", "device": "whole device", "sampled": "at least"}


@dataclass(frozen=True, slots=True)
class _WaterfallRow:
    step: ExplanationStep
    label: str
    text: str
    color: str
    start: float
    end: float

    @property
    def is_total(self) -> bool:
        return self.step.kind == "total"

    @property
    def trust(self) -> str:
        return _TRUST.get(self.step.grade.trust, self.step.grade.trust)

    @property
    def grade(self) -> str:
        return f"{self.trust} ({self.step.grade.reason})" if self.step.grade.reason else self.trust

    @property
    def percent(self) -> float:
        return max((self.end - self.start) * 100, 1) if self.end > self.start else 0.0


def _rows(waterfall: DeviceExplanation) -> Iterator[_WaterfallRow]:
    maximum = max((step.amount or 0 for step in waterfall.totals), default=0)
    remaining: int | None = None
    for step in waterfall.steps:
        ends = (0, 0)
        if step.kind == "total":
            remaining = step.amount
            ends = (0, remaining or 0)
        elif remaining is not None and step.amount is not None:
            remaining -= step.amount
            ends = (remaining, remaining + step.amount)
        start, end = (min(max(nbytes / maximum, 0), 1) if maximum else 0 for nbytes in ends)
        label = step.label if len(step.label) <= _MAX_LABEL else f"{step.label[: _MAX_LABEL - 1]}…"
        text = "unknown" if step.amount is None else _size(step.kind, step.amount)
        color = _COLORS["tensors" if step is waterfall.steps[-1] else step.kind]
        yield _WaterfallRow(step, label, text, color, start, end)


def _size(kind: str, nbytes: int) -> str:
    if kind == "total":
        return size(nbytes)
    return f"{'+' if nbytes < 0 else '-'} {precise_size(abs(nbytes))}"


def text_waterfalls(waterfalls: Iterable[DeviceExplanation], note: str = "") -> str:
    return "\n\n".join([*([note] if note else []), *(_text(waterfall) for waterfall in waterfalls)])


def _text(waterfall: DeviceExplanation) -> str:
    rows = list(_rows(waterfall))
    labels = [row.label if row.is_total else f"  {row.label}" for row in rows]
    label_width, size_width = max(map(len, labels)), max(len(row.text) for row in rows)
    trust_width = max(len(row.trust) for row in rows)
    lines = [waterfall.title, waterfall.summary, ""]
    for label, row in zip(labels, rows, strict=True):
        columns = (label.ljust(label_width), row.text.rjust(size_width), _bar(row), row.trust.ljust(trust_width))
        lines.append("  ".join([*columns, row.step.todo]).rstrip())
    notes = [f"{row.step.label}: {row.step.note}" for row in rows if row.step.note]
    reasons = [f"{row.step.label}: {row.grade}" for row in rows if row.trust != "exact"]
    return "\n".join([*lines, "", *dict.fromkeys(notes), *dict.fromkeys(reasons), *waterfall.notes]).rstrip()


def _bar(row: _WaterfallRow) -> str:
    if row.start == row.end:
        return " " * _BAR_CELLS
    first = min(round(row.start * _BAR_CELLS), _BAR_CELLS - 1)
    count = max(round(row.end * _BAR_CELLS) - first, 1)
    return (" " * first + ("█" if row.is_total else "▒") * count).ljust(_BAR_CELLS)


def html_waterfalls(waterfalls: Iterable[DeviceExplanation], note: str = "") -> str:
    lines = [HTML_START]
    if note:
        lines.append(f'<div style="margin:0 0 4px 0">{escape(note)}</div>')
    for waterfall in waterfalls:
        lines += [
            f'<div style="margin:0 0 2px 0"><b>{escape(waterfall.title)}</b></div>',
            f'<div style="margin:0 0 6px 0;white-space:normal">{escape(waterfall.summary)}</div>',
            '<table style="border-collapse:collapse;margin:0 0 6px 0">',
            *map(_html_row, _rows(waterfall)),
            "</table>",
            *html_notes([*dict.fromkeys(_html_notes(waterfall)), *waterfall.notes]),
        ]
    return "\n".join([*lines, "</div>"])


def _html_row(row: _WaterfallRow) -> str:
    style, indent = ("border-top:1px solid #9ca3af;font-weight:bold", 0) if row.is_total else ("", 14)
    start, width = round(min(row.start * 100, 100 - row.percent), 1), round(row.percent, 1)
    title = escape(f"{row.step.label} {row.text}")
    return (
        f'<tr style="{style}">'
        f'<td style="text-align:left;padding:1px 12px 1px {indent}px;overflow-wrap:anywhere;min-width:8em">'
        f"{escape(row.label)}</td>"
        f'<td style="text-align:right;padding:1px 12px 1px 0;white-space:nowrap">{row.text}</td>'
        f'<td style="text-align:left;padding:1px 12px 1px 0;white-space:nowrap;opacity:0.65;font-weight:normal" '
        f'title="{escape(row.grade)}">{row.trust}</td>'
        f'<td style="text-align:left;padding:0 12px 0 0;white-space:nowrap;width:20%;min-width:60px">'
        f'<span style="display:inline-block;height:11px;width:{start}%"></span>'
        f'<span style="display:inline-block;height:11px;width:{width}%;background-color:{row.color}" '
        f'title="{title}"></span></td>'
        f'<td style="text-align:left;padding:1px 0;opacity:0.8;font-weight:normal;overflow-wrap:anywhere;'
        f'min-width:7em">{escape(row.step.todo)}</td></tr>'
    )


def _html_notes(waterfall: DeviceExplanation) -> Iterator[str]:
    for row in _rows(waterfall):
        if row.step.grade.trust in {"unknown", "device"}:
            yield f"{row.step.label}: {row.grade}"
        if row.step.note:
            yield f"{row.step.label}: {row.step.note}"
