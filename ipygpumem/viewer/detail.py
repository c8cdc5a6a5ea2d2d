"""Level of detail for a picture of fixed width: nothing is dropped, what is lower than a pixel is summed.

Each pixel column stands for some events and shows the instant of its highest bytes, so that no peak is missed. There
the live allocations lie on one another in the order in which they were made. One that is a pixel high or more is drawn
as itself; runs of smaller ones become a band in their place.
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

__all__ = ["NOTHING", "SMALL", "Columns", "columns", "strata"]

NOTHING = 0
"""In a stratum: above everything."""
SMALL = 1
"""In a stratum: allocations that are lower than a pixel."""


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One row per pixel column.

    Attributes:
        first: int64, the first event that it stands for; -1 is the moment before the first event.
        event: int64, the event after which its bytes are highest: that instant is shown.
        requested: int64, bytes at that instant.
        reserved: int64, the most bytes reserved at any instant that it stands for; None where that is not known: also
            where the segments at the end and the events do not fit together.
    """

    first: Ints
    event: Ints
    requested: Ints
    reserved: Ints | None

    def __len__(self) -> int:
        return len(self.first)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The columns that stand for events ``first`` to ``last``, and the one behind them."""
        begin = int(np.searchsorted(self.first, first, side="left"))
        if begin == len(self) or self.first[begin] > first:
            begin -= 1  # it begins inside a column
        return begin, max(int(np.searchsorted(self.first, last, side="right")), begin + 1)

    def of(self, event: int) -> int:
        """The column that stands for an event: the middle one, where the event is as wide as several."""
        begin, end = self.span(event, event)
        return (begin + end - 1) // 2


def columns(timeline: Timeline, width: int) -> Columns:
    """Part a device's events evenly into ``width`` pixel columns."""
    requested = timeline.requested
    points = len(requested)
    edges = np.arange(width + 1) * points // width
    first = edges[:-1]
    last = np.maximum(edges[1:], first + 1)
    shown = np.fromiter(
        (a + int(np.argmax(requested.bytes[a:b])) for a, b in zip(first.tolist(), last.tolist(), strict=True)),
        np.int64,
        width,
    )
    reserved = timeline.reserved
    return Columns(
        first=requested.event[first],
        event=requested.event[shown],
        requested=requested.bytes[shown],
        reserved=None if reserved is None or (reserved.bytes < 0).any() else _highest(reserved.bytes, first, last),
    )


def _highest(values: Ints, first: Ints, last: Ints) -> Ints:
    return np.fromiter((values[a:b].max() for a, b in zip(first.tolist(), last.tolist(), strict=True)), np.int64)


def strata(
    timeline: Timeline,
    chosen: Columns,
    height: int,
    unit: float,
    *,
    kind: NDArray[np.uint8],
    band: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """The picture: for each pixel what lies there.

    Args:
        timeline: The device's history.
        chosen: Its columns.
        height: Pixels from nothing to the top.
        unit: Bytes of a pixel.
        kind: For each allocation what to write where it is drawn as itself, above `SMALL`.
        band: For each allocation what to write for a run of low ones that have this in common; a run that is lower
            than a pixel itself goes into `SMALL`.

    Returns:
        uint8, shape (height, columns), the top row first.
    """
    picture = np.zeros((height, len(chosen)), np.uint8)
    sizes = timeline.allocations.size
    for column, rows in enumerate(_living(timeline, chosen)):
        size = sizes[rows]
        tall, same = size >= unit, band[rows]
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = tall[1:] | tall[:-1] | (same[1:] != same[:-1])
        first = np.flatnonzero(begins)
        ends = np.cumsum(np.add.reduceat(size, first)) if len(rows) else size
        edges = np.minimum(np.rint(ends / unit), height).astype(np.int64)
        drawn = np.diff(ends, prepend=0) >= unit
        value = np.where(drawn, np.where(tall[first], kind[rows[first]], same[first]), SMALL)
        strip = np.repeat(value, np.diff(edges, prepend=0))
        picture[height - len(strip) :, column] = strip[::-1]
    return picture


def _living(timeline: Timeline, chosen: Columns) -> Iterator[Ints]:
    """Rows of the allocations alive at each column's instant, in the order in which they were made."""
    allocations = timeline.allocations
    order = np.argsort(allocations.start, kind="stable")
    start, end = allocations.start[order], allocations.end[order]
    alive = np.zeros(0, np.int64)
    made = 0
    for event in chosen.event.tolist():
        until = int(np.searchsorted(start, event, side="right"))
        # what is gone never comes back, as the columns go forward
        alive = np.concatenate([alive, np.arange(made, until)])
        alive = alive[end[alive] > event]
        made = until
        yield order[alive]
