"""Inference, from a recording, of the memory that was available to PyTorch and of the causes of freed segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import many, parse_size, size
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT
from ipygpumem.snapshot.replay.missing_data import completes_free, releases_show_causes
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.replay.settings import AllocatorSettings
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_MAX_BOUNDS = 200  # maximum number of upper bounds that are examined
_NEW_MEMORY = (Action.SEGMENT_ALLOC, Action.MAP, Action.OOM)


def parse_capacity(capacity: int | str) -> int:
    limit = parse_size(capacity)
    if limit < SMALL_SEGMENT:
        minimum = f"{size(SMALL_SEGMENT)}, the size of the smallest segment"
        raise OptionError(f"a capacity of {many(limit, 'byte')} is less than {minimum}: write a unit, such as 24 GiB")
    return limit


def default_device(snapshot: SnapshotData) -> int:
    """Return the device with the highest peak among those on which a request failed or, if none failed, among all."""
    failed_timelines = [timeline for timeline in snapshot.timelines if len(timeline.trace.events(Action.OOM))]
    return max(
        failed_timelines, key=lambda timeline: timeline.requested.peak()[1], default=snapshot.timeline(None)
    ).device


def available_memory(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> tuple[int, int | None]:
    """Return a lower and an upper bound on the limit on reserved memory when the last request failed, in bytes.

    The bounds are equal if the limit is known, and ``(0, None)`` if the file does not contain the segments.

    If less memory than the requested segment was free on the device, the limit was the sum of the reserved memory and
    this free memory. Otherwise, the limit was set by ``set_per_process_memory_fraction``: it is at least the peak of
    reserved memory, and too low for each segment whose allocation failed. If no request failed, the upper bound is None
    unless the file contains the limit that the program had set.
    """
    reserved, trace = timeline.reserved, timeline.trace
    if reserved is None:
        return 0, None
    set_limit, upper = program_limit(snapshot, timeline, settings), None
    for event in trace.events(Action.OOM).tolist():
        before, free = int(reserved.bytes[event]), trace.device_free.get(event)
        segment, needed = _required(settings, int(trace.size[event]))
        limits = [before + free] if free is not None and free < needed else []
        limit = snapshot.own.device_limits.get(timeline.device)
        if limit is not None and limit >= before - excess(settings):
            limits.append(limit)
        set_limit = min(limits, default=set_limit)
        upper = before + segment - 1 if upper is None else min(upper, before + segment - 1)
    return (int(reserved.bytes.max()) - excess(settings), upper) if set_limit is None else (set_limit, set_limit)


def _required(settings: AllocatorSettings, request: int) -> tuple[int, int]:
    segment = settings.segment_size(request)
    page = settings.large_segment if settings.expandable and request > SMALL else SMALL_SEGMENT
    return segment, -(-segment // page) * page


def excess(settings: AllocatorSettings) -> int:
    """Return by how many bytes reserved memory can exceed a limit that the program had set.

    PyTorch compares the size of a segment with the limit, and then maps it in larger units.
    """
    return settings.large_segment - SMALL_SEGMENT if settings.expandable else 0


def is_limited_by_fraction(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> bool:
    """Return whether ``set_per_process_memory_fraction``, not the memory of the device, limited the memory.

    The result applies to the last request that failed or, if none failed, to the end of the recording. It is False if
    the file does not show which limit was reached.
    """
    ooms, trace, reserved = timeline.trace.events(Action.OOM), timeline.trace, timeline.reserved
    if not len(ooms) or reserved is None:
        return program_limit(snapshot, timeline, settings) is not None
    event = int(ooms[-1])
    free, limit = trace.device_free.get(event), snapshot.own.device_limits.get(timeline.device)
    before = int(reserved.bytes[event])
    if free is not None and free < _required(settings, int(trace.size[event]))[1]:
        return limit is not None and before - excess(settings) <= limit < before + free
    return free is not None or limit is not None


class ReleaseCauses:
    """Data that show why segments were freed: the stacks of events, and the new memory that a request required."""

    def __init__(self, recording: Recording) -> None:
        self._trace, self._settings = recording.trace, recording.settings
        stack = self._trace.stack
        # a cumulative count and event numbers, because many groups of freed segments can precede the same request
        self._changes = np.zeros(len(stack), np.int32)
        np.cumsum(stack[1:] != stack[:-1], out=self._changes[1:])
        shows_cause = releases_show_causes(recording)
        self._causes = None if shows_cause.all() else np.flatnonzero(shows_cause)  # None saves memory
        self._new_bytes: dict[int, int] = {}

    def are_shown(self, first: int, end: int) -> bool:
        """Return whether the stacks of freed segments show whether ``torch.cuda.empty_cache`` freed them.

        The segments were freed in the events from ``first`` to ``end`` - 1.
        """
        is_shown = (
            first < end if self._causes is None else bool(np.diff(np.searchsorted(self._causes, [first, end]))[0])
        )
        return is_shown and bool(self._changes[end - 1] == self._changes[first])

    def new_bytes(self, request: int) -> int:
        """Return the size in bytes of the new memory for the request whose first event is ``request``."""
        if request not in self._new_bytes:
            trace, settings = self._trace, self._settings
            end = request
            while end < len(trace) and trace.action[end] == trace.action[request]:
                end += 1
            result = sum(trace.size[request:end].tolist())
            if end < len(trace) and trace.action[end] == Action.ALLOC:
                result = max(result, settings.segment_size(*settings.round(trace.size[[end]]).tolist()))
            self._new_bytes[request] = result
        return self._new_bytes[request]


def is_retry(recording: Recording, event: int, request: int) -> bool:
    """Return whether the allocator, not ``torch.cuda.empty_cache``, freed segments to serve a request.

    ``event`` is the first event in which a segment was freed, and ``request`` the event in which the request would then
    have been served or have failed.
    """
    trace, limit = recording.trace, recording.program_limit
    if request == len(trace) or trace.stack[event] != trace.stack[request]:  # PyTorch uses the stack of the request
        return False
    uses_mapped_memory = _has_stack(recording, event) and _may_fit(recording, event, request)
    if trace.action[request] not in _NEW_MEMORY and not uses_mapped_memory:
        return False
    if recording.timeline.reserved is None or recording.settings.collection_threshold:
        return True
    if limit is None and recording.release_causes.are_shown(event, request):
        return True
    return _exceeded_limit(recording, event, request, recording.limit[0] if limit is None else limit)


def may_be_retry(recording: Recording, event: int, request: int) -> bool:
    """Return whether segments may have been freed to serve a request although `is_retry` is False.

    This is possible only if neither of the two events has a stack. The arguments are those of `is_retry`.
    """
    is_known = request == len(recording.trace) or _has_stack(recording, event) or _has_stack(recording, request)
    return not is_known and _may_fit(recording, event, request)


def _has_stack(recording: Recording, event: int) -> bool:
    stack = int(recording.trace.stack[event])
    return stack >= 0 and bool(recording.snapshot.stacks.leaf[stack] >= 0)


def _may_fit(recording: Recording, event: int, request: int) -> bool:
    """Return whether a request may have been served from memory that remained mapped after other memory was unmapped.

    The remaining memory may be smaller than ``max_split_size``, or may have become free when a cross-stream free was
    completed.
    """
    trace, settings = recording.trace, recording.settings
    follows_free = event > 0 and trace.action[event - 1] == Action.FREE_COMPLETED
    is_completed = follows_free and (not _has_stack(recording, event) or completes_free(trace, event - 1))
    may_fit = settings.max_split_size is not None or is_completed
    return bool(settings.expandable and trace.action[request] == Action.ALLOC and may_fit)


def _exceeded_limit(recording: Recording, event: int, request: int, limit: int) -> bool:
    """Return whether a request would have exceeded a limit in bytes if no segments had been freed from ``event`` on.

    True is also returned if the request did not allocate or map new memory, or if the reserved memory is unknown.
    """
    trace, reserved = recording.trace, recording.timeline.reserved
    if reserved is None or trace.action[request] not in (Action.SEGMENT_ALLOC, Action.MAP):
        return True
    return int(reserved.bytes[event]) + recording.release_causes.new_bytes(request) > limit


def limit_of_retries(recording: Recording) -> int | None:
    """Infer an upper bound in bytes on the limit on reserved memory from retries; None if there is no such bound.

    The recording must not contain a failed request. In a retry, PyTorch frees cached segments because a new segment
    would exceed the limit. The limit was therefore less than the reserved memory before the retry plus the size of the
    segment. Retries that cannot be distinguished from calls to ``torch.cuda.empty_cache`` are ignored.
    """
    trace, reserved = recording.trace, recording.timeline.reserved
    if recording.settings.collection_threshold or reserved is None:  # segments were freed before the limit was reached
        return None
    releases = [item for item in recording.special if not isinstance(item, int) and item.retry]
    bounds = [
        (int(reserved.bytes[item.first] + trace.size[item.request]) - 1, item.first, item.first + item.count)
        for item in releases
        if trace.action[item.request] == Action.SEGMENT_ALLOC
    ]
    lowest = sorted(bounds)[:_MAX_BOUNDS]
    causes = recording.release_causes
    certain = (upper for upper, *events in lowest if causes.are_shown(*events) or _keeps_segments(recording, *events))
    upper = next(certain, None)
    return upper if upper is not None and upper >= recording.limit[0] else None


def _keeps_segments(recording: Recording, first: int, end: int) -> bool:
    """Return whether some cached segments were not freed, although ``torch.cuda.empty_cache`` would have freed them.

    If the limit is reached, PyTorch first frees only segments of at least ``max_split_size``.
    """
    smallest, history = recording.settings.max_split_size, recording.snapshot.history(recording.device)
    if smallest is None or recording.has_private_pools or (recording.trace.size[first:end] < smallest).any():
        return False
    state = history.at(end - 1)
    fixed = state.segments[~state.segments["expandable"]]
    ranges = np.stack([fixed["address"], fixed["address"] + fixed["size"]])
    starts, ends = np.searchsorted(state.blocks["address"], ranges)
    return bool((starts == ends).any())


def program_limit(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> int | None:
    """Return the limit in bytes that the program had set; None if it is unknown or below the recorded peak."""
    limit, reserved = snapshot.own.device_limits.get(timeline.device), timeline.reserved
    return None if limit is None or reserved is None or limit < reserved.bytes.max() - excess(settings) else limit
