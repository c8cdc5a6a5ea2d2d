"""Summary of a snapshot with its peak and notes on accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.units import many, size
from ipygpumem.snapshot.export.text import clip, group_lines, peak_line
from ipygpumem.snapshot.model.trace import Action

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.queries.live_set import Peak
    from ipygpumem.snapshot.snapshot import Snapshot

_TOP = 3
_MAX_DEVICES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """Main metrics of a device. Sizes are requested sizes in bytes unless stated otherwise.

    Attributes:
        end_requested: Total size of the blocks alive at the end.
        end_rounded: Total rounded size of these blocks; None for a file without segments.
        reserved_end: Total size of the segments at the end; None for a file without segments.
        reserved_peak: Maximum of the reserved memory; None if unknown or if events and segments are inconsistent.
        before_recording, before_recording_bytes: Number and size of the blocks older than the first event.
        dropped: Number of allocations dropped from the ring buffer; None if unknown.
    """

    device: int
    events: int
    peak: Peak
    end_requested: int
    end_rounded: int | None
    reserved_end: int | None
    reserved_peak: int | None
    before_recording: int
    before_recording_bytes: int
    dropped: int | None
    out_of_order: int
    oom_events: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        names = ("before_recording", "before_recording_bytes", "dropped", "out_of_order", "oom_events")
        return {
            "device": self.device,
            "events": self.events,
            "peak": self.peak.to_dict(),
            "end": {"requested": self.end_requested, "rounded": self.end_rounded},
            "reserved": {"end": self.reserved_end, "peak": self.reserved_peak},
            **{name: getattr(self, name) for name in names},
            "notes": list(self.notes),
        }


def overview(snapshot: Snapshot, device: int) -> Overview:
    """Compute the main metrics of a device."""
    timeline = snapshot.timeline(device)
    reserved = timeline.reserved
    gaps = timeline.gaps
    return Overview(
        device=device,
        events=len(timeline.trace),
        peak=snapshot.peak(device),
        end_requested=int(timeline.requested.bytes[-1]),
        end_rounded=None if timeline.end_reserved is None else timeline.end_rounded,
        reserved_end=timeline.end_reserved,
        reserved_peak=None if reserved is None or (reserved.bytes < 0).any() else reserved.peak()[1],
        before_recording=gaps.before_recording,
        before_recording_bytes=gaps.before_recording_bytes,
        dropped=snapshot.own.dropped_of(device),
        out_of_order=timeline.trace.out_of_order,
        oom_events=len(timeline.trace.events(Action.OOM)),
        notes=notes(snapshot, timeline),
    )


def summary_text(snapshot: Snapshot, device: int | None = None) -> str:
    """Describe the peak, when it occurred, and the lines of code that allocated most of it."""
    timelines = snapshot.timelines if device is None else [snapshot.timeline(device)]
    used = [timeline for timeline in timelines if len(timeline.trace) or timeline.end_reserved]
    used.sort(key=lambda timeline: -timeline.requested.peak()[1])
    if not used:
        return f"{snapshot.name}: no device used memory"
    lines: list[str] = []
    for timeline in used[:_MAX_DEVICES]:
        lines += _device_lines(snapshot, timeline.device, short=len(used) > 1)
    if len(used) > _MAX_DEVICES:
        lines.append(f"and {many(len(used) - _MAX_DEVICES, 'more device')} with lower peaks")
    lines.append(clip(snapshot.name + (f", torch {snapshot.own.torch}" if snapshot.own.torch else "")))
    return "\n".join(lines)


def _device_lines(snapshot: Snapshot, device: int, *, short: bool) -> list[str]:
    metrics = overview(snapshot, device)
    peak = metrics.peak
    groups = peak.live.by("line")[:_TOP]
    lines = [peak_line(snapshot, peak), *group_lines(groups, peak.requested, _TOP)]
    end = f"at the end {size(metrics.end_requested)} requested"
    if metrics.reserved_end is not None and metrics.end_rounded is not None:
        end += f", {size(metrics.end_rounded)} rounded; reserved {size(metrics.reserved_end)}"
    if metrics.reserved_peak is not None:
        end += f", at most {size(metrics.reserved_peak)}"
    lines.append(f"  {many(metrics.events, 'event')}; {end}")
    if metrics.oom_events:
        times = "once" if metrics.oom_events == 1 else f"{metrics.oom_events:,} times"
        lines.append(f"  out of memory {times}: see ipygpumem fragmentation {clip(snapshot.name)} --at oom")
    lines += [f"  note: {note}" for note in (metrics.notes[:1] if short else metrics.notes)]
    return lines


def notes(snapshot: Snapshot, timeline: Timeline) -> tuple[str, ...]:
    """Return sentences that describe missing or inconsistent data of a device."""
    gaps, trace, blocks, reserved = timeline.gaps, timeline.trace, snapshot.blocks, timeline.reserved
    dropped = snapshot.own.dropped_of(trace.device)
    used = np.flatnonzero(blocks.active & (blocks.device == timeline.device))
    without_request = int(np.count_nonzero(~blocks.requested_known[used]))
    address = blocks.address[used]
    overlapping = int(np.count_nonzero(address[1:] < (address + blocks.size[used])[:-1]))
    sentences = []

    def add(count: int, noun: str, singular: str, plural: str, text: str) -> None:
        if count:
            sentences.append(f"{many(count, noun)} {singular if count == 1 else plural} {text}")

    if not len(trace):
        sentences.append("no events were recorded: only the state at the end is known")
    if gaps.before_recording:
        unknown = "" if dropped is not None else "; the file does not say whether events were dropped"
        verb = "is" if gaps.before_recording == 1 else "are"
        older = f"{many(gaps.before_recording, 'block')} ({size(gaps.before_recording_bytes)})"
        sentences.append(f"{older} {verb} older than the first event{unknown}")
    add(dropped or 0, "allocation", "was", "were", "dropped from the ring buffer before the first event")
    add(gaps.frees_without_allocation, "free", "without an allocation was", "without an allocation were", "ignored")
    add(gaps.missing_frees, "block", "was", "were", "allocated again without a free, which ends the previous block")
    if gaps.ended_by_request:
        sentences.append("completed frees were not recorded: blocks end when their free is requested")
    add(gaps.only_in_segments, "block", "at the end was", "at the end were", "allocated after the events were copied")
    alive = "alive according to the events"
    add(gaps.only_in_events, "block", f"{alive} is", f"{alive} are", "missing at the end")
    add(trace.out_of_order, "event", "was out of order and was", "were out of order and were", "sorted by time")
    if trace.untimed < len(trace):
        add(trace.untimed, "event", "has", "have", "no timestamp: timestamps are not used")
    elif len(trace):
        sentences.append("the events have no timestamps")
    text = "no requested size: the rounded size is used"
    add(without_request, "block", "at the end has", "at the end have", text)
    add(overlapping, "block", "at the end is", "at the end are", "inside another block: totals include both")
    if reserved is None:
        sentences.append("reserved memory is unknown because the file has no segments")
    elif (reserved.bytes < 0).any():
        sentences.append("the segments at the end contradict the events: reserved memory is known only at the end")
    sentences += [f"a list of host events was skipped: {host.error}" for host in snapshot.host if host.error]
    return tuple(sentences)
