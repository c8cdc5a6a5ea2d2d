"""Events, allocations and memory usage of one device over time."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.columns import Action, Blocks, BlockState, Segments, Trace, is_in, stable_order

Ints = NDArray[np.int64]
BEFORE = -1  # value of `Allocations.start` for allocations that are older than the first event


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Memory usage after each event, as int64 columns. The first row is the usage before the first event.

    Attributes:
        device: Device index.
        what: Kind of memory usage: ``"requested"``, ``"allocated"`` or ``"reserved"``.
        times: Timestamps of the events in microseconds since the Unix epoch, without a value for the first row.
        bytes: Memory usage in bytes.
    """

    device: int
    what: str
    times: Ints
    bytes: Ints

    def __len__(self) -> int:
        return len(self.bytes)

    @property
    def event(self) -> Ints:
        """Event index of each row; -1 for the first row."""
        return np.arange(BEFORE, len(self.times))

    @property
    def time_us(self) -> Ints:
        """Timestamp of each row in microseconds since the Unix epoch; -1 if it is unknown."""
        return np.concatenate([[-1], self.times])

    def peak(self) -> tuple[int, int]:
        """Return a tuple ``(event, bytes)``: the first event after which the usage is highest, and that usage."""
        row = int(np.argmax(self.bytes))
        return row - 1, int(self.bytes[row])

    def at(self, time_us: int) -> int:
        """Return the usage in bytes at a Unix time in microseconds. Raises `OptionError` if there are no timestamps."""
        if isinstance(time_us, bool) or not isinstance(time_us, (int, float, np.number)) or time_us != time_us:  # noqa: PLR0124 (NaN)
            raise OptionError(f"{time_us!r} is not a timestamp: expected microseconds since the Unix epoch")
        if len(self.times) and self.times[-1] < 0:
            raise OptionError("the events of this snapshot have no timestamps: use event indices instead")
        return int(self.bytes[np.searchsorted(self.times, time_us, side="right")])

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as JSON-serializable data."""
        columns = {name: getattr(self, name).tolist() for name in ("event", "time_us", "bytes")}
        return {"device": self.device, "what": self.what, **columns}


class Timeline:
    """Events and allocations of one device.

    Attributes:
        allocations: Allocations that occur in the events or that are alive at the end.
        gaps: Counts of missing and contradictory events.
        end_active: Total rounded size in bytes of the active blocks at the end, as ``active_bytes`` in PyTorch's
            statistics; None for a file without segments.
        end_reserved: Total size in bytes of the segments at the end; None for a file without segments.
    """

    def __init__(self, trace: Trace, segments: Segments | None, blocks: Blocks) -> None:
        self.trace = trace
        self.allocations, self.gaps = _pair_events(trace, segments, blocks)
        self.end_active = self.end_reserved = None
        if segments is not None:
            self.end_active = int(blocks.size[blocks.active & (blocks.device == trace.device)].sum())
            self.end_reserved = int(segments.size[segments.device == trace.device].sum())

    @property
    def device(self) -> int:
        return self.trace.device

    @cached_property
    def requested(self) -> Curve:
        """Curve of the total requested size of all allocations whose free has not completed."""
        values = self.allocations.in_use(self.allocations.size, len(self.trace))
        return Curve(self.device, "requested", self.trace.time, values)

    @property
    def end_requested(self) -> int:
        return int(self.requested.bytes[-1])

    @property
    def reserved_peak(self) -> int | None:
        """Maximum of the reserved memory in bytes; None if it is unknown or the events contradict the segments."""
        return None if self.reserved is None or (self.reserved.bytes < 0).any() else self.reserved.peak()[1]

    @cached_property
    def reserved(self) -> Curve | None:
        """Curve of the total size of all segments, computed backward from the end; None for a file without segments."""
        if self.end_reserved is None:
            return None
        trace = self.trace
        grows, shrinks = trace.events(Action.SEGMENT_ALLOC, Action.MAP), trace.events(Action.SEGMENT_FREE, Action.UNMAP)
        values = np.zeros(len(trace) + 1, np.int64)
        values[grows + 1] = trace.size[grows]
        values[shrinks + 1] = -trace.size[shrinks]
        np.cumsum(values, out=values)
        values += self.end_reserved - int(values[-1])
        return Curve(self.device, "reserved", trace.time, values)


@dataclass(frozen=True, slots=True)
class RecordingGaps:
    """Counts of allocations and frees that are missing from the events of a device or that contradict them.

    Attributes:
        before_recording: Allocations older than the first event. They were allocated before the recording, or their
            events were dropped from the ring buffer. A file does not distinguish the two cases.
        before_recording_bytes: Requested bytes of these allocations.
        frees_without_allocation: Frees of addresses that were not allocated at that time, except for the first free at
            an address. These frees are ignored.
        missing_frees: Allocations at an address that was still in use. Each ends the previous allocation there.
        ended_by_request: Whether allocations end with the free request because completed frees were not recorded.
        only_in_segments: Blocks in use at the end that are free according to the events. They were allocated
            between copying the events and copying the segments.
        only_in_events: Allocations that are alive according to the events but have no block at the end.
    """

    before_recording: int
    before_recording_bytes: int
    frees_without_allocation: int
    missing_frees: int
    ended_by_request: bool
    only_in_segments: int
    only_in_events: int


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Allocations of a device as columns.

    Allocations that occur in the events come first, ordered by address and time. They are followed by blocks that
    occur only in the segments.

    Attributes:
        address, size: int64, address of the first byte and *requested* size in bytes.
        start: int64, event that allocated the memory, or -1 (`BEFORE`).
        free_requested: int64, event that requested the free, or ``end`` if no request was recorded; -1 if the free was
            requested before the first event.
        end: int64, event that freed the memory, or the number of events if the allocation is alive at the end.
        stack: int32, call stack of the allocation; -1 if unknown.
        nth: int64, number of earlier allocations at this address in the file.
        block: int64, row in `Blocks` of an allocation that is alive at the end, or -1.
    """

    address: Ints
    size: Ints
    start: Ints
    free_requested: Ints
    end: Ints
    stack: NDArray[np.int32]
    nth: Ints
    block: Ints

    def __len__(self) -> int:
        return len(self.address)

    def live(self, event: int) -> Ints:
        """Return the rows of the allocations that are alive right after an event, or before the first event for -1."""
        return np.flatnonzero((self.start <= event) & (self.end > event))

    def in_use(self, sizes: Ints, event_count: int) -> Ints:
        """Return the sum of ``sizes`` over the live allocations, before the first event and after each event."""
        change = np.zeros(event_count + 2, np.int64)
        # indices are events plus one because index 0 represents the time before the first event
        np.add.at(change, self.start + 1, sizes)
        np.subtract.at(change, self.end + 1, sizes)
        return np.cumsum(change, out=change)[:-1]

    def name(self, row: int) -> str:
        return f"b{self.address[row]:x}_{self.nth[row]}"


