"""The allocator's segments and blocks at any event."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.allocations import BEFORE
from ipygpumem.snapshot.model.mapped_ranges import SEGMENT, Edges, sums
from ipygpumem.snapshot.model.segment_lookup import holder
from ipygpumem.snapshot.model.trace import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.segments import Blocks, Segments
    from ipygpumem.snapshot.model.timeline import Timeline

    Ints = NDArray[np.int64]

__all__ = ["BLOCK", "SEGMENT", "SMALL_SEGMENT", "SegmentHistory", "State"]

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
        self._segments = segments
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
        kept: list[int] = []
        for address, event in opened.items():
            kept.append(last.pop(address, -1))
            rows.append((event, self._count, event))
        table = np.zeros(len(rows), SEGMENT)
        told = np.asarray([row[2] for row in rows], np.int64)
        for name in _FIELDS:
            table[name] = getattr(trace, name)[told]
        table["small"] = table["size"] == SMALL_SEGMENT
        # what the end tells of it is more than its event does
        place = np.arange(len(rows) - len(kept), len(rows))[np.asarray(kept, np.int64) >= 0]
        at_end = np.asarray([row for row in kept if row >= 0], np.int64)
        table["pool"][place], table["small"][place] = segments.pool[at_end], segments.small[at_end]
        old = np.asarray(list(last.values()), np.int64)
        start = np.asarray([row[0] for row in rows] + [BEFORE] * len(old), np.int64)
        end = np.asarray([row[1] for row in rows] + [self._count] * len(old), np.int64)
        return np.concatenate([table, _table(segments, old)]), start, end

    def pools(self, rows: Ints) -> Ints:
        """The pool of the segment that held each allocation when it was made; -1 where nobody knows."""
        allocations = self._timeline.allocations
        address, event = allocations.address[rows], allocations.start[rows].astype(np.int64)
        table = self._fixed
        stay = holder((table["address"], table["size"], self._start, self._end), address, event)
        pools = np.append(table["pool"], -1)[stay].astype(np.int64)
        # a mapped range at the end is what it was since the last unmapping
        unmapped = self._moves[self._timeline.trace.action[self._moves] == Action.UNMAP]
        if len(self._ranges):
            place = np.searchsorted(self._ranges["address"], address, side="right") - 1
            mapped = (place >= 0) & (address < (self._ranges["address"] + self._ranges["size"])[place])
            mapped &= (stay < 0) & (event >= unmapped.max(initial=BEFORE))
            pools[mapped] = self._ranges["pool"][place[mapped]]
        segment = np.append(self._blocks.segment, -1)[allocations.block[rows]]
        return np.where(segment >= 0, np.append(self._segments.pool, -1)[segment], pools)

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
        if not len(self._moves) and not len(self._ranges):
            return self._ranges
        ranges = self._edges.ranges(int(np.searchsorted(self._moves, event, side="right")))
        if len(self._ranges):
            # what a range at the end tells holds for the range that it grew from
            place = np.searchsorted(self._ranges["address"], ranges["address"], side="right") - 1
            known = (place >= 0) & (ranges["address"] < (self._ranges["address"] + self._ranges["size"])[place])
            for name in ("stack", "pool", "small"):
                ranges[name][known] = self._ranges[name][place[known]]
        return ranges

    @cached_property
    def _edges(self) -> Edges:
        trace, moves, ranges = self._timeline.trace, self._moves, self._ranges
        last = sums(
            ranges["stream"], ranges["address"], ranges["address"] + ranges["size"], np.ones(len(ranges), np.int64)
        )
        begin = trace.address[moves]
        change = np.where(trace.action[moves] == Action.MAP, 1, -1)
        return Edges(last, trace.stream[moves], begin, begin + trace.size[moves], change)


def _table(segments: Segments, rows: Ints) -> NDArray[Any]:
    table = np.zeros(len(rows), SEGMENT)
    for name in (*_FIELDS, "small", "expandable"):
        table[name] = getattr(segments, name)[rows]
    return table
