"""Allocations: each from the event that made it to the event that ended it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.model.segments import State
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.model.unique_values import among, distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.segments import Blocks, Segments
    from ipygpumem.snapshot.model.trace import Trace

    Ints = NDArray[np.int64]

__all__ = ["BEFORE", "Allocations", "Gaps", "pair"]

BEFORE = -1
"""Start of an allocation that is older than the first event."""

_MOST_16_BIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Gaps:
    """What the events of one device do not tell. All are counts.

    Attributes:
        before_recording: Allocations older than the first event (made before recording began, or their events were
            pushed out of the ring buffer; a file cannot tell which).
        before_recording_bytes: Requested bytes of these.
        frees_without_allocation: Frees of what was not allocated then, other than the first free at an address. They
            are left out.
        missing_frees: Allocations at an address that was still taken. The older one ends there.
        ended_by_request: Every allocation ends with its free request, since no completed frees were recorded.
        only_in_segments: Blocks in use at the end that the events say are free: allocated between the copying of the
            events and that of the segments.
        only_in_events: Allocations that the events leave alive, without a block at the end.
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
    """One row per allocation of a device: those of the events by address and time, then those only in the segments.

    Attributes:
        address: int64.
        size: int64, *requested* bytes.
        start: int64, the event that made it, or -1 (`BEFORE`).
        requested: int64, the event that asked to free it, or the number of events; -1 if that was before the first.
        end: int64, the event that freed it (from it on it is gone), or the number of events if it lives at the end.
        stack: int32, where it was allocated; -1 if unknown.
        nth: int64, how many allocations the file shows at this address before it.
        block: int64, row of the block that it is at the end, or -1.
    """

    address: Ints
    size: Ints
    start: Ints
    requested: Ints
    end: Ints
    stack: NDArray[np.int32]
    nth: Ints
    block: Ints

    def __len__(self) -> int:
        return len(self.address)

    def live(self, event: int) -> Ints:
        """Rows of the allocations alive right after an event; -1 is the moment before the first."""
        return np.flatnonzero((self.start <= event) & (self.end > event))

    def name(self, row: int) -> str:
        """The name that PyTorch's own viewer gives: address and the how-manieth time, ``b7f064c000000_0``."""
        return f"b{self.address[row]:x}_{self.nth[row]}"


