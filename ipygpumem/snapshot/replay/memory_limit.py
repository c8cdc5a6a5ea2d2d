"""The memory that was available to PyTorch, as far as a recording contains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.snapshot.model.columns import Action

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.replay.settings import AllocatorSettings
    from ipygpumem.snapshot.snapshot_data import SnapshotData


def available_memory(snapshot: SnapshotData, timeline: Timeline, settings: AllocatorSettings) -> tuple[int, int | None]:
    """Return bounds in bytes on the limit of reserved memory when the last request failed; equal if it is known.

    If less memory than the requested segment was free on the device, the limit was the reserved memory and this free
    memory. Otherwise, the limit was set by ``set_per_process_memory_fraction``: it is at least the highest reserved
    memory, and too low for each segment whose allocation failed. If no request failed, the upper bound is None unless
    the file contains the limit that the program had set.
    """
    reserved, trace = timeline.reserved, timeline.trace
    if reserved is None:
        return 0, None
    known, upper = program_limit(snapshot, timeline), None
    for event in trace.events(Action.OOM).tolist():
        before, free = int(reserved.bytes[event]), trace.device_free.get(event)
        segment = settings.segment_size(int(trace.size[event]))
        limits = [before + free] if free is not None and free < segment else []
        limit = snapshot.own.device_limits.get(timeline.device)
        if limit is not None and limit >= before:
            limits.append(limit)
        known = min(limits, default=known)
        upper = before + segment - 1 if upper is None else min(upper, before + segment - 1)
    return (int(reserved.bytes.max()), upper) if known is None else (known, known)


def program_limit(snapshot: SnapshotData, timeline: Timeline) -> int | None:
    """Return the limit in bytes that the program had set; None if the file does not contain it or it was changed."""
    limit, reserved = snapshot.own.device_limits.get(timeline.device), timeline.reserved
    return None if limit is None or reserved is None or limit < reserved.bytes.max() else limit
