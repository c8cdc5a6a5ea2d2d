"""Reconstruction of the allocator's segments and blocks after a given event."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.columns import Action, Blocks, Segments
from ipygpumem.snapshot.model.timeline import BEFORE, Ints, Timeline

SEGMENT = np.dtype(
    {
        "names": ["address", "size", "stream", "stack", "pool", "small", "expandable"],
        "formats": ["i8", "i8", "i8", "i4", "i4", "i1", "?"],
    }
)
"""Columns of ``AllocatorState.segments``. ``small`` is 1 for the small pool. Unknown values are -1."""

BLOCK = np.dtype(
    [("address", "i8"), ("requested", "i8"), ("rounded", "i8"), ("row", "i8"), ("stack", "i4"), ("pending", "?")]
)
"""Columns of ``AllocatorState.blocks``. ``requested`` and ``rounded`` are sizes in bytes; ``rounded`` is -1 (unknown)
for blocks that are freed before the end. ``pending`` is true if the free was requested but has not completed.
"""

SMALL_SEGMENT = 2 * MIB
"""Size in bytes of segments that are allocated with cudaMalloc for the small pool. Segments that are allocated with
cudaMalloc for the large pool have other sizes."""

_COLUMNS = ("address", "size", "stream", "stack", "pool")


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorState:
    """Segments and blocks right after an event. Event -1 represents the time before the first event.

    Attributes:
        device: Device index.
        event: Event index.
        segments: `SEGMENT` rows, ordered by address. Adjacent ranges of an expandable segment form one row.
        blocks: `BLOCK` rows of the blocks in use, ordered by address. ``row`` is the row in ``timeline.allocations``.
    """

    device: int
    event: int
    segments: NDArray[Any]
    blocks: NDArray[Any]

    @property
    def reserved(self) -> int:
        """Total size of all segments in bytes."""
        return int(self.segments["size"].sum())

    @property
    def requested(self) -> int:
        """Total requested size in bytes of the blocks in use."""
        return int(self.blocks["requested"].sum())

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON-serializable data, with one dict per segment and block."""
        tables = {"segments": self.segments, "blocks": self.blocks}
        rows = {
            name: [dict(zip(table.dtype.names or (), row, strict=True)) for row in table.tolist()]
            for name, table in tables.items()
        }
        return {"device": self.device, "event": self.event, **rows}


