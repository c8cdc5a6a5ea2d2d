"""Removal of stacks from events that free memory if these are the stacks of the allocations.

PyTorch assigns the stack of the allocation to an event that frees memory, unless it records the stacks of frees
(``context="all"``). In PyTorch's snapshot, such an event and the allocation have the same list of frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.measurement.backward_passes import BackwardPass

_FREES = {"free_requested", "free_completed", "segment_free", "segment_unmap"}


def remove_stacks(events: Iterable[dict[str, Any]]) -> None:
    """Remove the stacks of all events that free memory."""
    for event in events:
        if event["action"] in _FREES:
            event.pop("frames", None)


def remove_allocation_stacks(events: Iterable[dict[str, Any]]) -> None:
    """Remove the stacks of events that free memory if the stack is that of the recorded allocation."""
    stacks: dict[tuple[bool, int], Any] = {}
    for event in events:
        action = event["action"]
        if "addr" in event and "frames" in event:
            block = action.startswith("segment"), event["addr"]
            if action not in _FREES:
                stacks[block] = event["frames"]
            elif stacks.get(block) is event["frames"]:
                del event["frames"]


def remove_stacks_during(
    events: Sequence[dict[str, Any]], device: int, passes: Iterable[BackwardPass], begin: int, end: int
) -> None:
    """Remove the stacks of events of a device that free memory during backward passes.

    ``begin`` and ``end`` are the positions of the start and of the end of the recording. If they do not match the
    events, the stacks of all events that free memory are removed.
    """
    counted = [index for index, event in enumerate(events) if event["action"] in {"alloc", "free_requested"}]
    first = end - len(counted)
    if first < begin:
        remove_stacks(events)
        return
    counted.append(len(events))
    for backward in passes:
        start, stop = (max(at.get(device, 0) - first, 0) for at in (backward.begin, backward.end))
        for number in range(start, min(stop, len(counted) - 1)):
            remove_stacks(events[counted[number] : counted[number + 1]])
