"""Removal of stacks from events that free memory if these are the stacks of the allocations.

PyTorch assigns the stack of the allocation to an event that frees memory, unless it records the stacks of frees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_FREES = {"free_requested", "free_completed", "segment_free", "segment_unmap"}


def remove_stacks(events: Iterable[dict[str, Any]]) -> None:
    """Remove the stacks of all events that free memory."""
    for event in events:
        if event["action"] in _FREES:
            event.pop("frames", None)


def remove_allocation_stacks(events: Iterable[dict[str, Any]]) -> None:
    """Remove the stack of each event that frees memory if the event of the allocation has the same list of frames."""
    stacks: dict[tuple[bool, int], Any] = {}
    for event in events:
        if "addr" in event and "frames" in event:
            block = event["action"].startswith("segment"), event["addr"]
            if event["action"] not in _FREES:
                stacks[block] = event["frames"]
            elif stacks.get(block) is event["frames"]:
                del event["frames"]


def remove_stacks_between(events: Sequence[dict[str, Any]], spans: Iterable[tuple[int, int]]) -> None:
    """Remove the stacks of events that free memory in spans, given as counts of allocations and free requests."""
    counted = [index for index, event in enumerate(events) if event["action"] in {"alloc", "free_requested"}]
    counted.append(len(events))
    for begin, end in spans:
        for number in range(max(begin, 0), min(end, len(counted) - 1)):
            remove_stacks(events[counted[number] : counted[number + 1]])
