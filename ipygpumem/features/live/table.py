"""A cell that still runs: one line with the books of now, and how they went since it began."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ipygpumem.core.units import duration, pair, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.live.model import DeviceLevels, Levels

__all__ = ["live_bundle"]

_COLOURS = {"allocated": "#3b82f6", "cache": "#93c5fd", "outside": "#f59e0b", "others": "#9ca3af"}
_WIDTH, _HEIGHT = 220, 36
_MOST_DEVICES = 4


def live_bundle(history: Sequence[Levels], seconds: float, cell: int | None) -> dict[str, str]:
    """The newest levels as a mime bundle; ``history`` is older first, at least one, and becomes the small chart."""
    now = history[-1]
    where = " ".join(
        part for part in ("" if cell is None else f"In [{cell}],", f"running for {_clock(seconds)}") if part
    )
    if not now.devices:
        rows = [("host memory (RSS)", [_host_words(now)], _host_chart(history))]
    else:
        rows = [(one.name, _words(one), _chart(history, one)) for one in now.devices[:_MOST_DEVICES]]
    more = len(now.devices) - _MOST_DEVICES
    lines = [f"{name}  {' · '.join(words)}" for name, words, _ in rows]
    lines[0] += f"   {where}"
    if more > 0:
        lines.append(_more(more))
    return {"text/plain": "\n".join(lines), "text/html": _html(rows, where, more)}


def _words(level: DeviceLevels) -> list[str]:
    figures = (("allocated", level.allocated), ("reserved", level.reserved))
    words = [f"{name} {size(amount)}" for name, amount in figures if amount is not None]
    if level.outside is not None:
        words.append(f"outside PyTorch {size(level.outside)}" + ("" if level.own else " (this process or another)"))
    if level.used is not None and level.capacity is not None:
        words.append(f"{pair(level.used, level.capacity)} used")
    return words or ["unknown"]


def _host_words(levels: Levels) -> str:
    if levels.rss is None:
        return "unknown"
    return size(levels.rss) if levels.total is None else f"{pair(levels.rss, levels.total)} resident"


def _clock(seconds: float) -> str:
    """Whole seconds: a tenth that jumps about tells nobody anything."""
    return f"{seconds:.0f} s" if seconds < 60 else duration(seconds)  # noqa: PLR2004 (a minute)


def _chart(history: Sequence[Levels], level: DeviceLevels) -> str:
    rows = []
    for levels in history:
        one = next((one for one in levels.devices if one.name == level.name), None)
        if one is not None:
            parts = (one.allocated, one.cached, one.outside, one.others)
            rows.append((levels.time, [part or 0 for part in parts]))
    return _areas(rows, tuple(_COLOURS.values()))


def _host_chart(history: Sequence[Levels]) -> str:
    return _areas([(one.time, [one.rss or 0]) for one in history], (_COLOURS["allocated"],))


def _areas(rows: Sequence[tuple[float, list[int]]], colours: tuple[str, ...]) -> str:
    """Stacked areas over time, from the first to the last, as high as the highest of them."""
    if not rows:
        return ""
    begin, end = rows[0][0], rows[-1][0]
    highest = max(sum(parts) for _, parts in rows) * 1.05 or 1
    span = end - begin or 1.0
    if len(rows) == 1:
        rows = [rows[0], (begin + span, rows[0][1])]
    across = [round((time - begin) / span * _WIDTH, 1) for time, _ in rows]
    below = [float(_HEIGHT)] * len(rows)
    shapes = []
    for place, colour in enumerate(colours[: len(rows[0][1])]):
        above = [round(low - parts[place] / highest * _HEIGHT, 1) for low, (_, parts) in zip(below, rows, strict=True)]
        if any(low - high >= 0.1 for low, high in zip(below, above, strict=True)):  # noqa: PLR2004 (of a pixel)
            points = [*zip(across, above, strict=True), *reversed(list(zip(across, below, strict=True)))]
            shapes.append(f'<polygon fill="{colour}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>')
        below = above
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
        f'style="flex:none;margin-right:12px;border-bottom:1px solid #9ca3af" aria-hidden="true">'
        f"{''.join(shapes)}</svg>"
    )


def _html(rows: Sequence[tuple[str, list[str], str]], where: str, more: int) -> str:
    """For each device the chart, and beside it two lines: what is used, and the figures."""
    lines = [
        f'<div style="display:flex;align-items:center;margin:2px 0">{chart}<div>'
        f"<div><b>{html.escape(name)}</b>&ensp;{html.escape(words[-1])}"
        + (f'&emsp;<span style="opacity:0.65">{html.escape(where)}</span>' if not number else "")
        + f"</div><div>{' &middot; '.join(_underlined(word) for word in words[:-1])}</div></div></div>"
        for number, (name, words, chart) in enumerate(rows)
    ]
    if more > 0:
        lines.append(f'<div style="opacity:0.65">{_more(more)}</div>')
    return (
        '<div style="font-family:monospace;font-size:90%;line-height:1.45;margin:2px 0" role="status" aria-live="off">'
        f"{''.join(lines)}</div>"
    )


def _more(count: int) -> str:
    return f"{count} more device{'s' if count > 1 else ''}"


def _underlined(word: str) -> str:
    colours = {"allocated": _COLOURS["allocated"], "reserved": _COLOURS["cache"], "outside": _COLOURS["outside"]}
    colour = colours.get(word.split(" ", 1)[0])
    text = html.escape(word)
    line = "" if colour is None else f";border-bottom:2px solid {colour}"
    return f'<span style="white-space:nowrap{line}">{text}</span>'
