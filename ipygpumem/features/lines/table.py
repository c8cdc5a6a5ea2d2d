"""Source code line by line, with bars: as text, and as small HTML."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ipygpumem.features.lines.model import DeviceLines, LineUse

__all__ = ["html_listings", "text_listings"]

_HEADER = ("held after", "peak", "allocated", "freed", "kept")
_REMARK = (
    "held after and peak: levels of the device; allocated, freed and kept (there at the end): what the line did, with "
    "what it called"
)
_WIDTH = 100
_BAR_CELLS = 10
_BAR_PIXELS = 80
_FULL, _LIGHT = "█", "░"
_HELD_COLOUR, _PEAK_COLOUR = "#3b82f6", "#93c5fd"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line, or (without a number) a heading or a sum. ``held`` and ``peak`` are parts of the bar's length."""

    number: int | None
    cells: tuple[str, ...]
    source: str
    held: float = 0.0
    peak: float = 0.0
    kind: str = "line"


def text_listings(devices: Iterable[DeviceLines]) -> str:
    """One listing a device; a bar is the level after the line, its light end goes on to the peak."""
    return "\n\n".join(_text(device) for device in devices)


def _text(device: DeviceLines) -> str:
    rows = list(_rows(device))
    widths = [max(len(name), *(len(row.cells[i]) for row in rows)) for i, name in enumerate(_HEADER)]
    digits = max(len(str(row.number or "")) for row in rows)
    head = "  ".join(["line".rjust(max(digits, 4)), *(name.rjust(w) for name, w in zip(_HEADER, widths, strict=True))])
    lines = [_title(device), head]
    for row in rows:
        if row.kind == "title":
            lines.append(row.source)
            continue
        number = "" if row.number is None else str(row.number)
        cells = (cell.rjust(width) for cell, width in zip(row.cells, widths, strict=True))
        text = row.source if len(row.source) <= _WIDTH else row.source[: _WIDTH - 1] + "…"
        lines.append("  ".join([number.rjust(max(digits, 4)), *cells, _text_bar(row), text]).rstrip())
    return "\n".join([*lines, _REMARK])


def _text_bar(row: _Row) -> str:
    held = round(row.held * _BAR_CELLS)
    return (_FULL * held + _LIGHT * (round(row.peak * _BAR_CELLS) - held)).ljust(_BAR_CELLS)


def _title(device: DeviceLines) -> str:
    return f"{device.device} by line of code, requested bytes; {amount(device.before)} before"


def _rows(device: DeviceLines) -> Iterator[_Row]:
    scale = max(device.peak_requested, 1)
    for listing in device.listings:
        yield _Row(None, ("",) * len(_HEADER), listing.title, kind="title")
        for line in listing.lines:
            yield _row(line.number, line.text, line.use, scale)
    yield _Row(None, ("",) * len(_HEADER), "all together", kind="title")
    if device.elsewhere is not None:
        yield _row(None, "(in none of these lines)", device.elsewhere, scale)
    for label, end, peak in (
        ("(requested at the end, at the peak)", device.end_requested, device.peak_requested),
        ("(rounding by the allocator)", device.end_rounding, device.peak_rounding),
        ("(freed, wait for a stream)", device.end_pending, device.peak_pending),
        ("(allocated: the counter)", device.end_allocated, device.peak_allocated),
    ):
        if end or peak or "wait" not in label:
            cells = (amount(end), "unknown" if peak is None else amount(peak), "", "", "")
            yield _Row(None, cells, label, kind="total" if "counter" in label else "sum")


def _row(number: int | None, text: str, use: LineUse | None, scale: int) -> _Row:
    if use is None:
        return _Row(number, ("",) * len(_HEADER), text, kind="still")
    cells = (
        _level(use.after),
        _level(use.peak),
        _many(use.allocated, use.allocations),
        _many(use.freed, use.frees),
        amount(use.kept) if use.kept else "",
    )
    held = (use.after or 0) / scale
    return _Row(number, cells, text, held, max(held, (use.peak or 0) / scale), "line" if number else "sum")


def _level(level: int | None) -> str:
    return "" if level is None else amount(level)


def _many(total: int, count: int) -> str:
    if not count:
        return ""
    return amount(total) if count == 1 else f"{amount(total)} ×{count:,}"  # noqa: RUF001 (so many times)


_HTML = """\
<div style="font-family:monospace;font-size:90%;margin:4px 0;overflow-x:auto">
{%- for device in devices %}
<table style="border-collapse:collapse;margin:0 0 4px 0">
<tr><th colspan="8" style="text-align:left;padding:1px 12px 1px 0">{{ device.title }}</th></tr>
<tr><th></th>{% for name in header %}<th style="text-align:right;padding:1px 8px;font-weight:normal;opacity:0.65">\
{{ name }}</th>{% endfor %}<th></th><th></th></tr>
{%- for row in device.rows %}
{%- if row.kind == "title" %}
<tr><td colspan="8" style="text-align:left;padding:5px 0 2px 0;font-weight:bold;border-top:1px solid #9ca3af">\
{{ row.source }}</td></tr>
{%- else %}
<tr{% if row.kind == "total" %} style="border-top:1px solid #9ca3af"{% endif %}>\
<td style="text-align:right;padding:0 8px 0 0;opacity:0.5">{{ row.number or "" }}</td>
{%- for cell in row.cells %}<td style="text-align:right;padding:0 8px;white-space:nowrap">{{ cell }}</td>{% endfor -%}
<td style="text-align:left;padding:0 8px;white-space:nowrap;width:{{ width }}px">
{%- if row.peak %}<span style="display:inline-block;height:9px;width:{{ (row.held * width) | round(1) }}px;\
background-color:{{ held }}"></span><span style="display:inline-block;height:9px;\
width:{{ ((row.peak - row.held) * width) | round(1) }}px;background-color:{{ peak }}"></span>{% endif %}</td>\
<td style="text-align:left;padding:0 0 0 4px;white-space:pre\
{% if row.kind != "line" %};opacity:0.6{% endif %}">{{ row.source }}</td></tr>
{%- endif %}
{%- endfor %}
</table>
{%- endfor %}
<div style="opacity:0.65">{{ remark }}</div>
</div>"""


@lru_cache(maxsize=1)
def _template() -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(_HTML)


def html_listings(devices: Iterable[DeviceLines]) -> str:
    """The same as one table a device."""
    shown = [{"title": _title(device), "rows": list(_rows(device))} for device in devices]
    text: str = _template().render(
        devices=shown, header=_HEADER, width=_BAR_PIXELS, held=_HELD_COLOUR, peak=_PEAK_COLOUR, remark=_REMARK
    )
    return text
