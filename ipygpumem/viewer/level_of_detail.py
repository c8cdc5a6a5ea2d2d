"""Reduction of a device's allocations to the pixels of a plot that shows every peak and merges small allocations.

Each pixel column represents a range of events and shows the state with the most requested memory in this range. The
allocations that are live in this state are stacked in order of allocation. Allocations at least one pixel high are
drawn individually, and sequences of smaller allocations are merged into bands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline

    Ints = NDArray[np.int64]
    Pixels = NDArray[np.uint8]

EMPTY = 0
"""Pixel value of the background above all allocations."""
SMALL = 1
"""Pixel value of merged allocations that are less than one pixel high."""


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
        """Return the start and exclusive stop index of the columns that represent events ``first`` to ``last``."""
        begin = int(np.searchsorted(self.first, first, side="left"))
        if begin == len(self) or self.first[begin] > first:
            begin -= 1  # the range starts within a column
        return begin, max(int(np.searchsorted(self.first, last, side="right")), begin + 1)

    def center(self, event: int) -> float:
        """Return the center of the column that represents an event, or of the middle column if there are several."""
        begin, end = self.span(event, event)
        middle = (begin + end - 1) // 2
        return float(self.edges[middle] + self.edges[middle + 1]) / 2


def pixel_columns(timeline: Timeline, width: int) -> PixelColumns:
    """Divide a device's events evenly into ``width`` pixel columns."""
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
    """Return the pixel values of the allocations stacked in each column.

    Args:
        timeline: Timeline of a device.
        columns: Pixel columns of the plot.
        height: Number of rows.
        unit: Bytes per pixel.
        single: Value of each allocation where it is drawn individually, greater than `SMALL`.
        band: Value of each allocation in a band. Small allocations with equal values form a band, and bands less than
            one pixel high become `SMALL`.

    Returns:
        uint8 array of shape (height, columns), top row first.
    """
    pixels = np.full((height, len(columns)), EMPTY, np.uint8)
    sizes = timeline.allocations.size
    for column, rows in enumerate(_live_rows(timeline, columns)):
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
    return pixels


def _live_rows(timeline: Timeline, columns: PixelColumns) -> Iterator[Ints]:
    """Yield the rows of the allocations that each column shows, in order of allocation."""
    allocations = timeline.allocations
    order = np.argsort(allocations.start, kind="stable")
    start, end = allocations.start[order], allocations.end[order]
    live = np.zeros(0, np.int64)
    added = 0
    for event in columns.event.tolist():
        # columns are in event order, so a freed allocation never becomes live again
        until = int(np.searchsorted(start, event, side="right"))
        live = np.concatenate([live, np.arange(added, until)])
        live = live[end[live] > event]
        added = until
        yield order[live]
