"""Level of detail for a picture of fixed width: every peak stays visible, and small allocations are added up.

Each pixel column represents a range of events and shows the instant with the most requested bytes, so that no peak is
missed. There the live allocations are stacked in the order in which they were made. An allocation at least one pixel
high is drawn individually; runs of smaller ones are merged into bands.
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
"""Pixel value above all allocations."""
SMALL = 1
"""Pixel value of mixed allocations that are less than one pixel high."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Pixel columns and the events that they represent.

    Attributes:
        first: int64, first event of each column; -1 is the state before the first event.
        event: int64, event after which requested bytes are highest: the instant that is shown.
        requested: int64, bytes at that instant.
        reserved: int64, most bytes reserved at any instant of the column; None if unknown or inconsistent.
        edges: float64, one more than columns: their borders on an axis of events.
    """

    first: Ints
    event: Ints
    requested: Ints
    reserved: Ints | None
    edges: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the first column that represents events ``first`` to ``last`` and the column after them."""
        begin = int(np.searchsorted(self.first, first, side="left"))
        if begin == len(self) or self.first[begin] > first:
            begin -= 1  # the range starts within a column
        return begin, max(int(np.searchsorted(self.first, last, side="right")), begin + 1)

    def center(self, event: int) -> float:
        """Return the center of the column that represents an event, the middle one if there are several."""
        begin, end = self.span(event, event)
        middle = (begin + end - 1) // 2
        return float(self.edges[middle] + self.edges[middle + 1]) / 2


def columns(timeline: Timeline, width: int) -> Columns:
    """Divide a device's events evenly into ``width`` pixel columns."""
    requested, reserved = timeline.requested, timeline.reserved
    points = len(requested)
    borders = np.arange(width + 1) * points // width
    first, last = borders[:-1], np.maximum(borders[1:], borders[:-1] + 1)
    ranges = list(zip(first.tolist(), last.tolist(), strict=True))
    highest = np.array([start + int(np.argmax(requested.bytes[start:stop])) for start, stop in ranges], np.int64)
    reserved_bytes = None
    if reserved is not None and (reserved.bytes >= 0).all():
        reserved_bytes = np.array([reserved.bytes[start:stop].max() for start, stop in ranges], np.int64)
    return Columns(
        first=requested.event[first],
        event=requested.event[highest],
        requested=requested.bytes[highest],
        reserved=reserved_bytes,
        edges=np.linspace(-1.5, points - 1.5, width + 1),
    )


def strata(timeline: Timeline, chosen: Columns, height: int, unit: float, *, single: Pixels, band: Pixels) -> Pixels:
    """Compute what each pixel shows, with ``unit`` bytes per pixel: uint8, shape (height, columns), the top row first.

    ``single`` has the pixel value of each allocation where it is drawn individually, above `SMALL`, and ``band`` its
    value in a run of small ones with equal values. A run that is itself less than one pixel high becomes `SMALL`.
    """
    pixels = np.full((height, len(chosen)), EMPTY, np.uint8)
    sizes = timeline.allocations.size
    for column, rows in enumerate(_live_rows(timeline, chosen)):
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


def _live_rows(timeline: Timeline, chosen: Columns) -> Iterator[Ints]:
    """Yield the allocations that are live at each column's instant, in the order in which they were made."""
    allocations = timeline.allocations
    order = np.argsort(allocations.start, kind="stable")
    start, end = allocations.start[order], allocations.end[order]
    live = np.zeros(0, np.int64)
    made = 0
    for event in chosen.event.tolist():
        # columns are in the order of events, so an allocation that was freed never becomes live again
        until = int(np.searchsorted(start, event, side="right"))
        live = np.concatenate([live, np.arange(made, until)])
        live = live[end[live] > event]
        made = until
        yield order[live]
