"""Recordings of simulated allocations, at the addresses that PyTorch's allocator would choose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedAllocator
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings
from ipygpumem.snapshot.scaling.step import StepRecording

_POOLS = [BlockPool(-1, 0, small, private=False) for small in (False, True)]
_NO_FRAMES: list[Any] = []
_FIRST_ADDRESS = 1 << 44
_address = itemgetter(0)


@dataclass(slots=True, eq=False)
class SimulatedAllocation:
    """A simulated allocation, which uses no memory of a device.

    Attributes:
        size: Requested size in bytes.
        frames: Call stack in the format of PyTorch's snapshots, innermost frame first; empty if it is unknown.
        context: String by which allocations are grouped if the key is ``"context"``.
        metadata: String by which allocations are grouped if the key is ``"metadata"``.
    """

    size: int
    frames: list[dict[str, Any]]
    context: str
    metadata: str


class SimulatedRecording:
    """Recording of simulated allocations on a simulated device.

    Args:
        before: Allocations that exist before the step.
        requests: Allocations and frees of the step, in order: tuples of an allocation and whether it is freed.
        settings: Settings of the allocator in the format of ``PYTORCH_ALLOC_CONF``.
        sources: Source code by file name, which the recording contains.
        numbers: Execution counts of cells by file name.

    Attributes:
        step: Recorded step. Cached memory is freed after it.
        allocated: Highest allocated memory in bytes.
        reserved: Highest reserved memory in bytes.
    """

    def __init__(
        self,
        before: Iterable[SimulatedAllocation],
        requests: Iterable[tuple[SimulatedAllocation, bool]],
        *,
        settings: str = "",
        sources: Mapping[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        self._allocator = SimulatedAllocator(
            AllocatorSettings.parse(settings), _POOLS, choose_address=self._choose_address
        )
        self._following = _FIRST_ADDRESS
        self._trace: list[dict[str, Any]] = []
        self._live: dict[SimulatedAllocation, tuple[int, int, int]] = {}
        self._ids: dict[int, int] = {}
        self._in_use = self.allocated = 0
        for allocation in before:
            self._allocate(allocation)
        first = len(self._trace) - 1
        for allocation, freed in requests:
            (self._free if freed else self._allocate)(allocation)
        last = len(self._trace) - 1
        self.reserved = self._allocator.peak
        self._allocator.release_cached(0)
        self._add_segment_events()
        content = {
            "device_traces": [self._trace],
            "segments": self._segments(),
            "allocator_settings": {"PYTORCH_ALLOC_CONF": settings},
            "source_code": dict(sources or {}),
        }
        if numbers:
            content["ipygpumem"] = {"numbers": dict(numbers)}
        snapshot = Snapshot.load(content)
        ids = [self._ids[event] for event in snapshot.timeline(0).allocations.start.tolist()]
        self.step = StepRecording(snapshot, 0, first, last, np.asarray(ids, np.int64))

    def _choose_address(self, size: int) -> int:
        self._following += size
        return self._following - size

    def _allocate(self, allocation: SimulatedAllocation) -> None:
        rounded = int(self._allocator.settings.round(np.asarray([allocation.size]))[0])
        pool = int(rounded <= SMALL)
        address, size = self._allocator.allocate(pool, rounded, 0)
        self._add_segment_events()
        self._live[allocation] = pool, address, size
        self._in_use += size
        self.allocated = max(self.allocated, self._in_use)
        self._ids[len(self._trace)] = id(allocation)
        self._add("alloc", address, allocation.size, allocation)

    def _free(self, allocation: SimulatedAllocation) -> None:
        pool, address, size = self._live.pop(allocation)
        self._allocator.free(pool, address, size)
        self._in_use -= size
        for action in ("free_requested", "free_completed"):
            self._add(action, address, allocation.size)

    def _add_segment_events(self) -> None:
        for event in self._allocator.events:
            self._add("segment_alloc" if event.action == Action.SEGMENT_ALLOC else "segment_free", *event[1:3])
        self._allocator.events.clear()

    def _add(self, action: str, address: int, size: int, allocation: SimulatedAllocation | None = None) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(self._trace)}
        if allocation is not None:
            event |= {"compile_context": allocation.context, "user_metadata": allocation.metadata}
            if allocation.frames:
                event["frames"] = allocation.frames
        self._trace.append(event)

    def _segments(self) -> list[dict[str, Any]]:
        blocks = sorted(
            (
                (address, size, allocation.size, allocation.frames, pool)
                for allocation, (pool, address, size) in self._live.items()
            ),
            key=_address,
        )
        result = []
        for start, total in sorted(self._allocator.segments.items()):
            inside = blocks[bisect_left(blocks, start, key=_address) : bisect_left(blocks, start + total, key=_address)]
            result.append(
                {
                    "device": 0,
                    "address": start,
                    "total_size": total,
                    "stream": 0,
                    "segment_type": "small" if inside and inside[0][4] else "large",
                    "blocks": _with_gaps(start, total, inside),
                }
            )
        return result


def _with_gaps(start: int, total: int, inside: list[tuple[int, int, int, list[Any], int]]) -> list[dict[str, Any]]:
    """Return all blocks of a segment, including free blocks, in the format of PyTorch's snapshots."""
    result, position = [], start
    for address, size, requested, frames, _ in [*inside, (start + total, 0, 0, _NO_FRAMES, 0)]:
        if address > position:
            result.append({"address": position, "size": address - position, "requested_size": 0, "state": "inactive"})
        if size:
            result.append(
                {
                    "address": address,
                    "size": size,
                    "requested_size": requested,
                    "state": "active_allocated",
                    "frames": frames,
                }
            )
        position = address + size
    return result
