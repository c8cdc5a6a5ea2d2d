"""The display below a running cell: memory usage as text, and as HTML with a small chart of memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate

from ipygpumem.core.reading import DeviceReading, HostReading, Reading
from ipygpumem.core.tables import AS_TEXT
from ipygpumem.core.units import duration, many, pair, size

_COLORS = {"allocated": "#3b82f6", "reserved": "#93c5fd", "outside": "#f59e0b", "others": "#9ca3af"}
"""Colors of the chart's areas, from bottom to top, and of the lines under the values with these names."""
_WIDTH, _HEIGHT = 220, 36
_HEADROOM = 1.05
_MAX_DEVICES = 4
_MINUTE = 60


def live_bundle(history: Sequence[Reading], seconds: float, cell: int | None) -> dict[str, str]:
    now = history[-1]
    elapsed = f"{seconds:.0f} s" if seconds < _MINUTE else duration(seconds)
    status = f"running for {elapsed}" if cell is None else f"In [{cell}], running for {elapsed}"
    rows = [
        (name, _values(device), _areas(_device_history(history, name)))
        for name, device in list(now.devices.items())[:_MAX_DEVICES]
    ]
    if not rows:
        areas = _areas([(reading.time, [reading.host.rss or 0]) for reading in history])
        rows = [("host memory (RSS)", [_host_value(now.host)], areas)]
    hidden_count = len(now.devices) - _MAX_DEVICES
    more = many(hidden_count, "more device") if hidden_count > 0 else ""
    lines = [f"{name}  {' · '.join(values)}" for name, values, _ in rows]
    lines[0] += f"   {status}"
    html = _html(rows, f'&emsp;<span style="opacity:0.65">{escape(status)}</span>', more)
    return {"text/plain": "\n".join([*lines, more] if more else lines), "text/html": html}


def _values(device: DeviceReading) -> list[str]:
    counters = {"allocated": device.allocated, "reserved": device.reserved}
    values = [f"{name} {size(nbytes)}" for name, nbytes in counters.items() if nbytes is not None]
    if device.outside is not None:
        owner = " (this process or another)" if device.process is None else ""
        values.append(f"outside PyTorch {size(device.outside)}{owner}")
    if device.in_use is not None and device.capacity is not None:
        values.append(f"{pair(device.in_use, device.capacity)} used")
    return values or ["unknown"]


def _host_value(reading: HostReading) -> str:
    if reading.rss is None:
        return "unknown"
    return size(reading.rss) if reading.total is None else f"{pair(reading.rss, reading.total)} resident"


def _device_history(history: Sequence[Reading], name: str) -> list[tuple[float, list[int]]]:
    devices = [(reading.time, reading.devices[name]) for reading in history if name in reading.devices]
    return [
        (time, [part or 0 for part in (device.allocated, device.cached, device.outside, device.others)])
        for time, device in devices
    ]


def _areas(rows: Sequence[tuple[float, list[int]]]) -> list[tuple[str, str]]:
    """Return the areas of a stacked chart, topmost first, as tuples of a color and SVG points.

    ``rows`` contains tuples of a time and the sizes of the areas from bottom to top.
    """
    begin = rows[0][0]
    span = rows[-1][0] - begin or 1.0
    if len(rows) == 1:
        rows = [*rows, (begin + span, rows[0][1])]
    highest = max(sum(parts) for _, parts in rows) * _HEADROOM or 1
    stacks = [list(accumulate(parts)) for _, parts in rows]
    areas = []
    for i, color in enumerate(list(_COLORS.values())[: len(stacks[0])]):
        if any(parts[i] for _, parts in rows):
            outline = [
                f"{(time - begin) / span * _WIDTH:.1f},{_HEIGHT - stack[i] / highest * _HEIGHT:.1f}"
                for (time, _), stack in zip(rows, stacks, strict=True)
            ]
            areas.append((color, " ".join([f"0,{_HEIGHT}", *outline, f"{_WIDTH},{_HEIGHT}"])))
    return areas[::-1]


def _html(rows: Sequence[tuple[str, list[str], list[tuple[str, str]]]], status: str, more: str) -> str:
    lines: list[str] = []
    for name, values, areas in rows:
        polygons = "".join(f'<polygon fill="{color}" points="{points}"/>' for color, points in areas)
        lines.append(
            f'<div style="display:flex;align-items:center;margin:2px 0"><svg width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true" '
            f'style="flex:none;margin-right:12px;border-bottom:1px solid #9ca3af">{polygons}</svg>'
            f"<div><div><b>{escape(name)}</b>&ensp;{escape(values[-1])}{'' if lines else status}</div>"
            f"<div>{' &middot; '.join(map(_underlined, values[:-1]))}</div></div></div>"
        )
    if more:
        lines.append(f'<div style="opacity:0.65">{more}</div>')
    return (
        f'<div {AS_TEXT} style="font-family:monospace;font-size:90%;line-height:1.45;margin:2px 0" '
        'role="status" aria-live="off">'
        f"{''.join(lines)}</div>"
    )


def _underlined(value: str) -> str:
    color = _COLORS.get(value.partition(" ")[0])
    line = "" if color is None else f";border-bottom:2px solid {color}"
    return f'<span style="white-space:nowrap{line}">{escape(value)}</span>'
