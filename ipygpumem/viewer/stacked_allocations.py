"""Pixels and colors of the stacked areas that show the allocations of a device in a plot.

Each pixel column represents a range of events and shows the state with the most requested memory in this range. The
allocations that are live in this state are stacked in order of allocation. Allocations at least one pixel high are
drawn individually, and sequences of smaller allocations are merged into bands. The lines of code that hold the most
memory at the peak have distinct colors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.units import many
from ipygpumem.snapshot.export.text import share
from ipygpumem.snapshot.queries.groups import Group, add_up, label_rows

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Ints, Timeline
    from ipygpumem.snapshot.snapshot import Snapshot


Pixels = NDArray[np.uint8]

EMPTY = 0  # pixel value of the background above all allocations
SMALL = 1  # pixel value of merged allocations that are less than one pixel high

# same as js/snapshot/palette.js; distinguishable with color vision deficiencies
_LINE_COLORS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#b9a0dc", "#99ddff", "#aaaa00", "#ffaabb", "#8fb7a8")
# for allocations without a line of code, by label prefix
_LABEL_COLORS = {"(older": "#b4bfcc", "(no stack": "#c9c2b4", "(no frame": "#bfc8d2", "(no Python": "#d8cfb4"}
_OTHER_LINES_COLOR = "#c4c9d0"
_SMALL_COLOR = (154, 161, 171, 255)
_SHADES = (0.0, 0.14, 0.28, 0.5)
"""Fractions of white in the shades of a color. Allocations use all but the last in turn. Bands use the last."""
_ALTERNATING = len(_SHADES) - 1


@dataclass(frozen=True, slots=True, eq=False)
class PixelColumns:
    """Pixel columns and the events that they represent.

    Attributes:
        first: int64, first event of each column; -1 for the time before the first event.
        event: int64, event after which requested memory is highest. The column shows the state after this event.
        requested: int64, requested memory in this state in bytes.
        reserved: int64, maximum of the reserved memory in the column in bytes; None if it is unknown.
        edges: float64, borders of the columns on the event axis, with one more element than columns.
    """

    first: Ints
    event: Ints
    requested: Ints
    reserved: Ints | None
    edges: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the start and the exclusive stop index of the columns for events ``first`` to ``last``."""
        begin = int(np.searchsorted(self.first, first, side="left"))
        if begin == len(self) or self.first[begin] > first:
            begin -= 1  # the range starts within a column
        return begin, max(int(np.searchsorted(self.first, last, side="right")), begin + 1)

    def center(self, event: int) -> float:
        """Return the center, on the event axis, of the column (or the middle column) that represents an event."""
        begin, end = self.span(event, event)
        middle = (begin + end - 1) // 2
        return float(self.edges[middle] + self.edges[middle + 1]) / 2


def pixel_columns(timeline: Timeline, width: int) -> PixelColumns:
    requested = timeline.requested
    points = len(requested)
    borders = np.arange(width + 1) * points // width
    first, last = borders[:-1], np.maximum(borders[1:], borders[:-1] + 1)
    ranges = list(zip(first.tolist(), last.tolist(), strict=True))
    highest = np.array([start + int(np.argmax(requested.bytes[start:stop])) for start, stop in ranges], np.int64)
    reserved = None
    if timeline.reserved is not None and timeline.reserved_peak is not None:
        reserved = np.array([timeline.reserved.bytes[start:stop].max() for start, stop in ranges], np.int64)
    return PixelColumns(
        first=requested.event[first],
        event=requested.event[highest],
        requested=requested.bytes[highest],
        reserved=reserved,
        edges=np.linspace(-1.5, points - 1.5, width + 1),
    )


