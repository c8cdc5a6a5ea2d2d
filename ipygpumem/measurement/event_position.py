"""Positions in the sequence of a device's allocation events.

The allocator counts allocations and frees, and only the program can reset these counters. The sum of the two counters
identifies the last event before the counters were read. A timestamp does not identify an event, because many events
have the same timestamp.
"""

from __future__ import annotations

from typing import TypeAlias

from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

EventPosition: TypeAlias = dict[int, int]
"""Number of allocations and frees so far, by device index. Devices without a CUDA context or counters are missing."""


def event_position() -> EventPosition:
    """Return the current position in the sequence of each device's allocation events."""
    position = {}
    stats = current().peaks.stats
    for index in pytorch.devices_in_use():
        try:
            counts = stats(index)["allocation"]["all"]
        except RuntimeError:  # a pluggable allocator
            continue
        position[index] = counts["allocated"] + counts["freed"]
    return position