def pair(trace: Trace, segments: Segments | None, blocks: Blocks) -> tuple[Allocations, Gaps]:
    """Pair the events of a device, and match what is left with the blocks at the end.

    Args:
        trace: The events.
        segments: None for a file that has no segments, so that nothing is known of the end.
        blocks: Blocks of all devices.
    """
    count = len(trace)
    rows = trace.events(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    rows = rows[_by_address(trace.address[rows])]
    action, address = trace.action[rows], trace.address[rows]
    # A group is one stay at an address: an allocation and its frees, or the frees of what was there before the first
    # event. Rows of the same address follow one another in the order of time.
    same = np.zeros(len(rows), np.bool_)
    same[1:] = address[1:] == address[:-1]
    opens = (action == Action.ALLOC) | ~same
    first = np.flatnonzero(opens)
    group = np.cumsum(opens) - 1
    asked = _first_of(action == Action.FREE_REQUESTED, group, len(first))
    follower = np.flatnonzero(same[first])
    active = np.flatnonzero(blocks.active & (blocks.device == trace.device))
    by_request = False
    if not (action == Action.FREE_COMPLETED).any():
        # Completed frees were not recorded (skip_actions) if what somebody asked to free is gone all the same
        gone = np.zeros(len(first), np.bool_)
        gone[follower - 1] = True
        if segments is not None:
            gone |= ~among(address[first], blocks.address[active])
        by_request = bool((gone & (asked < len(rows))).any())
    closed = asked if by_request else _first_of(action == Action.FREE_COMPLETED, group, len(first))
    after = np.append(rows, count)  # the event in a row of these, or the number of events where there is none
    end = after[closed]
    late = np.arange(len(rows)) > closed[group]

    # the next allocation at the same address ends one that was not freed
    unfreed = follower[end[follower - 1] == count]
    end[unfreed - 1] = rows[first[unfreed]]

    begun = rows[first]
    start = np.where(action[first] == Action.ALLOC, begun, BEFORE)
    requested = np.minimum(after[asked], end)
    silent = (closed < len(rows)) & (asked > closed)
    if not (silent & (start != BEFORE)).any():
        # a free that only completes here was asked for before the first event, if requests are recorded at all
        requested[silent & (start == BEFORE)] = BEFORE
    groups = np.arange(len(first))
    paired = Allocations(
        address=address[first],
        size=trace.size[begun],
        start=start,
        requested=requested,
        end=end,
        stack=np.where(start == BEFORE, -1, trace.stack[begun]).astype(np.int32),
        nth=groups - np.maximum.accumulate(np.where(same[first], 0, groups)),
        block=np.full(len(first), -1, np.int64),
    )
    everything, unseen = _match(paired, active, blocks, count)
    old = everything.start == BEFORE
    unmatched = (everything.end == count) & (everything.block < 0)
    return everything, Gaps(
        before_recording=int(np.count_nonzero(old)),
        before_recording_bytes=int(everything.size[old].sum()),
        frees_without_allocation=int(np.count_nonzero(late)),
        missing_frees=len(unfreed),
        ended_by_request=by_request,
        only_in_segments=unseen,
        only_in_events=int(np.count_nonzero(unmatched)) if segments is not None else 0,
    )


def _by_address(address: Ints) -> Ints:
    """The stable order by address. There are few distinct ones, and 16-bit numbers are sorted in linear time."""
    places = distinct(address)
    if len(places) <= _MOST_16_BIT:
        return np.argsort(np.searchsorted(places, address).astype(np.uint16), kind="stable")
    return np.argsort(address, kind="stable")


def _first_of(wanted: NDArray[np.bool_], group: Ints, groups: int) -> Ints:
    """For each group the first row that is wanted, or the number of rows. Rows are ordered by group."""
    found = np.full(groups, len(group), np.int64)
    where = np.flatnonzero(wanted)
    found[group[where[::-1]]] = where[::-1]  # of several values for one place the last one stays
    return found


def _match(paired: Allocations, active: Ints, blocks: Blocks, count: int) -> tuple[Allocations, int]:
    """Give each allocation that lives at the end its block; add the blocks that no event speaks of.

    Returns:
        All allocations, and how many blocks in use lie where the events say that nothing is.
    """
    living = np.flatnonzero(paired.end == count)
    address = blocks.address[active]
    place = np.searchsorted(paired.address[living], address)
    found = np.append(paired.address[living], -1)[place] == address
    matched = living[place[found]]
    paired.block[matched] = active[found]
    unknown = matched[paired.stack[matched] < 0]
    paired.stack[unknown] = blocks.stack[paired.block[unknown]]

    silent = ~found & ~among(address, paired.address)
    rest = active[silent]
    ends = np.full(len(rest), count, np.int64)
    asked = np.where(blocks.state[rest] == State.PENDING, BEFORE, count)
    everything = Allocations(
        address=np.concatenate([paired.address, blocks.address[rest]]),
        size=np.concatenate([paired.size, blocks.requested[rest]]),
        start=np.concatenate([paired.start, np.full(len(rest), BEFORE, np.int64)]),
        requested=np.concatenate([paired.requested, asked]),
        end=np.concatenate([paired.end, ends]),
        stack=np.concatenate([paired.stack, blocks.stack[rest]]),
        nth=np.concatenate([paired.nth, np.zeros(len(rest), np.int64)]),
        block=np.concatenate([paired.block, rest]),
    )
    return everything, int(np.count_nonzero(~found & ~silent))
