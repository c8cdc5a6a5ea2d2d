"""Listings of source code with the memory that each line used, as text and as small HTML."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import precise_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ipygpumem.features.lines.model import DeviceLines, LineUse, SourceLine

__all__ = ["html_listings", "text_listings"]

_HEADER = ("held after", "peak", "allocated", "freed", "kept")
_EMPTY = ("",) * len(_HEADER)
_REMARK = (
    "held after, peak: memory in use on the device after and while the line ran; "
    "allocated, freed, kept (still in use at the end): by the line and the functions it calls"
)
_SOURCE_WIDTH = 100
_LONG_LISTING = 40
_CONTEXT_LINES = 3
_BAR_CELLS = 10
_BAR_PIXELS = 80
_HELD_COLOR, _PEAK_COLOR = "#3b82f6", "#93c5fd"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a listing. ``held`` and ``peak`` are fractions of a bar; ``kind``: title, line, unused, sum or total."""

    number: int | None
    cells: tuple[str, ...]
    source: str
    kind: str
    held: float = 0.0
    peak: float = 0.0


def text_listings(devices: Iterable[DeviceLines]) -> str:
    """Return the listings as text. The dark part of a bar is the memory after the line, the light part the peak."""
    return "\n\n".join(_text_listing(device) for device in devices)


def _text_listing(device: DeviceLines) -> str:
    rows = list(_rows(device))
    widths = [max(map(len, column)) for column in zip(_HEADER, *(row.cells for row in rows), strict=True)]
    digits = max(len("line"), *(len(str(row.number or "")) for row in rows))

    def columns(first: str, cells: tuple[str, ...]) -> str:
        return "  ".join(text.rjust(width) for text, width in zip((first, *cells), (digits, *widths), strict=True))

    lines = [_title(device), columns("line", _HEADER)]
    for row in rows:
        if row.kind == "title":
            lines.append(row.source)
            continue
        held = round(row.held * _BAR_CELLS)
        bar = ("█" * held + "░" * (round(row.peak * _BAR_CELLS) - held)).ljust(_BAR_CELLS)
        source = row.source if len(row.source) <= _SOURCE_WIDTH else row.source[: _SOURCE_WIDTH - 1] + "…"
        lines.append(f"{columns(str(row.number or ''), row.cells)}  {bar}  {source}".rstrip())
    return "\n".join([*lines, _REMARK])


def _title(device: DeviceLines) -> str:
    return f"{device.device} by line of code: requested bytes, {precise_size(device.before)} in use before"


def _rows(device: DeviceLines) -> Iterator[_Row]:
    scale = max(device.peak_requested, 1)
    for listing in device.listings:
        yield _Row(None, _EMPTY, listing.title, "title")
        yield from _source_rows(listing.lines, scale)
    if device.elsewhere is not None:
        yield _Row(None, _EMPTY, "elsewhere", "title")
        yield _use_row(None, "other code and threads", device.elsewhere, scale)
    yield _Row(None, _EMPTY, "device at the end, and at its peak", "title")
    for label, end, peak in (
        ("requested", device.end_requested, device.peak_requested),
        ("rounding by the allocator", device.end_rounding, device.peak_rounding),
        ("freed, waiting for a stream", device.end_pending, device.peak_pending),
        ("allocated (allocator's counter)", device.end_allocated, device.peak_allocated),
    ):
        total = label.startswith("allocated")
        if end or peak or total or (peak is None and "rounding" in label):
            cells = (precise_size(end), "unknown" if peak is None else precise_size(peak), "", "", "")
            yield _Row(None, cells, label, "total" if total else "sum")


def _source_rows(lines: tuple[SourceLine, ...], scale: int) -> Iterator[_Row]:
    """The lines without their common indentation; of long listings only the lines around those that used memory."""
    texts = textwrap.dedent("\n".join(line.text for line in lines)).split("\n")
    used = [index for index, line in enumerate(lines) if line.use is not None]
    near = {index + offset for index in (0, *used) for offset in range(-_CONTEXT_LINES, _CONTEXT_LINES + 1)}
    for skip, group in groupby(range(len(lines)), lambda index: len(lines) > _LONG_LISTING and index not in near):
        indexes = list(group)
        if skip and len(indexes) > 1:
            yield _Row(None, _EMPTY, f"… {len(indexes):,} lines that neither allocate nor free", "unused")
        else:
            yield from (_use_row(lines[index].number, texts[index], lines[index].use, scale) for index in indexes)


def _use_row(number: int | None, text: str, use: LineUse | None, scale: int) -> _Row:
    if use is None:
        return _Row(number, _EMPTY, text, "unused")
    cells = (
        "" if use.after is None else precise_size(use.after),
        "" if use.peak is None else precise_size(use.peak),
        _bytes_and_count(use.allocated, use.allocations),
        _bytes_and_count(use.freed, use.frees),
        precise_size(use.kept) if use.kept else "",
    )
    held = (use.after or 0) / scale
    return _Row(number, cells, text, "line" if number else "sum", held, max(held, (use.peak or 0) / scale))


def _bytes_and_count(nbytes: int, count: int) -> str:
    if not count:
        return ""
    return precise_size(nbytes) if count == 1 else f"{precise_size(nbytes)} ×{count:,}"  # noqa: RUF001 (multiplication sign)


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
    """Return the listings as HTML tables, one per device."""
    tables = [{"title": _title(device), "rows": list(_rows(device))} for device in devices]
    html: str = _template().render(
        devices=tables, header=_HEADER, width=_BAR_PIXELS, held=_HELD_COLOR, peak=_PEAK_COLOR, remark=_REMARK
    )
    return html
