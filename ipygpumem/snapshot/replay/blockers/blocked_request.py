"""Search for the request that failed, or that led to the peak of reserved memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT
from ipygpumem.snapshot.replay.run import run

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.verification import ReplayVerification

_MIN_UNUSED = 0.05
"""Smallest unused fraction of the peak reserved memory for which the request that led to the peak is returned."""


def blocked_request(
    verification: ReplayVerification, capacity: int | None, *, fits: bool | None
) -> tuple[int, int | None] | None:
    """Return a tuple ``(event, capacity)`` for the request to analyze; None if there is none.

    Without a capacity, this is the last request that failed. With a capacity, it is the first request that fails within
    the capacity. If no request failed, it is the last request before the peak of reserved memory for which a segment
    for large blocks was allocated. The second item of the tuple is None if the request does not depend on the capacity.

    The result is None if almost all reserved memory was in use, if a recorded failure does not occur within the
    capacity, or if the replay does not reproduce the recording.

    ``fits``: Whether all requests are served within the capacity; None if this depends on unknown addresses.
    """
    recording = verification.recording
    if verification.difference:
        return None
    if capacity is not None and not fits:
        by_fraction = recording.settings.collection_threshold > 0
        failure = run(recording, recording.settings, limit=capacity, by_fraction=by_fraction).failure
        return None if failure is None or failure.event < 0 else (failure.event, capacity)
    if recording.last_failed is not None:
        return (recording.last_failed, None) if capacity is None else None
    trace, reserved = recording.trace, recording.timeline.reserved
    if reserved is None:
        return None
    event, peak = reserved.peak()
    grows = trace.events(Action.SEGMENT_ALLOC, Action.MAP)
    grows = grows[(grows <= event) & (trace.size[grows] > SMALL_SEGMENT)]
    allocs = trace.events(Action.ALLOC)
    later_allocations = allocs[allocs > grows[-1]] if len(grows) else grows
    if not len(later_allocations) or int(verification.run.allocated().max()) > (1 - _MIN_UNUSED) * peak:
        return None
    return int(later_allocations[0]), None
