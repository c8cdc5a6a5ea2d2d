"""A session as a picture: the level of memory after each cell, its peak, and the card's capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.device_names import HOST
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.units import duration, size
from ipygpumem.snapshot.export.text import clip, many
from ipygpumem.viewer.axes import Box, Paper, own_style
from ipygpumem.viewer.picture import MOST_BYTES, WIDTH, Picture, packed
from ipygpumem.viewer.ticks import byte_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.features.history.model import ReportRow

__all__ = ["history_picture"]

_SCALES = (2.0, 1.5, 1.0)
_LEFT, _RIGHT, _HEAD, _PANEL_HEAD, _PLOT, _FOOT, _LEGEND = 70, 16, 36, 26, 190, 34, 30
_MOST_DEVICES = 8
_HEADROOM = 1.1
_HIGHEST_TICK = 0.98
_CAPACITY_SEEN = 0.35
_WIDEST, _GAP, _LEAST_GAPPED = 34, 2, 5
_DIGIT, _LABEL = 7, 30
_INK, _SOFT, _FAINT, _BAD = "#1b1f24", "#59636e", "#e3e6ea", "#b91c1c"
_UP_TO_PEAK = "#dbeafe"
_PARTS = {
    "others_level": ("#9ca3af", "other processes, unattributed"),
    "outside_level": ("#f59e0b", "outside PyTorch"),
    "allocated": ("#3b82f6", "tensors"),
    "cache": ("#93c5fd", "PyTorch's cache"),
}
"""From below: so the peak of the tensors stands on what else is there, and can be read against the capacity."""
_HOST_PARTS = {"allocated": ("#3b82f6", "resident memory of this process")}


@dataclass(frozen=True, slots=True)
class _Panel:
    """One device: its rows in their order, and the bytes at the upper edge of its plot."""

    device: str
    rows: Sequence[ReportRow]
    top: float

    @property
    def parts(self) -> dict[str, tuple[str, str]]:
        return _parts(self.rows)

    @property
    def capacity(self) -> int | None:
        return max((row.capacity for row in self.rows if row.capacity is not None), default=None)


def history_picture(rows: Sequence[ReportRow], title: str) -> Picture:
    """Draw a session: a plot for each device, a bar for each measurement.

    Where there are more measurements than columns of pixels, each column shows the highest of its own.

    Raises:
        OptionError: matplotlib is not installed.
    """
    panels = _panels(rows)
    try:
        with own_style():
            for scale in _SCALES:
                paper = _drawn(panels, title, scale)
                png = packed(paper.pixels())
                if len(png) <= MOST_BYTES:
                    break
    except ImportError as error:
        raise OptionError(f"a picture needs matplotlib: pip install matplotlib ({first_line(error)})") from error
    words = [f"{one.device}: highest level {size(int(_highest(one.rows).max()))}" for one in panels]
    return Picture(png, paper.width, paper.height, "; ".join(words) or "nothing was measured yet")


def _panels(rows: Sequence[ReportRow]) -> list[_Panel]:
    devices = sorted({row.device for row in rows}, key=lambda name: (len(name), name))
    panels = []
    for device in devices[:_MOST_DEVICES]:
        own = [row for row in rows if row.device == device]
        highest = max(float(_highest(own).max()), 1.0)
        capacity = max((row.capacity for row in own if row.capacity is not None), default=0)
        if highest >= _CAPACITY_SEEN * capacity:
            highest = max(highest, capacity)
        panels.append(_Panel(device, own, highest * _HEADROOM))
    return panels


def _stack(rows: Sequence[ReportRow]) -> NDArray[np.float64]:
    """Shape (rows, parts): bytes up to the upper edge of each part; what is unknown takes no place."""
    amounts = [[max(getattr(row, name) or 0, 0) for name in _parts(rows)] for row in rows]
    return np.cumsum(np.array(amounts, np.float64), axis=1)


def _parts(rows: Sequence[ReportRow]) -> dict[str, tuple[str, str]]:
    return _HOST_PARTS if rows[0].device == HOST else _PARTS


def _peaks(rows: Sequence[ReportRow]) -> NDArray[np.float64]:
    """Level at each peak of allocated memory, on what else is there; NaN where it is unknown or only a bound."""
    known = (row.peak_level if row.peak_trust == "exact" else None for row in rows)
    below = np.array([(row.outside_level or 0) + (row.others_level or 0) for row in rows], np.float64)
    return below + np.array([np.nan if one is None else one for one in known], np.float64)


def _highest(rows: Sequence[ReportRow]) -> NDArray[np.float64]:
    return np.fmax(_stack(rows)[:, -1], _peaks(rows))


def _drawn(panels: list[_Panel], title: str, scale: float) -> Paper:
    each = _PANEL_HEAD + _PLOT + _FOOT
    paper = Paper(WIDTH, _HEAD + (each * len(panels) + _LEGEND if panels else 30), scale)
    measured = {(row.time, row.cell, row.seconds) for one in panels for row in one.rows}
    end = paper.text(_RIGHT, 20, clip(title, 48), 14, _INK, weight="bold")
    work = duration(sum(seconds for _, _, seconds in measured))
    facts = f"{many(len(measured), 'measurement')}, {work} of work" if panels else "nothing was measured yet"
    paper.text(end + 14, 20, facts, 12, _SOFT)
    for number, panel in enumerate(panels):
        plot = Box(_LEFT, _HEAD + each * number + _PANEL_HEAD, WIDTH - _LEFT - _RIGHT, _PLOT)
        _plot(paper, plot, panel)
    if panels:
        _legend(paper, panels, _HEAD + each * len(panels) + 10)
    return paper


def _plot(paper: Paper, plot: Box, panel: _Panel) -> None:
    rows, top = panel.rows, panel.top
    columns = paper.pixels_of(plot.width)
    chosen, bars = _columns(rows, columns, paper.pixels_of(_WIDEST))
    paper.frame(plot, columns, top)
    for value, label in byte_ticks(top):
        if value > top * _HIGHEST_TICK:
            break
        y = plot.bottom - plot.height * value / top
        paper.stroke([(plot.left, y), (plot.left + plot.width, y)], _FAINT, 1, below=True)
        paper.text(plot.left - 8, y, label, 11, _SOFT, across="right")
    paper.image(plot, _pixels(panel, chosen, paper.pixels_of(plot.height), paper.pixels_of(2)))
    _heading(paper, plot, panel)
    _numbers(paper, plot, rows, bars, columns)


def _columns(rows: Sequence[ReportRow], columns: int, widest: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Which row each column of pixels shows (-1: none), and where each row begins (one more: where the last ends)."""
    count = len(rows)
    width = min(columns / count, widest)
    bars = np.arange(count + 1) * width
    chosen: NDArray[np.int64] = np.full(columns, -1, np.int64)
    if width >= 1:
        edges = bars.astype(np.int64)
        gap = _GAP if width >= _LEAST_GAPPED * _GAP else 1 if width >= _LEAST_GAPPED else 0
        for number in range(count):
            chosen[edges[number] : edges[number + 1] - gap] = number
        return chosen, bars
    highest = _highest(rows)
    ends = np.linspace(0, count, columns + 1).astype(np.int64)
    for column in range(columns):
        first, after = ends[column], max(ends[column + 1], ends[column] + 1)
        chosen[column] = first + int(np.argmax(highest[first:after]))
    return chosen, bars