def _pair_events(trace: Trace, segments: Segments | None, blocks: Blocks) -> tuple[Allocations, RecordingGaps]:
    """Pair the allocations and frees of a device, and match live allocations with the blocks at the end.

    ``blocks`` contains the blocks of all devices. ``segments`` is None if the file does not contain segments.
    """
    count = len(trace)
    rows = trace.events(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    rows = rows[stable_order(trace.address[rows])]
    action, address = trace.action[rows], trace.address[rows]
    # A group is an allocation and its frees, or the frees of an allocation older than the first event. Rows of the same
    # address are adjacent and ordered by time.
    same_address = np.zeros(len(rows), np.bool_)
    same_address[1:] = address[1:] == address[:-1]
    starts_group = (action == Action.ALLOC) | ~same_address
    first = np.flatnonzero(starts_group)
    group = np.cumsum(starts_group) - 1
    free_request = _first_in_group(action == Action.FREE_REQUESTED, group, len(first))
    reused = np.flatnonzero(same_address[first])  # groups that follow another group at the same address
    active = np.flatnonzero(blocks.active & (blocks.device == trace.device))
    by_request = False
    if not (action == Action.FREE_COMPLETED).any():
        # completed frees were not recorded (skip_actions) if blocks with only a requested free no longer exist
        is_gone = np.zeros(len(first), np.bool_)
        is_gone[reused - 1] = True
        if segments is not None:
            is_gone |= ~is_in(address[first], blocks.address[active])
        by_request = bool((is_gone & (free_request < len(rows))).any())
    closed = free_request if by_request else _first_in_group(action == Action.FREE_COMPLETED, group, len(first))
    event_of = np.append(rows, count)  # by row; the last value represents a missing row
    end = event_of[closed]
    extra_frees = np.arange(len(rows)) > closed[group]

    # an allocation without a free ends at the next allocation at its address
    unfreed = reused[end[reused - 1] == count]
    end[unfreed - 1] = rows[first[unfreed]]

    first_event = rows[first]
    start = np.where(action[first] == Action.ALLOC, first_event, BEFORE)
    free_requested = np.minimum(event_of[free_request], end)
    no_request = (closed < len(rows)) & (free_request > closed)
    if not (no_request & (start != BEFORE)).any():
        # requests were recorded, so a completed free without a request was requested before the first event
        free_requested[no_request & (start == BEFORE)] = BEFORE
    groups = np.arange(len(first))
    in_events = Allocations(
        address=address[first],
        size=trace.size[first_event],
        start=start,
        free_requested=free_requested,
        end=end,
        stack=np.where(start == BEFORE, -1, trace.stack[first_event]).astype(np.int32),
        nth=groups - np.maximum.accumulate(np.where(same_address[first], 0, groups)),
        block=np.full(len(first), -1, np.int64),
    )
    allocations, only_in_segments = _match_blocks(in_events, active, blocks, count)
    is_older = allocations.start == BEFORE
    unmatched = (allocations.end == count) & (allocations.block < 0)
    return allocations, RecordingGaps(
        before_recording=int(np.count_nonzero(is_older)),
        before_recording_bytes=int(allocations.size[is_older].sum()),
        frees_without_allocation=int(np.count_nonzero(extra_frees)),
        missing_frees=len(unfreed),
        ended_by_request=by_request,
        only_in_segments=only_in_segments,
        only_in_events=int(np.count_nonzero(unmatched)) if segments is not None else 0,
    )


def _first_in_group(selected: NDArray[np.bool_], group: Ints, groups: int) -> Ints:
    """Return the first selected row of each group, or the number of rows if no row of the group is selected."""
    first = np.full(groups, len(group), np.int64)
    rows = np.flatnonzero(selected)[::-1]
    first[group[rows]] = rows  # numpy stores the last of several values for the same index
    return first


def _match_blocks(in_events: Allocations, active: Ints, blocks: Blocks, count: int) -> tuple[Allocations, int]:
    """Assign blocks to the allocations that are alive at the end, and add allocations for blocks without events.

    Return all allocations and the number of blocks in use at addresses that are free according to the events.
    """
    living = np.flatnonzero(in_events.end == count)
    address = blocks.address[active]
    place = np.searchsorted(in_events.address[living], address)
    matching = np.append(in_events.address[living], -1)[place] == address
    matching_rows = living[place[matching]]
    in_events.block[matching_rows] = active[matching]
    no_stack = matching_rows[in_events.stack[matching_rows] < 0]
    in_events.stack[no_stack] = blocks.stack[in_events.block[no_stack]]

    not_in_events = ~matching & ~is_in(address, in_events.address)
    unmatched = active[not_in_events]
    only_blocks = Allocations(
        address=blocks.address[unmatched],
        size=blocks.requested[unmatched],
        start=np.full(len(unmatched), BEFORE, np.int64),
        free_requested=np.where(blocks.state[unmatched] == BlockState.PENDING, BEFORE, count),
        end=np.full(len(unmatched), count, np.int64),
        stack=blocks.stack[unmatched],
        nth=np.zeros(len(unmatched), np.int64),
        block=unmatched,
    )
    names = [field.name for field in fields(Allocations)]
    columns = (np.concatenate([getattr(in_events, name), getattr(only_blocks, name)]) for name in names)
    return Allocations(*columns), int(np.count_nonzero(~matching & ~not_in_events))
