"""Inference of the memory that was available to PyTorch from a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import many, parse_size, size
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.replay.settings import AllocatorSettings
    from ipygpumem.snapshot.snapshot_data import SnapshotData


def parse_capacity(capacity: int | str) -> int:
    """Convert a limit of reserved memory, such as ``"24 GiB"``, to bytes.

    Raises `OptionError` if the limit is not a valid size or is less than the smallest segment.
    """
    limit = parse_size(capacity)
    if limit < SMALL_SEGMENT:
        minimum = f"{size(SMALL_SEGMENT)}, the size of the smallest segment"
        raise OptionError(f"a capacity of {many(limit, 'byte')} is less than {minimum}: write a unit, such as 24 GiB")
    return limit


def default_device(snapshot: SnapshotData) -> int:
    """Return the index of the device to which a comparison of settings refers by default.

    This is the device with the highest peak among those on which a request failed or, if none failed, among all.
    """
    failed_timelines = [timeline for timeline in snapshot.timelines if len(timeline.trace.events(Action.OOM))]
    return max(
        failed_timelines, key=lambda timeline: timeline.requested.peak()[1], default=snapshot.timeline(None)
    ).device


def available_memory(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> tuple[int, int | None]:
    """Return a lower and an upper bound on the limit of reserved memory when the last request failed, in bytes.

    The bounds are equal if the limit is known, and ``(0, None)`` if the file does not contain the segments.

    If less memory than the requested segment was free on the device, the limit was the reserved memory and this free
    memory. Otherwise, the limit was set by ``set_per_process_memory_fraction``: it is at least the highest reserved
    memory, and too low for each segment whose allocation failed. If no request failed, the upper bound is None unless
    the file contains the limit that the program had set.
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
    """Return the size of the segment for a request, and the largest amount of new memory that it requires, in bytes."""
    segment = settings.segment_size(request)
    page = settings.large_segment if settings.expandable and request > SMALL else SMALL_SEGMENT
    return segment, -(-segment // page) * page


def excess(settings: AllocatorSettings) -> int:
    """Return by how many bytes reserved memory can exceed a limit that the program had set.

    PyTorch compares the size of a segment with the limit, and then maps it in larger units.
    """
    return settings.large_segment - SMALL_SEGMENT if settings.expandable else 0


def is_limited_by_fraction(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> bool:
    """Return whether the memory was limited by ``set_per_process_memory_fraction``, not by the memory of the device.

    This refers to the last request that failed or, if none failed, to the end of the recording.
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


def exceeded_limit(recording: Recording, event: int, next_event: int, limit: int) -> bool:
    """Return whether a request would have exceeded a limit in bytes without the segments freed from ``event`` on.

    ``next_event`` is the event after these segments were freed, in which the request allocated or mapped new memory.
    True is also returned if it did not, or if the reserved memory is unknown.
    """
    trace, settings, reserved = recording.trace, recording.settings, recording.timeline.reserved
    if reserved is None or trace.action[next_event] not in (Action.SEGMENT_ALLOC, Action.MAP):
        return True
    before = int(reserved.bytes[event - 1]) if event else int(recording.initial.segments["size"].sum())
    end = next_event
    while end < len(trace) and trace.action[end] == trace.action[next_event]:
        end += 1
    needed = sum(trace.size[next_event:end].tolist())
    if end < len(trace) and trace.action[end] == Action.ALLOC:
        needed = max(needed, settings.segment_size(*settings.round(trace.size[[end]]).tolist()))
    return bool(before + needed > limit)


def limit_of_retries(recording: Recording) -> int | None:
    """Return an upper bound in bytes on the limit of reserved memory if no request failed; None if it is unknown.

    The limit was too low for each new segment before which cached segments were freed.
    """
    trace, reserved = recording.trace, recording.timeline.reserved
    if recording.settings.collection_threshold or reserved is None:  # segments were freed before the limit was reached
        return None
    releases = [item for item in recording.special if not isinstance(item, int) and item.retry]
    served = [(item.first, item.first + item.count) for item in releases]
    bounds = [
        int(reserved.bytes[first] + trace.size[event]) - 1
        for first, event in served
        if trace.action[event] == Action.SEGMENT_ALLOC
    ]
    upper = min(bounds, default=None)
    return upper if upper is not None and upper >= recording.limit[0] else None


def program_limit(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> int | None:
    """Return the limit in bytes that the program had set; None if the file does not contain it or it was changed."""
    limit, reserved = snapshot.own.device_limits.get(timeline.device), timeline.reserved
    return None if limit is None or reserved is None or limit < reserved.bytes.max() - excess(settings) else limit