def _pixels(panel: _Panel, chosen: NDArray[np.int64], height: int, thick: int) -> NDArray[np.uint8]:
    """RGBA, shape (height, columns): the stack of each column, and a dark mark at its peak."""
    shown = chosen >= 0
    rows = np.maximum(chosen, 0)
    unit = height / panel.top
    level = (np.arange(height, 0, -1) - 0.5)[:, None]  # of each line of pixels, the lowest last
    image = np.zeros((height, len(chosen), 4), np.uint8)
    edges = _stack(panel.rows)[rows] * unit
    lower = np.zeros(len(chosen))
    for part, (colour, _) in enumerate(panel.parts.values()):
        inside = (level > lower) & (level <= edges[:, part]) & shown
        image[inside] = (*_rgb(colour), 255)
        lower = edges[:, part]
    peaks = _peaks(panel.rows)[rows] * unit
    with np.errstate(invalid="ignore"):
        low = np.minimum(peaks, height - thick)
        image[(level > lower) & (level <= peaks) & shown] = (*_rgb(_UP_TO_PEAK), 255)
        mark = (level > low - thick / 2) & (level <= low + thick / 2) & shown & (peaks > thick)
    image[mark] = (*_rgb(_INK), 255)
    failed = np.array([row.ooms > 0 or row.success is False for row in panel.rows])[rows] & shown
    image[: 2 * thick, failed] = (*_rgb(_BAD), 255)
    return image


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _heading(paper: Paper, plot: Box, panel: _Panel) -> None:
    end = paper.text(plot.left, plot.top - 12, clip(panel.device, 24), 12, _INK, weight="bold")
    highest = float(_highest(panel.rows).max())
    words = [f"highest {size(int(highest))}"]
    capacity = panel.capacity
    if capacity is not None and capacity > panel.top:
        words.append(f"capacity {size(capacity)}, above the picture")
    elif capacity is not None:
        paper.rule(capacity, _SOFT, dashes=(4, 3))
        words.append(f"capacity {size(capacity)} (dashed)")
    lacks = [
        word
        for word, name in (("outside PyTorch", "outside_level"), ("other processes", "others_level"))
        if panel.device != HOST and any(getattr(row, name) is None for row in panel.rows)
    ]
    if lacks:
        words.append(f"{' and '.join(lacks)} not always known")
    paper.text(end + 10, plot.top - 12, " · ".join(words), 12, _SOFT, most=WIDTH - _RIGHT - end - 10)


def _numbers(paper: Paper, plot: Box, rows: Sequence[ReportRow], bars: NDArray[np.float64], columns: int) -> None:
    """In numbers below some of the bars."""
    each = plot.width / columns * (bars[1] - bars[0])
    wide = _LABEL + _DIGIT * max(len(str(row.cell)) for row in rows)
    step = max(int(-(-wide // each)), 1)
    for number in range(0, len(rows), step):
        row = rows[number]
        if row.cell is None:
            continue
        at = plot.left + plot.width * (bars[number] + bars[number + 1]) / 2 / columns
        if at + wide / 2 - _DIGIT > plot.left + plot.width + _RIGHT:
            break
        paper.text(at, plot.bottom + 13, f"In [{row.cell}]", 10, _SOFT, across="center")


def _legend(paper: Paper, panels: list[_Panel], y: float) -> None:
    x: float = _LEFT
    parts = {label: colour for panel in panels for colour, label in panel.parts.values()}
    for label, colour in parts.items():
        paper.fill(Box(x, y - 6, 12, 12), colour)
        x = paper.text(x + 18, y, label, 12, _SOFT) + 18
    paper.fill(Box(x, y - 6, 14, 12), _UP_TO_PEAK)
    paper.stroke([(x, y - 5), (x + 14, y - 5)], _INK, 2)
    word = "peak" if panels[0].device == HOST else "peak of tensors"
    x = paper.text(x + 20, y, word, 12, _SOFT) + 18
    if any(row.ooms or row.success is False for panel in panels for row in panel.rows):
        paper.fill(Box(x, y - 2, 14, 4), _BAD)
        paper.text(x + 20, y, "failed", 12, _SOFT)
