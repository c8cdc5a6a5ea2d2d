"""Notes about missing or inconsistent data in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.units import size
from ipygpumem.snapshot.export.text import many

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["notes"]


def notes(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    """Sentences about what limits the accuracy of a device's numbers."""
    host = [f"a list of host events was skipped: {trace.trouble}" for trace in snapshot.host if trace.trouble]
    return [*_missing(snapshot, timeline), *_inconsistent(snapshot, timeline), *host]


def _missing(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    """What the events do not cover."""
    gaps, trace = timeline.gaps, timeline.trace
    dropped = snapshot.own.dropped_of(trace.device)
    found = []
    if not len(trace):
        found.append("no events were recorded: only the state at the end is known")
    if gaps.before_recording:
        unknown = "" if dropped is not None else "; the file does not say whether events were dropped"
        older = f"{many(gaps.before_recording, 'block')} ({size(gaps.before_recording_bytes)})"
        found.append(f"{older} {_is(gaps.before_recording)} older than the first event{unknown}")
    if dropped:
        found.append(
            f"{many(dropped, 'allocation')} {_was(dropped)} dropped from the ring buffer before the first event"
        )
    if gaps.frees_without_allocation:
        frees = many(gaps.frees_without_allocation, "free")
        found.append(f"{frees} without an allocation {_was(gaps.frees_without_allocation)} ignored")
    if gaps.missing_frees:
        blocks = many(gaps.missing_frees, "block")
        found.append(f"{blocks} {_was(gaps.missing_frees)} allocated again without a free: the earlier one ends there")
    if gaps.ended_by_request:
        found.append("completed frees were not recorded: blocks end when their free was requested")
    if gaps.only_in_segments:
        blocks = many(gaps.only_in_segments, "block")
        found.append(f"{blocks} at the end {_was(gaps.only_in_segments)} allocated after the events were copied")
    if gaps.only_in_events:
        blocks = many(gaps.only_in_events, "block")
        found.append(f"{blocks} that the events leave alive {_is(gaps.only_in_events)} missing at the end")
    return found


def _inconsistent(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    """What is out of order or contradictory."""
    trace, blocks, reserved = timeline.trace, snapshot.blocks, timeline.reserved
    found = []
    if trace.out_of_order:
        events = many(trace.out_of_order, "event")
        found.append(f"{events} {_was(trace.out_of_order)} out of order and {_was(trace.out_of_order)} sorted by time")
    if 0 < trace.untimed < len(trace):
        events = many(trace.untimed, "event")
        found.append(f"{events} {_has(trace.untimed)} no time: the times of the others are not used")
    used = np.flatnonzero(blocks.active & (blocks.device == timeline.device))
    unknown = int(np.count_nonzero(~blocks.requested_known[used]))
    if unknown:
        at_end = f"{many(unknown, 'block')} at the end {_has(unknown)}"
        found.append(f"{at_end} no requested size: the rounded size is used instead")
    address = blocks.address[used]
    overlapping = int(np.count_nonzero(address[1:] < (address + blocks.size[used])[:-1]))
    if overlapping:
        found.append(f"{many(overlapping, 'block')} at the end {_is(overlapping)} inside another: sums count both")
    if reserved is not None and (reserved.bytes < 0).any():
        found.append("the segments at the end contradict the events: reserved bytes are only known at the end")
    return found


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
