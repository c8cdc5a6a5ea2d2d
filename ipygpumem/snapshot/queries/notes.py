"""What a file does not tell, and what in it does not fit together, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.units import size
from ipygpumem.snapshot.export.text import many

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.model.trace import Trace
    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["notes"]


def notes(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    """What is to be known of a device's numbers; empty where there is nothing to say."""
    return [*_gaps(snapshot, timeline), *_times(timeline.trace), *_faults(snapshot, timeline), *_host(snapshot)]


def _gaps(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    """What the events do not tell."""
    gaps, trace = timeline.gaps, timeline.trace
    dropped = snapshot.own.dropped_of(trace.device)
    found = []
    if not len(trace):
        found.append("no events were recorded: only the state at the end is known")
    if gaps.before_recording:
        older = f"{many(gaps.before_recording, 'block')} ({size(gaps.before_recording_bytes)})"
        told = "" if dropped is not None else "; whether events were dropped is not told"
        found.append(f"{older} {_is(gaps.before_recording)} older than the first event{told}")
    if dropped:
        found.append(f"the ring buffer lost {many(dropped, 'allocation')} before the first event here")
    if gaps.frees_without_allocation:
        frees = many(gaps.frees_without_allocation, "free")
        found.append(f"{frees} without an allocation {_is(gaps.frees_without_allocation)} left out")
    if gaps.missing_frees:
        blocks = many(gaps.missing_frees, "block")
        found.append(f"{blocks} {_was(gaps.missing_frees)} allocated again without a free, where the older one ends")
    if gaps.ended_by_request:
        found.append("completed frees were not recorded: blocks end when their free was requested")
    if gaps.only_in_segments:
        blocks = many(gaps.only_in_segments, "block")
        found.append(f"{blocks} at the end {_was(gaps.only_in_segments)} allocated after the events were copied")
    if gaps.only_in_events:
        blocks = many(gaps.only_in_events, "block")
        found.append(f"{blocks} that the events leave alive {_is(gaps.only_in_events)} not there at the end")
    return found


def _times(trace: Trace) -> list[str]:
    """What is wrong with the times."""
    found = []
    if trace.out_of_order:
        late = many(trace.out_of_order, "event")
        found.append(f"{late} stood in the wrong order and {_was(trace.out_of_order)} sorted by time")
    if 0 < trace.untimed < len(trace):
        found.append(
            f"{many(trace.untimed, 'event')} {_has(trace.untimed)} no time: the times of the others are not used"
        )
    return found


def _faults(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    """What does not fit together."""
    blocks, found = snapshot.blocks, []
    used = np.flatnonzero(blocks.active & (blocks.device == timeline.device))
    guessed = int(np.count_nonzero(~blocks.told[used]))
    if guessed:
        found.append(
            f"{many(guessed, 'block')} at the end {_has(guessed)} no requested size: the rounded one stands for it"
        )
    address = blocks.address[used]
    across = int(np.count_nonzero(address[1:] < (address + blocks.size[used])[:-1]))
    if across:
        found.append(f"{many(across, 'block')} at the end {_is(across)} inside another: sums count both")
    reserved = timeline.reserved
    if reserved is not None and (reserved.bytes < 0).any():
        found.append(
            "the segments at the end and the events do not fit together: reserved bytes before it are not known"
        )
    return found


def _host(snapshot: Snapshot) -> list[str]:
    """What cannot be read of the events of pinned memory."""
    return [f"a list of host events is left out: {trace.trouble}" for trace in snapshot.host if trace.trouble]


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
