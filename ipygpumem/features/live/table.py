"""The display under a running cell: memory levels as text, and as HTML with a small chart of the time so far."""

from __future__ import annotations

import html
from itertools import pairwise
from typing import TYPE_CHECKING

from ipygpumem.core.units import duration, pair, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.live.model import DeviceLevels, Levels

__all__ = ["live_bundle"]

_COLORS = {"allocated": "#3b82f6", "cache": "#93c5fd", "outside": "#f59e0b", "others": "#9ca3af"}
_UNDERLINES = {"allocated": _COLORS["allocated"], "reserved": _COLORS["cache"], "outside": _COLORS["outside"]}
_WIDTH, _HEIGHT = 220, 36
_MAX_DEVICES = 4
_MINUTE = 60
_MIN_PIXELS = 0.1


def live_bundle(history: Sequence[Levels], seconds: float, cell: int | None) -> dict[str, str]:
    """The newest levels as a MIME bundle, for a cell that has been running for ``seconds``."""
    now = history[-1]
    elapsed = f"{seconds:.0f} s" if seconds < _MINUTE else duration(seconds)
    status = f"running for {elapsed}" if cell is None else f"In [{cell}], running for {elapsed}"
    if now.devices:
        rows = [
            (device.name, _figures(device), _device_chart(history, device.name))
            for device in now.devices[:_MAX_DEVICES]
        ]
    else:
        chart = _chart([(levels.time, [levels.rss or 0]) for levels in history])
        rows = [("host memory (RSS)", [_host_figure(now)], chart)]
    hidden = len(now.devices) - _MAX_DEVICES
    more = f"{hidden} more device{'s' if hidden > 1 else ''}" if hidden > 0 else ""
    lines = [f"{name}  {' · '.join(figures)}" for name, figures, _ in rows]
    lines[0] += f"   {status}"
    return {"text/plain": "\n".join([*lines, more] if more else lines), "text/html": _html(rows, status, more)}


def _figures(device: DeviceLevels) -> list[str]:
    figures = [
        f"{name} {size(nbytes)}"
        for name, nbytes in (("allocated", device.allocated), ("reserved", device.reserved))
        if nbytes is not None
    ]
    if device.outside is not None:
        figures.append(f"outside PyTorch {size(device.outside)}{'' if device.own else ' (this process or another)'}")
    if device.used is not None and device.capacity is not None:
        figures.append(f"{pair(device.used, device.capacity)} used")
    return figures or ["unknown"]


def _host_figure(levels: Levels) -> str:
    if levels.rss is None:
        return "unknown"
    return size(levels.rss) if levels.total is None else f"{pair(levels.rss, levels.total)} resident"


def _device_chart(history: Sequence[Levels], name: str) -> str:
    rows = [
        (levels.time, [part or 0 for part in (device.allocated, device.cached, device.outside, device.others)])
        for levels in history
        for device in levels.devices
        if device.name == name
    ]
    return _chart(rows)


def _chart(rows: Sequence[tuple[float, list[int]]]) -> str:
    """An SVG of stacked areas over time, scaled to the highest total; ``rows`` are (time, bytes from bottom to top)."""
    if not rows:
        return ""
    begin = rows[0][0]
    span = rows[-1][0] - begin or 1.0
    highest = max(sum(parts) for _, parts in rows) * 1.05 or 1
    if len(rows) == 1:
        rows = [rows[0], (begin + span, rows[0][1])]
    xs = [round((time - begin) / span * _WIDTH, 1) for time, _ in rows]
    edges = [[float(_HEIGHT)] * len(rows)]
    for part in range(len(rows[0][1])):
        heights = [parts[part] / highest * _HEIGHT for _, parts in rows]
        edges.append([round(y - height, 1) for y, height in zip(edges[-1], heights, strict=True)])
    polygons = []
    for (lower, upper), color in zip(pairwise(edges), _COLORS.values(), strict=False):
        if any(low - high >= _MIN_PIXELS for low, high in zip(lower, upper, strict=True)):
            outline = [*zip(xs, upper, strict=True), *reversed(list(zip(xs, lower, strict=True)))]
            points = " ".join(f"{x:g},{y:g}" for x, y in outline)
            polygons.append(f'<polygon fill="{color}" points="{points}"/>')
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'style="flex:none;margin-right:12px;border-bottom:1px solid #9ca3af" aria-hidden="true">'
        f"{''.join(polygons)}</svg>"
    )


def _html(rows: Sequence[tuple[str, list[str], str]], status: str, more: str) -> str:
    lines = [
        f'<div style="display:flex;align-items:center;margin:2px 0">{chart}<div>'
        f"<div><b>{html.escape(name)}</b>&ensp;{html.escape(figures[-1])}"
        + (f'&emsp;<span style="opacity:0.65">{html.escape(status)}</span>' if not number else "")
        + f"</div><div>{' &middot; '.join(map(_underlined, figures[:-1]))}</div></div></div>"
        for number, (name, figures, chart) in enumerate(rows)
    ]
    if more:
        lines.append(f'<div style="opacity:0.65">{more}</div>')
    return (
        '<div style="font-family:monospace;font-size:90%;line-height:1.45;margin:2px 0" role="status" aria-live="off">'
        f"{''.join(lines)}</div>"
    )


def _underlined(figure: str) -> str:
    """A figure, underlined in its color in the chart."""
    color = _UNDERLINES.get(figure.split(" ", 1)[0])
    line = "" if color is None else f";border-bottom:2px solid {color}"
    return f'<span style="white-space:nowrap{line}">{html.escape(figure)}</span>'
