"""Static image of a snapshot on a white background, in which every peak is visible (see `stacked_allocations`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.text import clip
from ipygpumem.core.units import duration, many, precise_size, size
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.viewer.plot_image import (
    INK,
    POINT,
    RIGHT,
    SCALES,
    SOFT,
    WIDTH,
    PngImage,
    event_ticks,
    mark_peak,
    printable,
    render,
    steps,
)
from ipygpumem.viewer.stacked_allocations import PixelColumns, line_colors, pixel_columns, stacked_pixels

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.cells import Cell
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.plot_image import LegendItem, PlotLayout

_MANY_LIVE = 50_000  # average number of live allocations above which the lowest scale is used, because drawing is slow
_HEADROOM, _TICK_LIMIT = 1.16, 0.91  # axis limit relative to the largest value, and largest tick relative to the limit
_CAPACITY_SHARE = 0.35
"""Fraction of the device's capacity that memory usage must reach for the plot to include the capacity."""
_MAX_SAMPLED_RATIO = 4
"""The vertical axis includes sampled curves only up to this multiple of the other values, so that the memory usage of
other processes does not compress the plot."""
_TOP, _PLOT_HEIGHT, _SAMPLED_HEIGHT, _CELLS_HEIGHT, _LEGEND_ROW = 62, 300, 18, 16, 20
_LEGEND_COLUMNS = 2
_CELL_COLORS = ("#dbe4ee", "#e9eef4")
_CELL_LABEL, _LETTER_WIDTH = 12, 6.0
_RESERVED, _OOM, _SAMPLED = "#c2410c", "#b91c1c", "#6b4aa0"
_DASHES: Any = (0, (3, 2))


class SampledCurve(NamedTuple):
    """Sampled memory usage in bytes. ``event`` contains the last event before each sample, or -1 if there is none."""

    name: str
    event: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @property
    def style(self) -> Any:
        return (0, (4, 3)) if self.name.startswith("outside") else "solid"


def static_image(snapshot: Snapshot, device: int | None = None) -> PngImage:
    text = snapshot.summary(device)
    if device is None and not snapshot.timelines:
        title = clip(snapshot.name, 48)
        return render(40, lambda layout: layout.title(RIGHT, 20, title, "no device used memory", size=14), text)
    plot = _SnapshotPlot(snapshot, snapshot.timeline(device))
    lifetimes = plot.timeline.allocations.end - plot.timeline.allocations.start
    many_live = float(lifetimes.sum(dtype=np.float64)) / len(plot.timeline.requested) > _MANY_LIVE
    return render(plot.height, plot.draw, text, SCALES[-1:] if many_live else SCALES)


