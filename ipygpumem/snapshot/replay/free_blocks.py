"""Free blocks of PyTorch's CUDA caching allocator.

The free blocks of a pool are stored as a sorted list of integers, ``size << 52 | address``, so that the best fit is
found by bisection. Two dicts, from the start of a free block to its size and from its end to its start, are used to
find the neighbors with which a freed block is merged.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.work_limit import WorkLimit

ADDRESS_BITS = 52
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


@dataclass(frozen=True, slots=True)
class BlockPool:
    """Pool of blocks for the small or the large requests of one stream.

    Attributes:
        id: Index of the pool in ``SnapshotData.pools``. The default pool may also have the index -1, and private pools
            that are not in the file have higher indices.
        stream: Raw stream handle.
        small: Whether the pool serves requests of at most 1 MiB.
        private: Whether this is a private pool, such as the pool of a CUDA graph.
        expandable: Whether the pool can have expandable segments. Before PyTorch 2.5, private pools could not.
    """

    id: int
    stream: int
    small: bool
    private: bool
    expandable: bool = True


class SegmentEvent(NamedTuple):
    """Event in which a segment was allocated, freed, mapped or unmapped.

    Attributes:
        action: Value of `Action`.
        request: Number of the request that caused the event: an item of `Recording.operations`.
    """

    action: int
    address: int
    size: int
    request: int


class FreeBlocks:
    """Free blocks of all pools.

    Attributes:
        pools: All pools. Requests refer to them by index.
        reserved: Total size of the segments in bytes.
        peak: Maximum of ``reserved``.
        work: Limit on the work of searches that examine many blocks.
    """

    def __init__(self, settings: AllocatorSettings, pools: list[BlockPool], *, collects: bool) -> None:
        self.settings = settings
        self.pools = pools
        self.reserved = self.peak = 0
        self.events: list[SegmentEvent] = []
        self.work = WorkLimit()
        self._free: list[list[int]] = [[] for _ in pools]
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._bounds: set[int] = set()  # starts of segments, across which blocks are not merged
        self._collects = collects
        self._searches: dict[tuple[int, bool], int] = {}
        self._freed_at: dict[int, int] = {}

    def free(self, pool: int, address: int, size: int) -> int:
        """Add a block of ``size`` bytes, merge it with free neighbors, and return the address of the merged block."""
        free, sizes, starts = self._free[pool], self._sizes, self._starts
        end = address + size
        if address in starts and address not in self._bounds:
            address = starts.pop(address)
            before = sizes[address]
            del free[bisect_left(free, before << ADDRESS_BITS | address)]
            size += before
        if end in sizes and end not in self._bounds:
            after = sizes.pop(end)
            del free[bisect_left(free, after << ADDRESS_BITS | end)]
            size += after
            end += after
        sizes[address] = size
        starts[end] = address
        insort(free, size << ADDRESS_BITS | address)
        if self._collects:
            self._freed_at[address] = self._searches.get(self._counter(pool), 0)
        return address

    def count_requests(self, count: int) -> None:
        self.work.count(count * (14 + len(self._sizes) / 200))
        self.work.check_time()

    def total_free(self) -> int:
        return sum(self._sizes.values())

    def free_blocks(self, pool: int) -> list[tuple[int, int]]:
        return [(key & ADDRESS_MASK, key >> ADDRESS_BITS) for key in self._free[pool]]

    def _free_from(self, pool: int, min_size: int) -> list[int]:
        free = self._free[pool]
        keys = free[bisect_left(free, min_size << ADDRESS_BITS) :]
        self.work.count(5 * len(keys) + 5)
        return keys

    def _counter(self, pool: int) -> tuple[int, bool]:
        return self.pools[pool].id, self.pools[pool].small

    def _insert(self, pool: int, address: int, size: int) -> None:
        self._sizes[address] = size
        self._starts[address + size] = address
        insort(self._free[pool], size << ADDRESS_BITS | address)

    def _remove(self, pool: int, key: int) -> None:
        free = self._free[pool]
        del free[bisect_left(free, key)]
        size, address = key >> ADDRESS_BITS, key & ADDRESS_MASK
        del self._sizes[address], self._starts[address + size]

    def _grow(self, size: int) -> None:
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
