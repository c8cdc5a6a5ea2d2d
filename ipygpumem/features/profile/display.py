"""Static plot and standalone HTML page of a profile with the memory usage of each device by category over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.text import clip
from ipygpumem.core.units import duration, many, precise_size, size
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.timeline import CategoryTimeline
from ipygpumem.snapshot.export.encode import encode_columns
from ipygpumem.viewer import plot_image
from ipygpumem.viewer.write import PageData, document

_MAX_DEVICES = 4
_HEADROOM, _TICK_LIMIT = 1.14, 0.92
_TOP, _PANEL_TOP, _PLOT_HEIGHT, _PANEL_HEIGHT, _LEGEND_ROW = 36, 26, 230, 310, 20
_LEGEND_COLUMNS = 4
_RESERVED = "#c2410c"
_ORDER = (0, 1, 5, 2, 4, 6, 3, 7)
"""Categories from bottom to top, as on the timeline page, with long-lived memory first."""
_COLORS = ("#44bb99", "#eedd88", "#c9a27e", "#b9a0dc", "#ee8866", "#77aadd", "#99ddff", "#b4bfcc")


def profile_plot(timelines: Sequence[CategoryTimeline], name: str) -> plot_image.PngImage:
    shown_timelines = timelines[:_MAX_DEVICES]
    legend_rows = [-(-len(_legend_categories(timeline)) // _LEGEND_COLUMNS) for timeline in shown_timelines]
    tops = np.cumsum([_TOP, *(_PANEL_HEIGHT + _LEGEND_ROW * count for count in legend_rows)]).tolist()
    info = f"memory by category, {many(sum(map(len, timelines)), 'change')}"
    if len(timelines) > len(shown_timelines):
        info += f"; {many(len(timelines) - len(shown_timelines), 'more device')} on the timeline page"

    def draw(layout: plot_image.PlotLayout) -> None:
        layout.title(plot_image.RIGHT, 20, clip(name, 60), info, size=14)
        for timeline, top in zip(shown_timelines, tops[:-1], strict=True):
            _draw_panel(layout, timeline, top + _PANEL_TOP)

    return plot_image.render(
        tops[-1], draw, "; ".join(f"{timeline.device}: {_peak_label(timeline)}" for timeline in shown_timelines)
    )


def _peak_label(timeline: CategoryTimeline) -> str:
    row, nbytes = timeline.peak
    return f"peak {size(nbytes)} after {duration(timeline.elapsed(row) / 1e9)}"


def _legend_categories(timeline: CategoryTimeline) -> list[int]:
    is_used = np.any(timeline.usage > 0, axis=0).tolist()
    return [category for category in _ORDER if is_used[category]]


def _draw_panel(layout: plot_image.PlotLayout, timeline: CategoryTimeline, top: float) -> None:
    limit = max(float(timeline.total.max()), 1.0) * _HEADROOM
    seconds = max(timeline.end - timeline.start, 1) / 1e9
    axes = layout.plot(top, _PLOT_HEIGHT, (0, seconds), limit, _TICK_LIMIT)
    layout.label_x(axes, plot_image.time_ticks(0, seconds))
    rows = _highest_rows(timeline, layout.columns)
    usage = np.maximum(timeline.usage[np.append(rows, rows[-1])], 0)[:, _ORDER]
    colors = [_COLORS[category] for category in _ORDER]
    edges = np.linspace(0, seconds, len(usage))
    axes.stackplot(edges, usage.T, step="post", colors=colors, antialiased=False, linewidth=0)
    info = [f"{many(len(timeline), 'change')} in {duration((timeline.end - timeline.start) / 1e9)}"]
    if timeline.reserved is not None and (has_counter := timeline.reserved >= 0).any():
        info.append(f"peak reserved {size(int(timeline.reserved.max()))}")
        reserved = np.where(has_counter, timeline.reserved, np.nan)
        times = (timeline.time - timeline.start) / 1e9
        axes.plot(times, reserved, color=_RESERVED, linewidth=1.2 * plot_image.POINT, drawstyle="steps-post")
    layout.title(plot_image.LEFT, top - 12, timeline.device, " · ".join(info))
    row, nbytes = timeline.peak
    plot_image.mark_peak(axes, timeline.elapsed(row) / 1e9, nbytes, _peak_label(timeline))
    usage_at_peak = timeline.usage[row].tolist()
    items: list[plot_image.LegendItem] = [
        (_COLORS[category], f"{CATEGORIES[category]}  {precise_size(usage_at_peak[category])}", None)
        for category in _legend_categories(timeline)
    ]
    layout.legend(
        plot_image.LEFT, top + _PLOT_HEIGHT + 25, items, _LEGEND_COLUMNS, title="at the peak", labelcolor=plot_image.INK
    )


def _highest_rows(timeline: CategoryTimeline, columns: int) -> NDArray[np.int64]:
    edges = np.linspace(0, max(timeline.end - timeline.start, 1), columns + 1)
    time = timeline.time - timeline.start
    first = np.searchsorted(time, edges[:-1], side="right")
    last = np.maximum(first, np.searchsorted(time, edges[1:], side="left"))
    last[-1] = len(timeline)
    spans = zip(first.tolist(), last.tolist(), strict=True)
    return np.array([start + int(timeline.total[start : end + 1].argmax()) for start, end in spans])


def encode_timelines(timelines: Sequence[CategoryTimeline], notes: Sequence[str] = ()) -> bytes:
    """The columns ``0/time``, ``1/time`` etc. contain nanoseconds since the start of the earliest timeline."""
    origin = min((timeline.start for timeline in timelines), default=0)
    devices = [
        {
            "name": timeline.device,
            "base": timeline.base.tolist(),
            "start": 0,
            "end": timeline.end - origin,
            "count": len(timeline),
            "has_counters": timeline.allocated is not None,
        }
        for timeline in timelines
    ]
    columns: list[tuple[str, NDArray[Any]]] = []
    for number, timeline in enumerate(timelines):
        columns.append((f"{number}/time", np.maximum(timeline.time - origin, 0)))
        names = ("source", "target", "size", *(() if timeline.allocated is None else ("allocated", "reserved")))
        columns += [(f"{number}/{name}", getattr(timeline, name)) for name in names]
    return encode_columns({"version": 1, "notes": list(notes), "devices": devices}, columns)


def timeline_page(timelines: Sequence[CategoryTimeline], name: str, notes: Sequence[str] = ()) -> str:
    """Return an HTML page that displays one or more timelines."""
    data = PageData(name, encode_timelines(timelines, notes))
    return document("categories.js", "memory by category", [data], "auto")
