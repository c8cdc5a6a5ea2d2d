"""The still picture of a profile: each device's memory by category over time.

Each column of pixels shows the state with the most bytes inside it, as in the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.units import amount, duration, size
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.snapshot.export.text import clip, many
from ipygpumem.viewer.axes import Box, Paper, own_style
from ipygpumem.viewer.picture import MOST_BYTES, WIDTH, Picture, packed
from ipygpumem.viewer.ticks import byte_ticks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.features.profile.timeline import CategoryTimeline, Profile

__all__ = ["profile_picture"]

_SCALES = (2.0, 1.5, 1.0)
_MOST_DEVICES = 4
_HEADROOM, _HIGHEST_TICK = 1.14, 0.92
_LEFT, _RIGHT, _HEAD, _PANEL_HEAD, _PLOT, _FOOT, _ROW = 70, 16, 36, 26, 230, 34, 20
_LEGEND_COLUMNS = 4
_INK, _SOFT, _FAINT, _RESERVED = "#1b1f24", "#59636e", "#e3e6ea", "#c2410c"
_ORDER = (0, 1, 5, 2, 4, 6, 3, 7)
"""From below, as in the page: what stays longest lies lowest."""
_COLOURS = ("#44bb99", "#eedd88", "#c9a27e", "#b9a0dc", "#ee8866", "#77aadd", "#99ddff", "#b4bfcc")
_TICKS = 8
_STEPS = (1, 2, 5, 10)


def profile_picture(profile: Profile, name: str) -> Picture:
    """Draw a profile.

    Raises:
        OptionError: matplotlib is not installed.
    """
    shown = profile.timelines[:_MOST_DEVICES]
    try:
        with own_style():
            for scale in _SCALES:
                paper = _drawn(profile, shown, name, scale)
                png = packed(paper.pixels())
                if len(png) <= MOST_BYTES:
                    break
    except ImportError as error:
        raise OptionError(f"a picture needs matplotlib: pip install matplotlib ({first_line(error)})") from error
    return Picture(png, paper.width, paper.height, "; ".join(_words(one) for one in shown))


def _words(timeline: CategoryTimeline) -> str:
    row, level = timeline.peak
    return f"{timeline.device}: peak {size(level)} after {duration(timeline.when(row) / 1e9)}"


def _legend_rows(timeline: CategoryTimeline) -> list[int]:
    """The categories that the device ever had."""
    ever = np.any(timeline.levels > 0, axis=0).tolist()
    return [category for category in _ORDER if ever[category]]


def _drawn(profile: Profile, shown: tuple[CategoryTimeline, ...], name: str, scale: float) -> Paper:
    heights = [_PANEL_HEAD + _PLOT + _FOOT + _ROW * -(-len(_legend_rows(one)) // _LEGEND_COLUMNS) + 8 for one in shown]
    paper = Paper(WIDTH, _HEAD + sum(heights), scale)
    end = paper.text(_RIGHT, 20, clip(name, 60), 14, _INK, weight="bold")
    changes = sum(map(len, profile.timelines))
    words = f"memory by category, {many(changes, 'change')}"
    if len(profile.timelines) > len(shown):
        words += f"; {many(len(profile.timelines) - len(shown), 'other device')} in the page"
    paper.text(end + 14, 20, words, 12, _SOFT, most=WIDTH - _RIGHT - end - 14)
    top: float = _HEAD
    for timeline, height in zip(shown, heights, strict=True):
        _panel(paper, timeline, Box(_LEFT, top + _PANEL_HEAD, WIDTH - _LEFT - _RIGHT, _PLOT))
        top += height
    return paper


def _panel(paper: Paper, timeline: CategoryTimeline, plot: Box) -> None:
    columns = paper.pixels_of(plot.width)
    rows, spans = _columns(timeline, columns)
    reserved = None if timeline.reserved is None else _most(timeline.reserved, spans)
    highest = max(float(timeline.total.max()), 1.0)
    top = highest * _HEADROOM
    paper.frame(plot, columns, top)
    for value, label in byte_ticks(top):
        if value > top * _HIGHEST_TICK:
            break
        y = plot.bottom - plot.height * value / top
        paper.stroke([(plot.left, y), (plot.left + plot.width, y)], _FAINT, 1, below=True)
        paper.text(plot.left - 8, y, label, 11, _SOFT, across="right")
    paper.image(plot, _pixels(timeline.levels[rows], paper.pixels_of(plot.height), top))
    if reserved is not None and (reserved <= top).any():
        paper.steps(np.where(reserved <= top, reserved, np.nan), _RESERVED, 1.2)
    _heading(paper, plot, timeline, reserved)
    _times(paper, plot, timeline)
    _peak(paper, plot, timeline, rows, columns)
    _legend(paper, plot, timeline)


def _columns(timeline: CategoryTimeline, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The state that each column shows, and first and last state of each, shape (columns, 2)."""
    span = max(timeline.end - timeline.start, 1)
    edges = np.linspace(0, span, columns + 1)
    since = timeline.time - timeline.start
    first = np.searchsorted(since, edges[:-1], side="right")
    last = np.maximum(first, np.searchsorted(since, edges[1:], side="left"))
    last[-1] = len(timeline)
    total = timeline.total
    rows = np.array([a + int(total[a : b + 1].argmax()) for a, b in zip(first, last, strict=True)], np.int64)
    return rows, np.stack([first, last], axis=1)