def stacked_pixels(
    timeline: Timeline, columns: PixelColumns, height: int, unit: float, *, single: Pixels, band: Pixels
) -> Pixels:
    """Return the pixel values of the allocations stacked in each column, top row first. ``unit`` is in bytes per pixel.

    ``single`` and ``band`` contain one value for each allocation, greater than `SMALL`. An allocation at least one
    pixel high has its ``single`` value. Adjacent smaller allocations with equal ``band`` values are merged into a band,
    which has this value, or `SMALL` if the band is less than one pixel high.
    """
    events, column_of = np.unique(columns.event, return_inverse=True)  # a short recording has fewer events than columns
    pixels = np.full((height, len(events)), EMPTY, np.uint8)
    sizes = timeline.allocations.size
    for column, rows in enumerate(_live_rows(timeline, events)):
        size = sizes[rows]
        tall, bands = size >= unit, band[rows]
        starts_run = np.ones(len(rows), np.bool_)
        starts_run[1:] = tall[1:] | tall[:-1] | (bands[1:] != bands[:-1])
        first = np.flatnonzero(starts_run)
        ends = np.cumsum(np.add.reduceat(size, first)) if len(rows) else size
        edges = np.minimum(np.rint(ends / unit), height).astype(np.int64)
        visible = np.diff(ends, prepend=0) >= unit
        values = np.where(visible, np.where(tall[first], single[rows[first]], bands[first]), SMALL)
        stack = np.repeat(values, np.diff(edges, prepend=0))
        pixels[height - len(stack) :, column] = stack[::-1]
    return pixels[:, column_of]


def _live_rows(timeline: Timeline, events: Ints) -> Iterator[Ints]:
    allocations = timeline.allocations
    order = np.argsort(allocations.start, kind="stable")
    start, end = allocations.start[order], allocations.end[order]
    live = np.zeros(0, np.int64)
    row_count = 0
    for event in events.tolist():
        # events are sorted, so a freed allocation never becomes live again
        until = int(np.searchsorted(start, event, side="right"))
        live = np.concatenate([live, np.arange(row_count, until)])
        live = live[end[live] > event]
        row_count = until
        yield order[live]


class LegendEntry(NamedTuple):
    """Label of lines of code, requested memory at the peak in bytes, share of the peak, and color (``#rrggbb``)."""

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
        legend: Lines of code with distinct colors, largest first, followed by totals of the other lines.
    """

    single: NDArray[np.uint8]
    band: NDArray[np.uint8]
    palette: NDArray[np.uint8]
    legend: tuple[LegendEntry, ...]


def line_colors(snapshot: Snapshot, timeline: Timeline) -> LineColors:
    allocations = timeline.allocations
    rows = np.arange(len(allocations))
    _, line = label_rows(snapshot, timeline, rows, "line")
    live = snapshot.live(device=timeline.device)
    # groups and totals are sorted in the same order, also where sizes are equal
    groups = live.by("line")
    totals = add_up(line[live.rows], allocations.size[live.rows])
    colors = _group_colors(groups[: len(_LINE_COLORS)])
    color_of = np.full(int(line.max(initial=-1)) + 1, len(colors), np.int64)
    for number, (group, _, _) in enumerate(totals[: len(colors)]):
        color_of[group] = number
    order = np.empty(len(allocations), np.int64)
    order[np.argsort(allocations.start, kind="stable")] = rows
    base = SMALL + 1 + color_of[line] * len(_SHADES)
    entries = [(group.label, group.bytes, color) for group, color in zip(groups, colors, strict=False)]
    other_groups = groups[len(colors) :]
    if other_groups:
        total = sum(group.bytes for group in other_groups)
        entries.append((many(len(other_groups), "other line"), total, _OTHER_LINES_COLOR))
    legend = [LegendEntry(label, size, _percentage(size, live.bytes), color) for label, size, color in entries]
    unused_lines = len(np.unique(line)) - len(groups)
    if unused_lines > 0:
        legend.append(
            LegendEntry(f"{many(unused_lines, 'line')} with no memory in use at the peak", 0, "", _OTHER_LINES_COLOR)
        )
    single, band = base + order % _ALTERNATING, base + _ALTERNATING
    palette = _palette([*colors, _OTHER_LINES_COLOR])
    return LineColors(single.astype(np.uint8), band.astype(np.uint8), palette, tuple(legend))


def _group_colors(groups: Sequence[Group]) -> list[str]:
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
    return "<1%" if 0 < part < whole // 100 else share(part, whole).replace(" ", "")