class _SnapshotPlot:
    def __init__(self, snapshot: Snapshot, timeline: Timeline) -> None:
        self.snapshot, self.timeline = snapshot, timeline
        self.colors = line_colors(snapshot, timeline)
        self.sampled = sampled_curves(snapshot, timeline)
        self.cells = snapshot.own.cells if timeline.trace.has_times else ()
        self.capacity = snapshot.own.device_totals.get(timeline.device)
        self.top = _TOP + (_CELLS_HEIGHT if self.cells else 0) + (_SAMPLED_HEIGHT if self.sampled else 0)
        self.legend_rows = -(-len(self.colors.legend) // _LEGEND_COLUMNS)
        self.height = self.top + _PLOT_HEIGHT + 56 + self.legend_rows * _LEGEND_ROW

    def draw(self, layout: PlotLayout) -> None:
        timeline, colors = self.timeline, self.colors
        columns = pixel_columns(timeline, layout.columns)
        limit = self._bytes_limit(columns)
        edges = columns.edges[0], columns.edges[-1]
        axes = layout.plot(self.top, _PLOT_HEIGHT, edges, limit, _TICK_LIMIT)
        layout.label_x(axes, event_ticks(len(timeline.trace)))
        axes.set_xlabel("event", loc="right")
        rows = round(_PLOT_HEIGHT * layout.scale)
        pixels = stacked_pixels(timeline, columns, rows, limit / rows, single=colors.single, band=colors.band)
        extent = (*axes.get_xlim(), *axes.get_ylim())
        axes.imshow(colors.palette[pixels], extent=extent, aspect="auto", interpolation="nearest", zorder=1)
        self._draw_curves(axes, columns, limit)
        if self.cells:
            self._draw_cells(layout, columns)
        self._draw_peak(axes, columns, limit)
        self._draw_heading(layout, limit)
        self._draw_legend(layout, limit / rows)

    def _bytes_limit(self, columns: PixelColumns) -> float:
        level = max(self.timeline.requested.peak()[1], 1)
        if columns.reserved is not None:
            level = max(level, int(columns.reserved.max()))
        sampled = [int(curve.bytes.max()) for curve in self.sampled]
        level = max([level, *(peak for peak in sampled if peak < _MAX_SAMPLED_RATIO * level)])
        if self.capacity and level >= _CAPACITY_SHARE * self.capacity:
            level = max(level, self.capacity)
        return level * _HEADROOM

    def _draw_curves(self, axes: Any, columns: PixelColumns, limit: float) -> None:
        if self.capacity is not None and self.capacity <= limit:
            axes.axhline(self.capacity, color=SOFT, linewidth=POINT, linestyle=_DASHES)
        for curve in self.sampled:
            axes.plot(curve.event, curve.bytes, color=_SAMPLED, linewidth=1.1 * POINT, linestyle=curve.style)
        if columns.reserved is not None:
            steps(axes, columns.edges, columns.reserved, _RESERVED, width=1.4)
        steps(axes, columns.edges, columns.requested, INK, width=0.7)
        for center in sorted({columns.center(event) for event in self.timeline.trace.events(Action.OOM).tolist()}):
            axes.axvline(center, color=_OOM, linewidth=1.2 * POINT, linestyle=_DASHES)

    def _draw_cells(self, layout: PlotLayout, columns: PixelColumns) -> None:
        from matplotlib.colors import to_rgba

        strip = layout.strip(self.top - _CELLS_HEIGHT, _CELLS_HEIGHT - 3, (0, len(columns)))
        time = self.timeline.trace.time
        first = np.searchsorted(time, [cell.start_us for cell in self.cells])
        after = np.searchsorted(time, [cell.end_us for cell in self.cells])
        palette = np.array([(0, 0, 0, 0), *(to_rgba(color) for color in _CELL_COLORS)])
        band = np.zeros((1, len(columns)), np.int64)
        labels: list[tuple[int, int, Cell]] = []
        for number in np.flatnonzero(first < after).tolist():
            begin, end = columns.span(int(first[number]), int(after[number]) - 1)
            band[0, begin:end] = 1 + number % len(_CELL_COLORS)
            if labels and labels[-1][1] > begin:
                labels.pop()  # covered by this cell's band
            labels.append((begin, end, self.cells[number]))
        # a patch for each of thousands of cells would take more than a minute
        strip.imshow(palette[band], extent=(0, len(columns), 0, 1), aspect="auto", interpolation="nearest")
        options = {"size": 10 * POINT, "color": SOFT, "ha": "center", "va": "center_baseline"}
        for begin, end, cell in labels:
            # without an execution count, the label is the file name
            label = cell.label if cell.number is not None else re.split(r"[/\\]", cell.label)[-1]
            label = printable(clip(label, _CELL_LABEL))
            if (end - begin) / layout.scale >= _LETTER_WIDTH * len(label) + 4:
                strip.text((begin + end) / 2, 0.5, label, **options)

    def _draw_peak(self, axes: Any, columns: PixelColumns, limit: float) -> None:
        event, level = self.timeline.requested.peak()
        x = columns.center(event)
        axes.plot([x, x], [level, limit], color=INK, linewidth=0.8 * POINT, linestyle=(0, (1, 2)))
        label = f"peak {precise_size(level)}" + (f" at event {event:,}" if event >= 0 else "")
        mark_peak(axes, x, level, label)

    def _draw_heading(self, layout: PlotLayout, limit: float) -> None:
        snapshot, timeline, trace = self.snapshot, self.timeline, self.timeline.trace
        device = f"GPU {timeline.device} {snapshot.own.device_names.get(timeline.device, '')}".rstrip()
        device_count = sum(1 for item in snapshot.timelines if len(item.trace) or item.end_reserved)
        if device_count > 1:
            device += f" (1 of {device_count} devices)"
        length = many(len(trace), "event")
        if trace.has_times and len(trace) > 1:
            length += f" in {duration(int(trace.time[-1] - trace.time[0]) / 1e6).replace('.0 ', ' ')}"
        layout.title(RIGHT, 20, clip(snapshot.name, 48), clip(f"{length} · {device}"), size=14)
        entries: list[LegendItem] = [(INK, f"requested ({precise_size(timeline.end_requested)} at the end)", "solid")]
        if timeline.reserved_peak is not None:
            entries.append((_RESERVED, f"reserved (peak {precise_size(timeline.reserved_peak)})", "solid"))
        if self.capacity:
            entries.append((SOFT, f"capacity {size(self.capacity)}", _DASHES))
        if len(trace.events(Action.OOM)):
            entries.append((_OOM, "out of memory", _DASHES))
        layout.legend(RIGHT, 37, entries)
        if self.sampled:
            layout.legend(RIGHT, 55, [(_SAMPLED, _sampled_label(curve, limit), curve.style) for curve in self.sampled])

    def _draw_legend(self, layout: PlotLayout, unit: float) -> None:
        allocations = self.timeline.allocations
        sizes = allocations.size[allocations.live(self.timeline.requested.peak()[0])]
        small = sizes[sizes < unit]
        title = "at the peak, by line"
        if len(small):
            merged = f"{many(len(small), 'block')} less than a pixel high ({precise_size(int(small.sum()))})"
            title += f"; {merged} merged into bands"
        top = self.top + _PLOT_HEIGHT
        layout.text(RIGHT, top + 30, title, size=11 * POINT)
        width = (WIDTH - 2 * RIGHT) / _LEGEND_COLUMNS
        for number, entry in enumerate(self.colors.legend):
            x, y = RIGHT + width * (number // self.legend_rows), top + 54 + _LEGEND_ROW * (number % self.legend_rows)
            layout.text(x, y, "■", color=entry.color, size=16 * POINT)
            layout.text(x + 84, y, precise_size(entry.bytes), color=INK, ha="right")
            layout.text(x + 130, y, entry.share, ha="right")
            layout.text(x + 140, y, clip(entry.label), limit=width - 152, color=INK)


def sampled_curves(snapshot: Snapshot, timeline: Timeline) -> list[SampledCurve]:
    curves = []
    for name, curve in snapshot.own.curves.items() if timeline.trace.has_times else ():
        if curve["device"] == timeline.device and curve["time_us"]:
            event = np.searchsorted(timeline.trace.time, np.asarray(curve["time_us"], np.int64), side="right") - 1
            curves.append(SampledCurve(clip(name), event, np.asarray(curve["bytes"], np.int64)))
    return curves


def _sampled_label(curve: SampledCurve, limit: float) -> str:
    label = f"{clip(curve.name, 30)}, peak {size(int(curve.bytes.max()))} (sampled)"
    return f"{label}, above the plot" if curve.bytes.min() > limit else label