def _most(curve: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.float64]:
    """The most of an allocator's count in each column; NaN where it told nothing."""
    found = np.full(len(spans), np.nan)
    for column, (first, last) in enumerate(spans.tolist()):
        part = curve[max(first - 1, 0) : max(last, 1)]
        if len(part) and part.max() >= 0:
            found[column] = part.max()
    return found


def _pixels(levels: NDArray[np.int64], height: int, top: float) -> NDArray[np.uint8]:
    """RGBA, shape (height, columns)."""
    unit = height / top
    edges = np.cumsum(np.maximum(levels[:, _ORDER], 0), axis=1) * unit
    level = (np.arange(height, 0, -1) - 0.5)[:, None]
    image = np.zeros((height, len(levels), 4), np.uint8)
    lower = np.zeros(len(levels))
    for place, category in enumerate(_ORDER):
        colour = _COLOURS[category]
        inside = (level > lower) & (level <= edges[:, place])
        image[inside] = (int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16), 255)
        lower = edges[:, place]
    return image


def _heading(paper: Paper, plot: Box, timeline: CategoryTimeline, reserved: NDArray[np.float64] | None) -> None:
    end = paper.text(plot.left, plot.top - 12, timeline.device, 12, _INK, weight="bold")
    words = [f"{many(len(timeline), 'change')} in {duration((timeline.end - timeline.start) / 1e9)}"]
    if reserved is not None and np.isfinite(reserved).any():
        words.append(f"reserved at most {size(int(np.nanmax(reserved)))}")
    paper.text(end + 10, plot.top - 12, " · ".join(words), 12, _SOFT, most=WIDTH - _RIGHT - end - 10)


def _times(paper: Paper, plot: Box, timeline: CategoryTimeline) -> None:
    span = max((timeline.end - timeline.start) / 1e9, 1e-9)
    power = 10.0 ** np.floor(np.log10(span / _TICKS))
    step = power * next(one for one in _STEPS if one * power >= span / _TICKS)
    for number in range(int(span / step) + 1):
        at = plot.left + plot.width * number * step / span
        paper.stroke([(at, plot.bottom), (at, plot.bottom + 4)], _SOFT, 1)
        across = "right" if at > plot.left + plot.width - 30 else "center"
        label = f"{number * step * 1e3:g} ms" if span < 1 else f"{number * step:g} s"
        paper.text(at, plot.bottom + 13, label if number else "0", 11, _SOFT, across=across)


def _peak(paper: Paper, plot: Box, timeline: CategoryTimeline, rows: NDArray[np.int64], columns: int) -> None:
    row, level = timeline.peak
    column = int((rows == row).argmax()) + 0.5
    paper.dot(column, level, _INK)
    at = plot.left + plot.width * column / columns
    right = column < columns * 0.7
    words = f"peak {size(level)} after {duration(timeline.when(row) / 1e9)}"
    x = at + (6 if right else -6)
    paper.text(x, plot.top + 10, words, 12, _INK, across="left" if right else "right", weight="bold")


def _legend(paper: Paper, plot: Box, timeline: CategoryTimeline) -> None:
    """The categories with their bytes at the peak."""
    paper.text(_RIGHT, plot.bottom + 32, "at the peak:", 11, _SOFT)
    row, _ = timeline.peak
    wide = (WIDTH - _RIGHT - 90) / _LEGEND_COLUMNS
    for number, category in enumerate(_legend_rows(timeline)):
        x = 90 + wide * (number % _LEGEND_COLUMNS)
        y = plot.bottom + 32 + _ROW * (number // _LEGEND_COLUMNS)
        paper.fill(Box(x, y - 6, 12, 12), _COLOURS[category])
        end = paper.text(x + 18, y, CATEGORIES[category], 12, _INK)
        paper.text(end + 6, y, amount(int(timeline.levels[row, category])), 12, _SOFT)
