"""A session as a still picture: for each device the memory after each measurement, the peaks and the capacity."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.device_names import HOST
from ipygpumem.core.units import duration, size
from ipygpumem.snapshot.export.text import clip, many
from ipygpumem.viewer.axes import INK, LEFT, PLOT_WIDTH, POINT, RIGHT, SOFT, steps
from ipygpumem.viewer.still import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.features.history.model import ReportRow
    from ipygpumem.viewer.axes import LegendItem, Sheet
    from ipygpumem.viewer.still import Picture

__all__ = ["history_picture"]

_TOP, _PANEL_TOP, _PLOT_HEIGHT, _PANEL_HEIGHT, _LEGEND = 36, 26, 190, 250, 30
_MAX_DEVICES = 8
_HEADROOM, _TICK_LIMIT = 1.1, 0.98
_CAPACITY_SHARE = 0.35
"""The capacity is in the picture from this usage on."""
_MAX_BAR, _GAP, _MIN_BAR_WITH_GAP = 34, 1, 3
_DIGIT, _LABEL = 7, 30
_FAILED, _UP_TO_PEAK = "#b91c1c", "#dbeafe"
_LEVELS = {
    "others_level": ("#9ca3af", "other processes, unattributed"),
    "outside_level": ("#f59e0b", "outside PyTorch"),
    "allocated": ("#3b82f6", "tensors"),
    "cache": ("#93c5fd", "PyTorch's cache"),
}
"""Attributes of an entry from the bottom up: the peak of the tensors then shows how close the device was to its
capacity."""
_HOST_LEVELS = {"allocated": ("#3b82f6", "resident memory of this process")}


class _Panel:
    """The measurements of one device, in their order."""

    def __init__(self, device: str, rows: Sequence[ReportRow]) -> None:
        self.device, self.rows = device, rows
        self.levels = _HOST_LEVELS if device == HOST else _LEVELS
        self.capacity = max((row.capacity for row in rows if row.capacity is not None), default=None)
        values = [[max(getattr(row, name) or 0, 0) for name in self.levels] for row in rows]
        self.stack = np.cumsum(np.array(values, np.float64), axis=1)
        """Shape (rows, levels): bytes up to the upper edge of each level; unknown levels count as 0."""
        # an upper bound of the peak is not drawn
        peaks = [row.peak_level if row.peak_trust == "exact" else None for row in rows]
        below = [(row.outside_level or 0) + (row.others_level or 0) for row in rows]
        self.peaks = np.array([np.nan if peak is None else peak for peak in peaks]) + np.array(below)
        """Total level at the peak of allocated memory; NaN where the peak is unknown."""
        self.highest = np.fmax(self.stack[:, -1], self.peaks)
        limit = max(float(self.highest.max()), 1.0)
        if self.capacity is not None and limit >= _CAPACITY_SHARE * self.capacity:
            limit = max(limit, self.capacity)
        self.limit = limit * _HEADROOM
        self.failed = np.array([row.ooms > 0 or row.success is False for row in rows])


def history_picture(rows: Sequence[ReportRow], title: str) -> Picture:
    """Draw a session: a plot for each device, a bar for each measurement.

    Where there are more measurements than pixels, each column of pixels shows the highest of its measurements.

    Raises:
        OptionError: matplotlib is not installed.
    """
    devices = sorted({row.device for row in rows}, key=lambda name: (len(name), name))
    panels = [_Panel(device, [row for row in rows if row.device == device]) for device in devices[:_MAX_DEVICES]]
    highest = [f"{panel.device}: highest level {size(int(panel.highest.max()))}" for panel in panels]
    height = _TOP + (_PANEL_HEIGHT * len(panels) + _LEGEND if panels else 30)
    return render(
        height, lambda sheet: _draw(sheet, panels, title), "; ".join(highest) or "nothing has been measured yet"
    )


def _draw(sheet: Sheet, panels: list[_Panel], title: str) -> None:
    measurements = {(row.time, row.cell, row.seconds) for panel in panels for row in panel.rows}
    total = duration(sum(seconds for _, _, seconds in measurements))
    facts = f"{many(len(measurements), 'measurement')}, {total} in total" if panels else "nothing has been measured yet"
    sheet.title(RIGHT, 20, clip(title, 48), facts, size=14)
    for number, panel in enumerate(panels):
        _draw_panel(sheet, panel, _TOP + _PANEL_HEIGHT * number + _PANEL_TOP)
    if panels:
        _draw_legend(sheet, panels, _TOP + _PANEL_HEIGHT * len(panels) + 3)


def _draw_panel(sheet: Sheet, panel: _Panel, top: float) -> None:
    shown, edges, bar = _bars(panel.highest, sheet.columns, round(_MAX_BAR * sheet.scale))
    axes = sheet.plot(top, _PLOT_HEIGHT, (0, sheet.columns), panel.limit, _TICK_LIMIT)
    lower = np.zeros(len(edges) - 1)
    for part, (color, _) in enumerate(panel.levels.values()):
        upper = _with_gaps(panel.stack[shown, part], edges)
        steps(axes, edges, upper, color, baseline=lower)
        lower = np.nan_to_num(upper)
    pixel = panel.limit / _PLOT_HEIGHT
    peaks = _with_gaps(panel.peaks[shown], edges)
    steps(axes, edges, peaks, _UP_TO_PEAK, baseline=np.fmin(lower, np.nan_to_num(peaks)))
    peaks[peaks <= 2 * pixel] = np.nan
    steps(axes, edges, peaks + pixel, INK, baseline=np.nan_to_num(peaks) - pixel)
    failed = _with_gaps(np.where(panel.failed[shown], panel.limit, np.nan), edges)
    steps(axes, edges, failed, _FAILED, baseline=panel.limit - 4 * pixel)
    facts = [f"highest {size(int(panel.highest.max()))}"]
    if panel.capacity is not None and panel.capacity > panel.limit:
        facts.append(f"capacity {size(panel.capacity)}, above the picture")
    elif panel.capacity is not None:
        axes.axhline(panel.capacity, color=SOFT, linewidth=POINT, linestyle=(0, (4, 3)))
        facts.append(f"capacity {size(panel.capacity)} (dashed)")
    unknown = [
        label
        for label, name in (("outside PyTorch", "outside_level"), ("other processes", "others_level"))
        if panel.device != HOST and any(getattr(row, name) is None for row in panel.rows)
    ]
    if unknown:
        facts.append(f"{' and '.join(unknown)} not always known")
    sheet.title(LEFT, top - 12, clip(panel.device, 24), " · ".join(facts))
    sheet.label_x(axes, _cell_ticks(panel.rows, bar, sheet.scale), fontsize=10 * POINT)
    axes.tick_params(axis="x", length=0, pad=8 * POINT)


def _bars(
    highest: NDArray[np.float64], columns: int, max_width: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Lay out the bars of all measurements, or of the highest one of each column where there are too many.

    Returns:
        The rows that are shown; for each the left and the right edge of its bar, in columns; and the distance from one
        measurement to the next.
    """
    count = len(highest)
    distance = min(columns / count, max_width)
    if count <= columns:
        left = np.arange(count + 1) * distance // 1
        gap = _GAP * (columns // PLOT_WIDTH) if distance >= _MIN_BAR_WITH_GAP * 2 else 0
        return np.arange(count), np.stack([left[:-1], left[1:] - gap], axis=1).ravel(), distance
    ends = np.linspace(0, count, columns + 1).astype(np.int64)
    rows = [first + int(np.argmax(highest[first:after])) for first, after in itertools.pairwise(ends)]
    return np.array(rows), np.repeat(np.arange(columns + 1.0), 2)[1:-1], distance


def _with_gaps(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put a gap between each two bars."""
    steps = np.full(len(edges) - 1, np.nan)
    steps[::2] = values
    return steps


def _cell_ticks(rows: Sequence[ReportRow], bar: float, scale: float) -> list[tuple[float, str]]:
    """Label bars with their In numbers, as far as there is space."""
    width = _LABEL + _DIGIT * max(len(str(row.cell)) for row in rows)
    step = max(int(-(-width * scale // bar)), 1)
    numbered = [(number, row.cell) for number, row in enumerate(rows) if number % step == 0 and row.cell is not None]
    return [((number + 0.5) * bar, f"In [{cell}]") for number, cell in numbered]


def _draw_legend(sheet: Sheet, panels: list[_Panel], y: float) -> None:
    areas = {label: color for panel in panels for color, label in panel.levels.values()}
    items: list[LegendItem] = [(color, label, None) for label, color in areas.items()]
    items.append((INK, "peak" if panels[0].device == HOST else "peak of tensors", "solid"))
    if any(panel.failed.any() for panel in panels):
        items.append((_FAILED, "failed", "solid"))
    sheet.legend(LEFT, y, items)
