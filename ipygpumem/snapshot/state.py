"""The allocator's segments and blocks at any event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.allocations import BEFORE
from ipygpumem.snapshot.distinct import distinct
from ipygpumem.snapshot.trace import Action
from ipygpumem.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.segments import Blocks, Segments
    from ipygpumem.snapshot.timeline import Timeline

    Ints = NDArray[np.int64]

__all__ = ["BLOCK", "SEGMENT", "SMALL_SEGMENT", "SegmentHistory", "State"]

SEGMENT = np.dtype(
    [
        ("address", "i8"),
        ("size", "i8"),
        ("stream", "i8"),
        ("stack", "i4"),
        ("pool", "i4"),
        ("small", "i1"),
        ("expandable", "?"),
    ]
)
"""Columns of ``State.segments``. ``stack``, ``pool`` and ``small`` (of the small pool) are -1 where not known."""

BLOCK = np.dtype(
    [("address", "i8"), ("requested", "i8"), ("rounded", "i8"), ("row", "i8"), ("stack", "i4"), ("pending", "?")]
)
"""Columns of ``State.blocks``. ``rounded`` is -1 for a block that is freed later: no file tells its rounded size."""

SMALL_SEGMENT = 2 * MIB
"""Bytes of every segment of the small pool that comes from cudaMalloc, and of no other."""

_FIELDS = ("address", "size", "stream", "stack", "pool")


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What the allocator held right after an event.

    Attributes:
        device: The device's index.
        event: The event; -1 is the moment before the first.
        segments: `SEGMENT` rows by address. Ranges of an expandable segment that touch are one row.
        blocks: `BLOCK` rows by address: what was in use, with the rows of ``timeline.allocations``.
    """

    device: int
    event: int
    segments: NDArray[Any]
    blocks: NDArray[Any]

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return int(self.segments["size"].sum())

    @property
    def requested(self) -> int:
        """Requested bytes of all blocks in use."""
        return int(self.blocks["requested"].sum())

    def to_dict(self) -> dict[str, Any]:
        """As plain values, one dict per segment and block."""
        return {
            "device": self.device,
            "event": self.event,
            "segments": _rows(self.segments),
            "blocks": _rows(self.blocks),
        }


def _rows(table: NDArray[Any]) -> list[dict[str, Any]]:
    names = table.dtype.names or ()
    return [dict(zip(names, row, strict=True)) for row in table.tolist()]


class SegmentHistory:
    """A device's segments, each from the event that made it to the one that gave it back."""

    def __init__(self, timeline: Timeline, segments: Segments, blocks: Blocks) -> None:
        self._timeline = timeline
        self._blocks = blocks
        trace = timeline.trace
        self._count = len(trace)
        own = np.flatnonzero(segments.device == trace.device)
        fixed = own[~segments.expandable[own]]
        self._fixed, self._start, self._end = self._pair(segments, fixed)
        mapped = own[segments.expandable[own]]
        self._ranges = _table(segments, mapped)
        self._moves = trace.events(Action.MAP, Action.UNMAP)

    def _pair(self, segments: Segments, rest: Ints) -> tuple[NDArray[Any], Ints, Ints]:
        """Segments of cudaMalloc with their first and last event, from the events and from those at the end."""
        trace = self._timeline.trace
        last = {int(segments.address[row]): int(row) for row in rest}
        rows: list[tuple[Any, ...]] = []
        opened: dict[int, int] = {}
        for event in trace.events(Action.SEGMENT_ALLOC, Action.SEGMENT_FREE).tolist():
            address = int(trace.address[event])
            if trace.action[event] == Action.SEGMENT_ALLOC:
                opened[address] = event
            else:
                begun = opened.pop(address, BEFORE)
                rows.append((begun, event, event if begun == BEFORE else begun))
        for address, event in opened.items():
            last.pop(address, None)
            rows.append((event, self._count, event))
        table = np.zeros(len(rows), SEGMENT)
        told = np.asarray([row[2] for row in rows], np.int64)
        for name in _FIELDS:
            table[name] = getattr(trace, name)[told]
        table["small"] = table["size"] == SMALL_SEGMENT
        old = np.asarray(list(last.values()), np.int64)
        start = np.asarray([row[0] for row in rows] + [BEFORE] * len(old), np.int64)
        end = np.asarray([row[1] for row in rows] + [self._count] * len(old), np.int64)
        return np.concatenate([table, _table(segments, old)]), start, end

    def at(self, event: int) -> State:
        """The state right after an event."""
        fixed = self._fixed[(self._start <= event) & (self._end > event)]
        segments = np.concatenate([fixed, self._mapped(event)])
        allocations = self._timeline.allocations
        rows = allocations.live(event)
        blocks = np.zeros(len(rows), BLOCK)
        blocks["address"] = allocations.address[rows]
        blocks["requested"] = allocations.size[rows]
        blocks["rounded"] = np.append(self._blocks.size, -1)[allocations.block[rows]]
        blocks["row"] = rows
        blocks["stack"] = allocations.stack[rows]
        blocks["pending"] = allocations.requested[rows] <= event
        return State(
            self._timeline.device,
            event,
            segments[np.argsort(segments["address"], kind="stable")],
            blocks[np.argsort(blocks["address"], kind="stable")],
        )

    def _mapped(self, event: int) -> NDArray[Any]:
        """Mapped ranges of expandable segments: those at the end, with all later maps and unmaps taken back."""
        trace = self._timeline.trace
        later = self._moves[self._moves > event]
        if not len(later) and not len(self._ranges):
            return self._ranges
        undone = np.where(trace.action[later] == Action.MAP, -1, 1)
        address = np.concatenate([self._ranges["address"], trace.address[later]])
        size = np.concatenate([self._ranges["size"], trace.size[later]])
        stream = np.concatenate([self._ranges["stream"], trace.stream[later]])
        weight = np.concatenate([np.ones(len(self._ranges), np.int64), undone])
        found = []
        for one in distinct(stream):
            mine = stream == one
            points = np.concatenate([address[mine], address[mine] + size[mine]])
            places, which = np.unique(points, return_inverse=True)
            change = np.zeros(len(places), np.int64)
            np.add.at(change, which, np.concatenate([weight[mine], -weight[mine]]))
            covered = np.cumsum(change) > 0
            edges = np.flatnonzero(np.diff(np.concatenate([[False], covered, [False]])))
            ranges = np.zeros(len(edges) // 2, SEGMENT)
            ranges["address"] = places[edges[::2]]
            ranges["size"] = places[edges[1::2]] - places[edges[::2]]
            ranges["stream"] = one
            ranges["expandable"] = True
            found.append(ranges)
        ranges = np.concatenate(found)
        ranges["stack"] = ranges["pool"] = ranges["small"] = -1
        if len(self._ranges):
            # what a range at the end tells holds for the range that it grew from
            place = np.searchsorted(self._ranges["address"], ranges["address"], side="right") - 1
            known = (place >= 0) & (ranges["address"] < (self._ranges["address"] + self._ranges["size"])[place])
            for name in ("stack", "pool", "small"):
                ranges[name][known] = self._ranges[name][place[known]]
        return ranges


def _table(segments: Segments, rows: Ints) -> NDArray[Any]:
    table = np.zeros(len(rows), SEGMENT)
    for name in (*_FIELDS, "small", "expandable"):
        table[name] = getattr(segments, name)[rows]
    return table
