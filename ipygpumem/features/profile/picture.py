"""The still picture of a profile: the memory of each device by category over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.units import duration, precise_size, size
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.snapshot.export.text import clip, many
from ipygpumem.viewer.axes import INK, LEFT, RIGHT, mark_peak, steps, time_ticks
from ipygpumem.viewer.still import render

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.features.profile.timeline import CategoryTimeline, Profile
    from ipygpumem.viewer.axes import LegendItem, Sheet
    from ipygpumem.viewer.still import Picture

__all__ = ["profile_picture"]

_MAX_DEVICES = 4
_HEADROOM, _TICK_LIMIT = 1.14, 0.92
_TOP, _PANEL_TOP, _PLOT_HEIGHT, _PANEL_HEIGHT, _LEGEND_ROW = 36, 26, 230, 310, 20
_LEGEND_COLUMNS = 4
_RESERVED = "#c2410c"
_ORDER = (0, 1, 5, 2, 4, 6, 3, 7)
"""Categories from the bottom up, as in the page: long-lived memory first."""
_COLORS = ("#44bb99", "#eedd88", "#c9a27e", "#b9a0dc", "#ee8866", "#77aadd", "#99ddff", "#b4bfcc")


def profile_picture(profile: Profile, name: str) -> Picture:
    """Draw a profile.

    Raises:
        OptionError: matplotlib is not installed.
    """
    shown = profile.timelines[:_MAX_DEVICES]
    tops = np.cumsum([_TOP, *(_PANEL_HEIGHT + _LEGEND_ROW * _legend_rows(timeline) for timeline in shown)]).tolist()
    facts = f"memory by category, {many(sum(map(len, profile.timelines)), 'change')}"
    if len(profile.timelines) > len(shown):
        facts += f"; {many(len(profile.timelines) - len(shown), 'other device')} in the page"

    def draw(sheet: Sheet) -> None:
        sheet.title(RIGHT, 20, clip(name, 60), facts, size=14)
        for timeline, top in zip(shown, tops[:-1], strict=True):
            _draw_panel(sheet, timeline, top + _PANEL_TOP)

    return render(tops[-1], draw, "; ".join(f"{timeline.device}: {_peak_label(timeline)}" for timeline in shown))


def _peak_label(timeline: CategoryTimeline) -> str:
    row, level = timeline.peak
    return f"peak {size(level)} after {duration(timeline.when(row) / 1e9)}"


def _legend_categories(timeline: CategoryTimeline) -> list[int]:
    """Return the categories that the device ever had memory of."""
    used = np.any(timeline.levels > 0, axis=0).tolist()
    return [category for category in _ORDER if used[category]]


def _legend_rows(timeline: CategoryTimeline) -> int:
    return -(-len(_legend_categories(timeline)) // _LEGEND_COLUMNS)


def _draw_panel(sheet: Sheet, timeline: CategoryTimeline, top: float) -> None:
    rows, spans = _columns(timeline, sheet.columns)
    limit = max(float(timeline.total.max()), 1.0) * _HEADROOM
    seconds = max(timeline.end - timeline.start, 1) / 1e9
    edges = np.linspace(0, seconds, sheet.columns + 1)
    axes = sheet.plot(top, _PLOT_HEIGHT, (0, seconds), limit, _TICK_LIMIT)
    sheet.label_x(axes, time_ticks(0, seconds))
    upper = np.cumsum(np.maximum(timeline.levels[rows][:, _ORDER], 0), axis=1)
    lower = np.zeros(len(rows))
    for place, category in enumerate(_ORDER):
        steps(axes, edges, upper[:, place], _COLORS[category], baseline=lower)
        lower = upper[:, place]
    facts = [f"{many(len(timeline), 'change')} in {duration((timeline.end - timeline.start) / 1e9)}"]
    reserved = _highest_reserved(timeline.reserved, spans)
    if np.isfinite(reserved).any():
        facts.append(f"reserved at most {size(int(np.nanmax(reserved)))}")
        steps(axes, edges, np.where(reserved <= limit, reserved, np.nan), _RESERVED, width=1.2)
    sheet.title(LEFT, top - 12, timeline.device, " · ".join(facts))
    row, level = timeline.peak
    column = int((rows == row).argmax())
    mark_peak(axes, (edges[column] + edges[column + 1]) / 2, level, _peak_label(timeline))
    _draw_legend(sheet, timeline, top + _PLOT_HEIGHT + 25)


def _columns(timeline: CategoryTimeline, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the highest state of each column, and the first and last state of each, shape (columns, 2)."""
    edges = np.linspace(0, max(timeline.end - timeline.start, 1), columns + 1)
    time = timeline.time - timeline.start
    first = np.searchsorted(time, edges[:-1], side="right")
    last = np.maximum(first, np.searchsorted(time, edges[1:], side="left"))
    last[-1] = len(timeline)
    total = timeline.total
    spans = np.stack([first, last], axis=1)
    return np.array([start + int(total[start : end + 1].argmax()) for start, end in spans], np.int64), spans


def _highest_reserved(reserved: NDArray[np.int64] | None, spans: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the most reserved bytes in each column; NaN where the allocator did not report them."""
    highest = np.full(len(spans), np.nan)
    if reserved is None:
        return highest
    for column, (first, last) in enumerate(spans.tolist()):
        part = reserved[max(first - 1, 0) : max(last, 1)]
        if len(part) and part.max() >= 0:
            highest[column] = part.max()
    return highest


def _draw_legend(sheet: Sheet, timeline: CategoryTimeline, y: float) -> None:
    """List the categories with their bytes at the peak."""
    levels = timeline.levels[timeline.peak[0]].tolist()
    items: list[LegendItem] = [
        (_COLORS[category], f"{CATEGORIES[category]}  {precise_size(levels[category])}", None)
        for category in _legend_categories(timeline)
    ]
    sheet.legend(LEFT, y, items, _LEGEND_COLUMNS, title="at the peak", labelcolor=INK)
