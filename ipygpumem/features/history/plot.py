"""Static plot of a session: the memory usage after each measurement, the peaks and the capacity of each device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ipygpumem.core.device_names import HOST
from ipygpumem.core.text import clip
from ipygpumem.core.units import duration, many, size
from ipygpumem.features.history.model import ReportRow
from ipygpumem.viewer import plot_image

_TOP, _PANEL_TOP, _PLOT_HEIGHT, _PANEL_HEIGHT, _LEGEND = 36, 26, 190, 250, 30
_MAX_DEVICES = 8
_HEADROOM, _TICK_LIMIT = 1.1, 0.98
_CAPACITY_SHARE = 0.35  # minimum usage, as a share of the capacity, at which the plot includes the capacity
_MAX_BAR, _MIN_BAR_WITH_GAP, _MAX_LABELS = 34, 6, 12
_FAILED, _UP_TO_PEAK = "#b91c1c", "#dbeafe"
_USAGE = {
    "others_level": ("#9ca3af", "other or unattributed"),
    "outside_level": ("#f59e0b", "outside PyTorch"),
    "allocated": ("#3b82f6", "tensors"),
    "cache": ("#93c5fd", "PyTorch's cache"),
}
"""Color and label of each area of the plot, by `ReportRow` field, from bottom to top."""
_HOST_USAGE = {"allocated": ("#3b82f6", "resident memory of this process")}


class _DevicePanel:
    def __init__(self, device: str, rows: Sequence[ReportRow]) -> None:
        self.device, self.rows = device, rows
        self.colors = _HOST_USAGE if device == HOST else _USAGE
        self.capacity = max((row.capacity for row in rows if row.capacity is not None), default=None)
        self.usage = np.array([[max(getattr(row, name) or 0, 0) for name in self.colors] for row in rows], np.float64)
        peaks = [row.peak_level if row.peak_trust == "exact" else None for row in rows]
        below = [(row.outside_level or 0) + (row.others_level or 0) for row in rows]
        self.peaks = np.array([np.nan if peak is None else peak for peak in peaks]) + np.array(below)
        """Usage without PyTorch's cache at the peak of allocated memory in bytes; NaN if the peak is not exact."""
        self.highest = np.fmax(self.usage.sum(axis=1), self.peaks)
        limit = max(float(self.highest.max()), 1.0)
        if self.capacity is not None and limit >= _CAPACITY_SHARE * self.capacity:
            limit = max(limit, self.capacity)
        self.limit = limit * _HEADROOM
        self.failed = np.array([row.ooms > 0 or row.success is False for row in rows])


def history_plot(rows: Sequence[ReportRow], title: str) -> plot_image.PngImage:
    devices = sorted({row.device for row in rows}, key=lambda name: (len(name), name))
    panels = [_DevicePanel(device, [row for row in rows if row.device == device]) for device in devices[:_MAX_DEVICES]]
    highest = [f"{panel.device}: highest usage {size(int(panel.highest.max()))}" for panel in panels]
    height = _TOP + (_PANEL_HEIGHT * len(panels) + _LEGEND if panels else 30)
    text = "; ".join(highest) or "no measurements yet"
    return plot_image.render(height, lambda layout: _draw(layout, panels, title), text)


def _draw(layout: plot_image.PlotLayout, panels: list[_DevicePanel], title: str) -> None:
    measurements = {row.measurement: row.seconds for panel in panels for row in panel.rows}
    total = duration(sum(measurements.values()))
    info = f"{many(len(measurements), 'measurement')}, {total} in total" if panels else "no measurements yet"
    layout.title(plot_image.RIGHT, 20, clip(title, 48), info, size=14)
    for number, panel in enumerate(panels):
        _draw_panel(layout, panel, _TOP + _PANEL_HEIGHT * number + _PANEL_TOP)
    if panels:
        areas = {label: color for panel in panels for color, label in panel.colors.values()}
        items: list[plot_image.LegendItem] = [(color, label, None) for label, color in areas.items()]
        items.append((plot_image.INK, "peak" if panels[0].device == HOST else "tensors at the peak", "solid"))
        if any(panel.failed.any() for panel in panels):
            items.append((_FAILED, "failed", "solid"))
        layout.legend(plot_image.LEFT, _TOP + _PANEL_HEIGHT * len(panels) + 3, items)


def _draw_panel(layout: plot_image.PlotLayout, panel: _DevicePanel, top: float) -> None:
    count = len(panel.rows)
    edges = np.linspace(0, count, min(count, layout.columns) + 1)
    parts = itertools.pairwise(edges.astype(np.int64))
    shown_rows = np.array([first + panel.highest[first:end].argmax() for first, end in parts])
    edges -= 0.5
    width = max(count, plot_image.PLOT_WIDTH / _MAX_BAR)
    axes = layout.plot(top, _PLOT_HEIGHT, (-0.5, width - 0.5), panel.limit, _TICK_LIMIT)
    ends = np.append(shown_rows, shown_rows[-1])  # each step continues to the next edge
    colors = [color for color, _ in panel.colors.values()]
    options = {"step": "post", "antialiased": False, "linewidth": 0}
    axes.stackplot(edges, panel.usage[ends].T, colors=colors, **options)
    axes.fill_between(edges, panel.usage[ends].sum(axis=1), panel.highest[ends], color=_UP_TO_PEAK, **options)
    if plot_image.PLOT_WIDTH / width >= _MIN_BAR_WITH_GAP:
        axes.vlines(edges, 0, panel.highest[ends], color="white", linewidth=plot_image.POINT)
    failure_heights = np.where(panel.failed[shown_rows], panel.limit, np.nan)
    for heights, color, thickness in ((panel.peaks[shown_rows], plot_image.INK, 2), (failure_heights, _FAILED, 8)):
        is_finite = np.isfinite(heights)  # matplotlib 3.6 warns about NaN
        axes.hlines(
            heights[is_finite],
            edges[:-1][is_finite],
            edges[1:][is_finite],
            color=color,
            linewidth=thickness * plot_image.POINT,
        )
    info = [f"highest usage {size(int(panel.highest.max()))}"]
    if panel.capacity is not None and panel.capacity > panel.limit:
        info.append(f"capacity {size(panel.capacity)}, above the plot")
    elif panel.capacity is not None:
        axes.axhline(panel.capacity, color=plot_image.SOFT, linewidth=plot_image.POINT, linestyle=(0, (4, 3)))
        info.append(f"capacity {size(panel.capacity)} (dashed line)")
    unknown = [
        label
        for label, name in (("outside PyTorch", "outside_level"), ("other processes", "others_level"))
        if panel.device != HOST and any(getattr(row, name) is None for row in panel.rows)
    ]
    if unknown:
        info.append(f"partly unknown: {' and '.join(unknown)}")
    layout.title(plot_image.LEFT, top - 12, clip(panel.device, 24), " · ".join(info))
    numbers = range(0, count, -(-count // _MAX_LABELS))
    cells = [(number, panel.rows[number].cell) for number in numbers]
    layout.label_x(
        axes, [(number, f"In [{cell}]") for number, cell in cells if cell is not None], fontsize=10 * plot_image.POINT
    )
    axes.tick_params(axis="x", length=0, pad=8 * plot_image.POINT)
