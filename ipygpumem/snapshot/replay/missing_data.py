"""Data without which a recording cannot be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.snapshot.model.columns import Action

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot_data import SnapshotData


def missing_data(snapshot: SnapshotData, timeline: Timeline) -> str:
    """Return the reason why allocations, frees or segments of a device are missing; empty if none are missing."""
    gaps, trace, native = timeline.gaps, timeline.trace, snapshot.settings.get("backend", "native") == "native"
    missing = gaps.frees_without_allocation + gaps.missing_frees + gaps.only_in_events + gaps.only_in_segments
    problems = (
        (timeline.reserved is None, "the file does not contain the segments"),
        (not (trace.action == Action.ALLOC).any(), "the recording contains no allocations"),
        (not native, "the recording was made with an allocator other than PyTorch's native one"),
        (gaps.ended_by_request, "the recording does not contain completed frees (skip_actions)"),
        (missing > 0, f"{missing:,} allocations or frees are missing from the recording"),
        (timeline.reserved_peak is None, "the events contradict the segments"),
    )
    return next((text for exists, text in problems if exists), "")
