"""A place in the order of a device's events, told by the allocator's own counts.

Every allocation and every free raises a count that is never reset but by hand. So the counts at some moment tell which
event of the history was the last before it: exactly, where times in microseconds are shared by many events.
"""

from __future__ import annotations

from typing import TypeAlias

from ipygpumem.sources import allocator, pytorch

__all__ = ["Mark", "mark"]

Mark: TypeAlias = dict[int, int]
"""By device index: allocations and frees so far. A device without a context has none."""


def mark() -> Mark:
    """Where the events stand now; empty before CUDA starts and where the allocator keeps no counts."""
    torch = pytorch.started()
    if torch is None:
        return {}
    found = {}
    for index in range(torch.cuda.device_count()):
        if not pytorch.has_context(torch, index):
            continue
        try:
            counts = allocator.stats(index)["allocation"]["all"]
        except RuntimeError:  # a pluggable allocator
            continue
        found[index] = counts["allocated"] + counts["freed"]
    return found
