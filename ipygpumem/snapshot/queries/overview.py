"""Summary of a snapshot with its peak and notes on accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.text import clip
from ipygpumem.core.units import many, size
from ipygpumem.snapshot.export.text import group_lines, peak_line
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.timeline import Timeline
from ipygpumem.snapshot.replay.block_sizes import block_sizes, uncertain_rows
from ipygpumem.snapshot.replay.memory_limit import default_device
from ipygpumem.snapshot.replay.missing_data import largest_sizes
from ipygpumem.snapshot.snapshot_data import SnapshotData

if TYPE_CHECKING:
    from ipygpumem.snapshot.snapshot import Snapshot

_TOP = 3
_MAX_DEVICES = 4
_MAX_SECONDS = 3.0  # expected duration of a replay in seconds above which the replay is omitted
_RELEVANT = 0.05  # fraction of the reserved memory above which unused memory is reported
_SINGULAR = {"s": "", "is": "is", "was": "was", "has": "has"}
_PLURAL = {"s": "s", "is": "are", "was": "were", "has": "have"}


def overview(snapshot: Snapshot, device: int) -> dict[str, Any]:
    timeline = snapshot.timeline(device)
    gaps = timeline.gaps
    return {
        "device": device,
        "events": len(timeline.trace),
        "peak": snapshot.peak(device).to_dict(),
        "end": {"requested": timeline.end_requested, "rounded": timeline.end_active},
        "reserved": {"end": timeline.end_reserved, "peak": timeline.reserved_peak},
        "before_recording": gaps.before_recording,
        "before_recording_bytes": gaps.before_recording_bytes,
        "dropped": snapshot.own.dropped_of(device),
        "out_of_order": timeline.trace.out_of_order,
        "oom_events": len(timeline.trace.events(Action.OOM)),
        "notes": notes(snapshot, timeline),
    }


def summary_text(snapshot: Snapshot, device: int | None = None) -> str:
    timelines = snapshot.timelines if device is None else [snapshot.timeline(device)]
    used_timelines = [timeline for timeline in timelines if len(timeline.trace) or timeline.end_reserved]
    used_timelines.sort(key=lambda timeline: -timeline.requested.peak()[1])
    if not used_timelines:
        return f"{snapshot.name}: no device used memory"
    lines: list[str] = []
    for timeline in used_timelines[:_MAX_DEVICES]:
        lines += _device_lines(snapshot, timeline, short=len(used_timelines) > 1)
    if len(used_timelines) > _MAX_DEVICES:
        lines.append(f"and {many(len(used_timelines) - _MAX_DEVICES, 'more device')} with the same or lower peaks")
    host = snapshot.host_timeline if device is None else None
    if host is not None and len(host.trace):
        peak, end = size(host.requested.peak()[1]), f"{size(host.end_requested)} at the end"
        lines.append(f"pinned host memory: peak {peak}, {end}; {many(len(host.trace), 'event')}")
    lines.append(clip(snapshot.name + (f", torch {snapshot.own.torch}" if snapshot.own.torch else "")))
    return "\n".join(lines)


def _device_lines(snapshot: Snapshot, timeline: Timeline, *, short: bool) -> list[str]:
    peak = snapshot.peak(timeline.device)
    groups = peak.live.by("line")[:_TOP]
    lines = [peak_line(snapshot, peak), *group_lines(groups, peak.requested, _TOP)]
    end = f"at the end {size(timeline.end_requested)} requested"
    if timeline.end_reserved is not None and timeline.end_active is not None:
        end += f", {size(timeline.end_active)} after rounding up; {size(timeline.end_reserved)} reserved"
    if timeline.reserved_peak is not None:
        end += f" (peak {size(timeline.reserved_peak)})"
    lines.append(f"  {many(len(timeline.trace), 'event')}; {end}")
    lines += _fragmentation_cost(snapshot, timeline)
    if ooms := len(timeline.trace.events(Action.OOM)):
        times = "once" if ooms == 1 else f"{ooms:,} times"
        lines.append(f"  out of memory {times}: see ipygpumem fragmentation {clip(snapshot.name)} --at oom")
    lines += [f"  note: {note}" for note in notes(snapshot, timeline)[: 1 if short else None]]
    return lines


def _fragmentation_cost(snapshot: Snapshot, timeline: Timeline) -> list[str]:
    reserved = timeline.reserved_peak or 0
    if reserved - timeline.requested.peak()[1] <= _RELEVANT * reserved:
        return []
    sizes = block_sizes(snapshot, timeline.device, _MAX_SECONDS)
    # if no segment was allocated, the recording does not contain the allocations that filled the segments
    if sizes is None or timeline.reserved is None or reserved <= timeline.reserved.bytes[0]:
        return []
    sizes = largest_sizes(sizes, uncertain_rows(snapshot, timeline.device))
    unused = reserved - int(timeline.allocations.in_use(sizes, len(timeline.trace)).max())
    if unused <= _RELEVANT * reserved:
        return []
    text = f"peak reserved memory exceeds peak allocated memory by at least {size(unused)} ({unused / reserved:.0%})"
    device = "" if timeline.device == default_device(snapshot) else f" --device {timeline.device}"
    return [f"  fragmentation: {text}; see ipygpumem whatif {clip(snapshot.name)}{device}"]


def notes(snapshot: SnapshotData, timeline: Timeline) -> list[str]:
    gaps, trace, blocks = timeline.gaps, timeline.trace, snapshot.blocks
    dropped = snapshot.own.dropped_of(trace.device)
    used_blocks = np.flatnonzero(blocks.active & (blocks.device == timeline.device))
    without_request = int(np.count_nonzero(~blocks.requested_known[used_blocks]))
    address = blocks.address[used_blocks]
    overlapping = int(np.count_nonzero(address[1:] < (address + blocks.size[used_blocks])[:-1]))
    sentences: list[str] = []

    def add(count: int, sentence: str) -> None:
        if count:
            sentences.append(sentence.format(n=f"{count:,}", **(_SINGULAR if count == 1 else _PLURAL)))

    if not len(trace):
        sentences.append("no events were recorded, so only the final allocator state is known")
    if gaps.before_recording:
        unknown = "" if dropped is not None else "; the file does not say whether events were dropped"
        older = f"{{n}} block{{s}} ({size(gaps.before_recording_bytes)}) {{is}} older than the first event{unknown}"
        add(gaps.before_recording, older)
    add(dropped or 0, "{n} allocation event{s} {was} dropped from the ring buffer")
    add(gaps.frees_without_allocation, "{n} free{s} without an allocation {was} ignored")
    add(gaps.missing_frees, "{n} block{s} without a recorded free {is} treated as freed when the address is reused")
    if gaps.ended_by_request:
        sentences.append("completed frees were not recorded, so requested frees are treated as completed")
    add(
        gaps.only_in_segments,
        "{n} block{s} in the final allocator state {was} allocated after the recorded events were copied",
    )
    add(gaps.only_in_events, "{n} block{s} alive according to the events {is} missing from the final allocator state")
    add(trace.out_of_order, "{n} event{s} {was} out of order and {was} sorted by time")
    if trace.untimed < len(trace):
        add(trace.untimed, "{n} event{s} {has} no timestamp, so timestamps are not used")
    elif len(trace):
        sentences.append("the events have no timestamps")
    add(without_request, "the rounded size is used for {n} block{s} without a requested size")
    add(overlapping, "{n} block{s} in the final allocator state {is} overlapped by another block; totals include both")
    if timeline.end_reserved is None:
        sentences.append("reserved memory is unknown because the file has no segments")
    elif timeline.reserved_peak is None:
        sentences.append("the segments contradict the events, so only the final reserved memory is known")
    return sentences + [f"pinned memory events were skipped: {host.error}" for host in snapshot.host if host.error]
