"""The short answer: what peaked when, who holds it, and what the file does not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import size
from ipygpumem.snapshot.export.text import clip, group_lines, many, peak_line
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.queries.notes import notes

if TYPE_CHECKING:
    from ipygpumem.snapshot.queries.live_set import Peak
    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["Overview", "overview", "summary_text"]

_TOP = 3
_DEVICES_SHOWN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """One device in numbers. Bytes are requested bytes where nothing else is said.

    Attributes:
        device: The device's index.
        events: Events in its trace.
        peak: The highest point.
        end_requested: Bytes of the blocks that live at the end.
        end_rounded: The same, as the allocator rounds them; None for a file without segments.
        reserved_end: Bytes of all segments at the end; None for a file without segments.
        reserved_peak: The most there was of these; None also where events and segments do not fit together.
        before_recording: Blocks older than the first event.
        before_recording_bytes: Their bytes.
        dropped: Allocations that the ring buffer lost; None if the file does not say.
        out_of_order: Events that were sorted in by time.
        oom_events: Out-of-memory events.
        notes: What else the events do not tell, in sentences.
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
        """As plain values."""
        return {
            "device": self.device,
            "events": self.events,
            "peak": self.peak.to_dict(),
            "end": {"requested": self.end_requested, "rounded": self.end_rounded},
            "reserved": {"end": self.reserved_end, "peak": self.reserved_peak},
            "before_recording": self.before_recording,
            "before_recording_bytes": self.before_recording_bytes,
            "dropped": self.dropped,
            "out_of_order": self.out_of_order,
            "oom_events": self.oom_events,
            "notes": list(self.notes),
        }


def overview(snapshot: Snapshot, device: int) -> Overview:
    """One device in numbers."""
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
        notes=tuple(notes(snapshot, timeline)),
    )


def summary_text(snapshot: Snapshot, device: int | None = None) -> str:
    """The answer first: the peak, when, and the lines that hold most of it. It fits one screen."""
    chosen = snapshot.timelines if device is None else [snapshot.timeline(device)]
    devices = [timeline.device for timeline in chosen if len(timeline.trace) or timeline.end_reserved]
    devices.sort(key=lambda one: -snapshot.timeline(one).requested.peak()[1])
    if not devices:
        return f"{snapshot.name}: no device used memory"
    lines: list[str] = []
    for one in devices[:_DEVICES_SHOWN]:
        lines += _device_lines(snapshot, one, short=len(devices) > 1)
    if len(devices) > _DEVICES_SHOWN:
        lines.append(f"and {len(devices) - _DEVICES_SHOWN} more devices with lower peaks")
    lines.append(clip(snapshot.name + (f", torch {snapshot.own.torch}" if snapshot.own.torch else "")))
    return "\n".join(lines)


def _device_lines(snapshot: Snapshot, device: int, *, short: bool) -> list[str]:
    facts = overview(snapshot, device)
    peak = facts.peak
    groups = peak.live.by("line")[:_TOP]
    lines = [peak_line(snapshot, peak), *group_lines(groups, peak.requested, _TOP)]
    ends = f"at the end {size(facts.end_requested)} requested"
    if facts.reserved_end is not None and facts.end_rounded is not None:
        ends += f", {size(facts.end_rounded)} rounded; reserved {size(facts.reserved_end)}"
    if facts.reserved_peak is not None:
        ends += f", at most {size(facts.reserved_peak)}"
    lines.append(f"  {many(facts.events, 'event')}; {ends}")
    if facts.oom_events:
        times = "once" if facts.oom_events == 1 else f"{facts.oom_events:,} times"
        lines.append(f"  out of memory {times}: see ipygpumem fragmentation {clip(snapshot.name)} --at oom")
    lines += [f"  note: {note}" for note in (facts.notes[:1] if short else facts.notes)]
    return lines
