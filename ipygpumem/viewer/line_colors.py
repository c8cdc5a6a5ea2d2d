"""Colors of allocations. The lines of code that hold most memory at the peak have distinct colors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipygpumem.core.units import many
from ipygpumem.snapshot.export.text import share
from ipygpumem.snapshot.queries.groups import add_up, label_rows
from ipygpumem.viewer.level_of_detail import SMALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.snapshot import Snapshot

# same as js/snapshot/palette.js; distinguishable with color vision deficiencies
_LINE_COLORS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#b9a0dc", "#99ddff", "#aaaa00", "#ffaabb", "#8fb7a8")
# for allocations without a line of code, by label prefix
_LABEL_COLORS = {"(older": "#b4bfcc", "(no stack": "#c9c2b4", "(no frame": "#bfc8d2", "(no Python": "#d8cfb4"}
_OTHER_LINES_COLOR = "#c4c9d0"
_SMALL_COLOR = (154, 161, 171, 255)
_SHADES = (0.0, 0.14, 0.28, 0.5)
"""Fractions of white. Allocations from a line alternate between all but the last shade, which is for bands."""
_ALTERNATING = len(_SHADES) - 1


class LegendEntry(NamedTuple):
    """A line of code with its requested memory at the peak, its percentage of the peak and its color (``#rrggbb``)."""

    label: str
    bytes: int
    share: str
    color: str


@dataclass(frozen=True, slots=True, eq=False)
class LineColors:
    """Colors of a device's allocations.

    Attributes:
        single: uint8, pixel value of each allocation where it is drawn individually (see `stacked_pixels`).
        band: uint8, pixel value of each allocation in a band of small allocations from one line.
        palette: uint8 array of shape (256, 4), RGBA color of each pixel value.
        legend: Legend entries, in descending order of size.
    """

    single: NDArray[np.uint8]
    band: NDArray[np.uint8]
    palette: NDArray[np.uint8]
    legend: tuple[LegendEntry, ...]


def line_colors(snapshot: Snapshot, timeline: Timeline) -> LineColors:
    """Return colors for a device's allocations by the line of code that allocated them."""
    allocations = timeline.allocations
    rows = np.arange(len(allocations))
    _, line = label_rows(snapshot, timeline, rows, "line")
    live = snapshot.live(device=timeline.device)
    # groups and totals are sorted in the same order, also where sizes are equal
    groups = live.by("line")
    totals = add_up(line[live.rows], allocations.size[live.rows])
    colors = _group_colors(groups[: len(_LINE_COLORS)])
    rank = np.full(int(line.max(initial=-1)) + 1, len(colors), np.int64)
    for number, (code, _, _) in enumerate(totals[: len(colors)]):
        rank[code] = number
    order = np.empty(len(allocations), np.int64)
    order[np.argsort(allocations.start, kind="stable")] = rows
    base = SMALL + 1 + rank[line] * len(_SHADES)
    entries = [(group.label, group.bytes, color) for group, color in zip(groups, colors, strict=False)]
    other_groups = groups[len(colors) :]
    if other_groups:
        total = sum(group.bytes for group in other_groups)
        entries.append((many(len(other_groups), "other line"), total, _OTHER_LINES_COLOR))
    legend = [LegendEntry(label, size, _percentage(size, live.bytes), color) for label, size, color in entries]
    freed = len(np.unique(line)) - len(groups)
    if freed > 0:
        legend.append(LegendEntry(f"{many(freed, 'line')} not alive at the peak", 0, "", _OTHER_LINES_COLOR))
    single, band = base + order % _ALTERNATING, base + _ALTERNATING
    palette = _palette([*colors, _OTHER_LINES_COLOR])
    return LineColors(single.astype(np.uint8), band.astype(np.uint8), palette, tuple(legend))


def _group_colors(groups: Sequence[Group]) -> list[str]:
    """Assign saturated colors to lines of code in order, and muted colors to allocations without a line."""
    saturated = iter(_LINE_COLORS)
    colors = []
    for group in groups:
        muted = [color for start, color in _LABEL_COLORS.items() if group.label.startswith(start)]
        colors.append(muted[0] if muted and group.line is None else next(saturated))
    return colors


def _palette(colors: list[str]) -> NDArray[np.uint8]:
    palette = np.zeros((256, 4), np.uint8)
    palette[SMALL] = _SMALL_COLOR
    channels = np.array([[*bytes.fromhex(color[1:]), 255] for color in colors], np.float64)[:, np.newaxis]
    white = np.array(_SHADES)[:, np.newaxis]
    shades = np.rint(channels + (255 - channels) * white).reshape(-1, 4)
    palette[SMALL + 1 :][: len(shades)] = shades
    return palette


def _percentage(part: int, whole: int) -> str:
    return "< 1 %" if 0 < part < whole // 100 else share(part, whole).strip()
