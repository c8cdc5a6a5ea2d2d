"""What is there at one moment, to tell later what is new."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.features.holders.autograd_graph import AutogradGraph
from ipygpumem.features.holders.heap import Heap
from ipygpumem.sources import pytorch
from ipygpumem.sources.allocator import allocated_blocks
from ipygpumem.sources.storages import TorchTypes

if TYPE_CHECKING:
    from collections.abc import Collection

    from ipygpumem.sources.storages import StorageLocation

__all__ = ["Mark", "mark"]

_QUICK = 5.0
"""Seconds for the tensors that only autograd graphs keep."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The storages of one moment. Addresses are given out again, so each storage is known by itself as well.

    Attributes:
        places: (device, address) of every block, or of every storage where there are no blocks.
        known: Those of them whose storage was seen.
        storages: The storages that were seen, by where PyTorch has them.
        held: Weak references: while they last no other storage comes to lie there.
    """

    places: frozenset[tuple[str, int]] = frozenset()
    known: frozenset[tuple[str, int]] = frozenset()
    storages: frozenset[int] = frozenset()
    held: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def has(self, device: str, address: int, storages: Collection[int]) -> bool:
        """Whether what lies at an address now was there: ``storages`` are the ones that lie there."""
        if (device, address) not in self.places:
            return False
        return (device, address) not in self.known or not self.storages.isdisjoint(storages)


def mark(*, host: bool = False, storages: bool = True) -> Mark:
    """The storages of now.

    Args:
        host: Those in main memory, too.
        storages: Look for each storage, which costs about a third of a walk. False sees the blocks of the GPUs alone:
            then what came to lie where something was freed is not told from that.
    """
    torch = pytorch.module()
    if torch is None:
        return Mark()
    there = allocated_blocks() if pytorch.started() is not None else None
    places = set() if there is None else set(there.positions)
    known, seen, held = set(), set(), []
    if storages or host:
        kinds = TorchTypes(torch)
        with collector_paused(), kinds.without_overrides():
            for storage, memory in _storages(kinds):
                block = None if there is None else there.block(memory.device, memory.address)
                if memory.device == "cpu" and not host:
                    continue
                place = (memory.device, memory.address if block is None else block.address)
                places.add(place)
                if memory.storage and memory.storage not in seen:
                    known.add(place)
                    seen.add(memory.storage)
                    held.append(kinds.weak_reference(storage))
    return Mark(frozenset(places), frozenset(known), frozenset(seen), tuple(held))


def _storages(kinds: TorchTypes) -> list[tuple[Any, StorageLocation]]:
    """Every storage that Python or an autograd graph has."""
    heap = Heap(time.perf_counter() + _QUICK)
    try:
        found = heap.by_role(kinds.role)
        tensors = found.get("tensor", [])
        saved = AutogradGraph(kinds, tensors, time.perf_counter() + _QUICK).saved.values()
        tensors = [*tensors, *(one for one in saved if kinds.role(type(one)) == "tensor")]
        bare = [(storage, one) for storage in found.get("storage", []) for one in kinds.storage_locations(storage)]
        return [*bare, *(one for tensor in tensors for one in kinds.storages(tensor))]
    finally:
        heap.release()