class SegmentHistory:
    """Segments of a device with the events that allocated and freed them."""

    def __init__(self, timeline: Timeline, segments: Segments, blocks: Blocks) -> None:
        self._timeline = timeline
        self._blocks = blocks
        self._segments = segments
        on_device = np.flatnonzero(segments.device == timeline.device)
        self._fixed, self._start, self._end = self._pair(on_device[~segments.expandable[on_device]])
        self._ranges = _segment_rows(segments, on_device[segments.expandable[on_device]])
        self._map_events = timeline.trace.events(Action.MAP, Action.UNMAP)

    def _pair(self, rows_at_end: Ints) -> tuple[NDArray[Any], Ints, Ints]:
        """Return a tuple of the segments allocated with cudaMalloc, their allocation events and their free events.

        The allocation event is ``BEFORE`` if it was not recorded. The free event of a segment that exists at the end is
        the number of events.
        """
        trace, segments, count = self._timeline.trace, self._segments, len(self._timeline.trace)
        events = trace.events(Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)
        # sorted, because the hash of integers is predictable: a file could fill a dict so that each access is slow
        events = events[np.argsort(trace.address[events], kind="stable")]
        address, opens = trace.address[events], trace.action[events] == Action.SEGMENT_ALLOC
        is_last = np.append(address[1:] != address[:-1], True)[: len(events)]
        is_pair = np.append(False, opens[:-1] & ~is_last[:-1])[: len(events)] & ~opens  # with the event before
        free_rows, allocated = np.flatnonzero(~opens), np.flatnonzero(opens & is_last)
        start = np.append(np.where(is_pair[free_rows], events[free_rows - 1], BEFORE), events[allocated])
        end = np.append(events[free_rows], np.full(len(allocated), count))
        table = np.zeros(len(start), SEGMENT)
        for name in _COLUMNS:
            table[name] = getattr(trace, name)[np.where(start == BEFORE, end, start)]
        table["small"] = table["size"] == SMALL_SEGMENT
        # a segment that exists at the end has more fields in the file than the event that allocated it
        _, first = np.unique(segments.address[rows_at_end][::-1], return_index=True)
        rows_at_end = rows_at_end[::-1][first]
        _, rows_in_both, at_end = np.intersect1d(address[allocated], segments.address[rows_at_end], return_indices=True)
        for name in ("pool", "small"):
            table[name][len(free_rows) + rows_in_both] = getattr(segments, name)[rows_at_end[at_end]]
        older_rows = np.delete(rows_at_end, at_end)
        start, end = np.append(start, np.full(len(older_rows), BEFORE)), np.append(end, np.full(len(older_rows), count))
        return np.concatenate([table, _segment_rows(segments, older_rows)]), start, end

    def _fixed_segments(self, rows: Ints) -> Ints:
        allocations, table = self._timeline.allocations, self._fixed
        segments = table["address"], table["size"], self._start, self._end
        return find_segment(segments, allocations.address[rows], allocations.start[rows].astype(np.int64))

    def segment_ends(self, rows: Ints) -> Ints:
        return np.append(self._fixed["address"] + self._fixed["size"], 0)[self._fixed_segments(rows)]

    def pools(self, rows: Ints) -> Ints:
        allocations, table = self._timeline.allocations, self._fixed
        address, event = allocations.address[rows], allocations.start[rows].astype(np.int64)
        segment = self._fixed_segments(rows)
        pools = np.append(table["pool"], -1)[segment].astype(np.int64)
        # a range that is mapped at the end has not changed since the last unmap event
        unmapped = self._map_events[self._timeline.trace.action[self._map_events] == Action.UNMAP]
        row = find_range(self._ranges, address)
        inside = (row >= 0) & (segment < 0) & (event >= unmapped.max(initial=BEFORE))
        pools[inside] = self._ranges["pool"][row[inside]]
        segment_at_end = np.append(self._blocks.segment, -1)[allocations.block[rows]]
        return np.where(segment_at_end >= 0, np.append(self._segments.pool, -1)[segment_at_end], pools)

    def at(self, event: int) -> AllocatorState:
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
        blocks["pending"] = allocations.free_requested[rows] <= event
        return AllocatorState(
            self._timeline.device,
            event,
            segments[np.argsort(segments["address"], kind="stable")],
            blocks[np.argsort(blocks["address"], kind="stable")],
        )

    @cached_property
    def _edges(self) -> tuple[Ints, ...]:
        """Arrays ``(stream, address, event, change, last)`` with two rows per range: its start and its end.

        The ranges are those that an event maps or unmaps, and those that are mapped at the end of the recording, whose
        event is the number of events. The sum of ``change`` over all rows with a later event and the same or a lower
        address is positive if the address was mapped after the event. Rows are ordered by stream and address, and
        ``last`` contains the index of the last row with each address.
        """
        trace, events, at_end = self._timeline.trace, self._map_events, self._ranges
        event = np.append(np.full(len(at_end), len(trace)), events)
        change = np.append(np.ones(len(at_end), np.int64), np.where(trace.action[events] == Action.MAP, -1, 1))
        stream = np.append(at_end["stream"], trace.stream[events])
        address = np.append(at_end["address"], trace.address[events])
        end = address + np.append(at_end["size"], trace.size[events])
        edges = np.tile(stream, 2), np.append(address, end), np.tile(event, 2), np.append(change, -change)
        order = np.lexsort((edges[1], edges[0]))
        stream, address, event, change = (column[order] for column in edges)
        differs = (stream[1:] != stream[:-1]) | (address[1:] != address[:-1])
        return stream, address, event, change, np.flatnonzero(np.append(differs, True))

    def _mapped(self, event: int) -> NDArray[Any]:
        at_end = self._ranges
        if not len(self._map_events) and not len(at_end):
            return at_end
        stream, address, edge_event, change, last = self._edges
        # the changes of each stream add up to 0, so one cumulative sum serves all streams
        mapped = np.cumsum(change * (edge_event > event))[last] > 0
        edges = last[np.flatnonzero(np.diff(mapped, prepend=False, append=False))]
        ranges = np.zeros(len(edges) // 2, SEGMENT)
        ranges["address"] = address[edges[::2]]
        ranges["size"] = address[edges[1::2]] - address[edges[::2]]
        ranges["stream"] = stream[edges[::2]]
        ranges["expandable"] = True
        ranges["stack"] = ranges["pool"] = ranges["small"] = -1
        # stack and pool of a range at the end also hold for the range from which it grew
        row = find_range(at_end, ranges["address"])
        for name in ("stack", "pool", "small"):
            ranges[name][row >= 0] = at_end[name][row[row >= 0]]
        return ranges


def find_range(ranges: NDArray[Any], address: Ints) -> Ints:
    """Return the row of the range that contains each address; -1 if there is none. Ranges are ordered by address."""
    row = np.searchsorted(ranges["address"], address, side="right") - 1
    end = np.append(ranges["address"] + ranges["size"], 0)  # the last element is for row -1
    return np.where(address < end[row], row, -1)


def _segment_rows(segments: Segments, rows: Ints) -> NDArray[Any]:
    table = np.zeros(len(rows), SEGMENT)
    for name in (*_COLUMNS, "small", "expandable"):
        table[name] = getattr(segments, name)[rows]
    return table


def find_segment(segments: tuple[Ints, Ints, Ints, Ints], address: Ints, event: Ints) -> Ints:
    """Return the index of the segment that contains each address right after the event at the same index, or -1.

    ``segments`` contains the address, the size, the first event and the end event of each segment, as columns.
    """
    begin, size, start, end = segments
    bases, rank = np.unique(begin, return_inverse=True)
    # an interval tree: each segment belongs to at most two nodes per level, which together cover its lifetime. The node
    # at level k with number n covers the events from n * 2**k - 1 to (n + 1) * 2**k - 2
    levels: list[tuple[Ints, Ints]] = []
    first, last = start + 1, end + 1
    while len(rows := np.flatnonzero(first < last)):
        at_first, at_last = rows[first[rows] % 2 == 1], rows[last[rows] % 2 == 1]
        rows = np.append(at_first, at_last)
        node = np.append(first[at_first], last[at_last] - 1)
        keys = node * len(bases) + rank[rows]
        order = np.argsort(keys)
        levels.append((keys[order], rows[order]))
        first, last = (first + 1) // 2, last // 2
    result = np.full(len(address), -1, np.int64)
    missing = np.arange(len(address))
    lower = np.searchsorted(bases, address, side="right") - 1
    for level in reversed(range(len(levels))):  # most segments exist for a long time
        keys, rows = levels[level]
        if len(rows):
            wanted_keys = (event[missing] + 1 >> level) * len(bases) + lower[missing]
            segment = rows[np.maximum(np.searchsorted(keys, wanted_keys, side="right") - 1, 0)]
            inside = (begin[segment] <= address[missing]) & (address[missing] < (begin + size)[segment])
            inside &= (start[segment] <= event[missing]) & (event[missing] < end[segment])
            result[missing[inside]] = segment[inside]
            missing = missing[~inside]
    return result
