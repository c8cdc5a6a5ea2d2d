"""Colors of allocations: each line of code that holds most of the peak has its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipygpumem.snapshot.export.text import many, share
from ipygpumem.snapshot.queries.groups import add_up, label_rows
from ipygpumem.viewer.detail import SMALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.snapshot import Snapshot

    Color = tuple[int, int, int]

__all__ = ["LegendEntry", "LineColors", "line_colors"]

# the same colors as in the viewer (js/snapshot/palette.js): distinguishable with any color vision
_LINE_COLORS: tuple[Color, ...] = (
    (119, 170, 221),
    (238, 136, 102),
    (68, 187, 153),
    (238, 221, 136),
    (185, 160, 220),
    (153, 221, 255),
    (170, 170, 0),
    (255, 170, 187),
    (143, 183, 168),
)
# for allocations without a line of code, by the start of their label
_LABEL_COLORS: dict[str, Color] = {
    "(older": (180, 191, 204),
    "(no stack": (201, 194, 180),
    "(no frame": (191, 200, 210),
    "(no Python": (216, 207, 180),
}
_REST_COLOR: Color = (196, 201, 208)
_SMALL_COLOR: Color = (154, 161, 171)
_SHADES = (0.0, 0.14, 0.28, 0.5)
"""Share of white: allocations of one line alternate between all but the last, which is for bands."""
_ALTERNATING = len(_SHADES) - 1


class LegendEntry(NamedTuple):
    """A line of code, its percentage of the peak, its requested bytes at the peak, and its color (``#rrggbb``)."""

    label: str
    share: str
    bytes: int
    color: str


@dataclass(frozen=True, slots=True, eq=False)
class LineColors:
    """Colors of a device's allocations.

    Attributes:
        single: uint8 for each allocation: pixel value where it is drawn individually (see `detail.strata`).
        band: uint8 for each allocation: pixel value in a run of small allocations of one line.
        palette: uint8, shape (256, 4): red, green, blue and alpha by pixel value.
        legend: Entries, the largest first.
    """

    single: NDArray[np.uint8]
    band: NDArray[np.uint8]
    palette: NDArray[np.uint8]
    legend: tuple[LegendEntry, ...]


def line_colors(snapshot: Snapshot, timeline: Timeline) -> LineColors:
    """Color a device's allocations by the line of code that made them."""
    allocations = timeline.allocations
    rows = np.arange(len(allocations))
    _, line = label_rows(snapshot, timeline, rows, "line")
    live = snapshot.live(device=timeline.device)
    # groups and totals have the same order: by bytes, and equal ones alike
    groups = live.by("line")
    totals = add_up(line[live.rows], allocations.size[live.rows])
    colors = _group_colors(groups[: len(_LINE_COLORS)])
    rank = np.full(int(line.max(initial=-1)) + 1, len(colors), np.int64)
    for number, (code, _, _) in enumerate(totals[: len(colors)]):
        rank[code] = number
    order = np.empty(len(allocations), np.int64)
    order[np.argsort(allocations.start, kind="stable")] = rows
    base = SMALL + 1 + rank[line] * len(_SHADES)
    legend = [
        LegendEntry(group.label, _percentage(group.bytes, live.bytes), group.bytes, _hexadecimal(color))
        for group, color in zip(groups, colors, strict=False)
    ]
    rest = groups[len(colors) :]
    if rest:
        size = sum(group.bytes for group in rest)
        label = many(len(rest), "other line")
        legend.append(LegendEntry(label, _percentage(size, live.bytes), size, _hexadecimal(_REST_COLOR)))
    freed = len(np.unique(line)) - len(groups)
    if freed > 0:
        label = f"{many(freed, 'line')} not alive at the peak"
        legend.append(LegendEntry(label, "", 0, _hexadecimal(_REST_COLOR)))
    return LineColors(
        (base + order % _ALTERNATING).astype(np.uint8),
        (base + _ALTERNATING).astype(np.uint8),
        _palette([*colors, _REST_COLOR]),
        tuple(legend),
    )


def _group_colors(groups: Sequence[Group]) -> list[Color]:
    """Give lines of code strong colors in their order, and allocations without a line their own muted color."""
    strong = iter(_LINE_COLORS)
    colors = []
    for group in groups:
        muted = [color for start, color in _LABEL_COLORS.items() if group.label.startswith(start)]
        colors.append(muted[0] if muted and group.line is None else next(strong))
    return colors


def _palette(colors: list[Color]) -> NDArray[np.uint8]:
    palette = np.zeros((256, 4), np.uint8)
    palette[SMALL] = (*_SMALL_COLOR, 255)
    shades = [[part + (255 - part) * white for part in color] for color in colors for white in _SHADES]
    palette[SMALL + 1 : SMALL + 1 + len(shades), :3] = np.rint(shades)
    palette[SMALL + 1 : SMALL + 1 + len(shades), 3] = 255
    return palette


def _percentage(part: int, whole: int) -> str:
    return "< 1 %" if 0 < part < whole // 100 else share(part, whole).strip()


def _hexadecimal(color: Color) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)
