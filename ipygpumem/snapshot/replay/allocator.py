"""Simulation of PyTorch's native CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp).

A replay of a long recording spends most of its time in `SimulatedAllocator.allocate` and `FreeBlocks.free`. Code that
only some requests need is therefore in other methods.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT
from ipygpumem.snapshot.replay.expandable_segments import ExpandableSegments
from ipygpumem.snapshot.replay.free_blocks import ADDRESS_BITS, ADDRESS_MASK, BlockPool, SegmentEvent
from ipygpumem.snapshot.replay.settings import QUANTUM, SMALL, AllocatorSettings

_UNLIMITED = 1 << 62


class SimulatedOutOfMemoryError(Exception):
    """Raised if the simulated allocator cannot serve a request within its limit."""


class SimulatedAllocator(ExpandableSegments):
    """Caching allocator that follows the rules of PyTorch's allocator and uses simulated addresses.

    Args:
        pools: All pools. Requests refer to them by index.
        limit: Limit on reserved memory in bytes; None for no limit.
        by_fraction: Whether the limit was set by ``set_per_process_memory_fraction``. Otherwise, the limit is the
            memory of the device.
        total: Total memory of the device in bytes, which determines the address range of expandable segments.
        choose_address: Function that returns the address of a new segment with the given size in bytes.

    Attributes:
        before_retry: Function that is called with the number of a request before all cached segments are freed to serve
            it; None if there is none.
        raises_limit: Whether the limit is raised when a request would fail.
        retries: Number of requests that were tried again after all cached segments were freed (``num_alloc_retries``).
        segments: Sizes in bytes of the segments that were allocated with cudaMalloc, by address.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        pools: list[BlockPool],
        *,
        limit: int | None = None,
        by_fraction: bool = False,
        total: int = 0,
        choose_address: Callable[[int], int],
    ) -> None:
        collects = settings.collection_threshold > 0 and (by_fraction or limit is None)
        bytes_limit = _UNLIMITED if limit is None else limit
        super().__init__(settings, pools, bytes_limit, by_fraction, total, choose_address, collects)
        self.raises_limit = False
        self.retries = 0
        self.before_retry: Callable[[int], None] | None = None
        self.segments: dict[int, int] = {}
        self._smallest_segment = _UNLIMITED
        self._max_split = _UNLIMITED if settings.max_split_size is None else settings.max_split_size
        rounding = settings.non_split_rounding
        self._non_split_rounding = settings.large_segment if rounding is None else rounding
        splits = [pool.small or settings.expandable for pool in pools]
        self._min_rest = [QUANTUM if freely else SMALL + 1 for freely in splits]
        self._split_below = [_UNLIMITED if freely else self._max_split for freely in splits]
        self._is_plain = not (collects or settings.max_split_size is not None)
        self._only_best_fit = self._is_plain
        self._skips_search = False

    def allocate(self, pool: int, rounded: int, request: int) -> tuple[int, int]:
        """Return the address and the size of a block for a request of a rounded size in bytes.

        ``request`` is the number of the request, as in `SegmentEvent`.
        """
        free = self._free[pool]
        place = bisect_left(free, rounded << ADDRESS_BITS)
        key = free[place] if place < len(free) else 0
        # following blocks are not smaller, and only unmapped memory after a block makes it less suitable
        if not (key and self._only_best_fit) or (key >> ADDRESS_BITS) + (key & ADDRESS_MASK) in self._unmapped_sizes:
            key = free[(place := self._place(pool, rounded, request))]
        del free[place]
        address = key & ADDRESS_MASK
        size = self._sizes.pop(address)
        rest = size - rounded
        if rest >= self._min_rest[pool] and rounded < self._split_below[pool]:
            start = address + rounded
            self._sizes[start] = rest
            self._starts[address + size] = start
            insort(free, rest << ADDRESS_BITS | start, 0, place)
            if self._collects:
                self._freed_at[start] = self._searches.get(self._counter(pool), 0)
            return address, rounded
        del self._starts[address + size]
        return address, size

    def release_cached(
        self, request: int, private: frozenset[int] = frozenset(), *, only_private: bool = False
    ) -> None:
        """Free unused segments, and unmap unused pages of expandable segments, as ``torch.cuda.empty_cache`` does.

        Args:
            request: Number of the request that caused the release, as in `SegmentEvent`.
            private: Indices of the private pools that no CUDA graph and no ``MemPool`` uses any longer.
            only_private: Whether to free only segments of private pools.
        """
        self.work.count(20 * len(self.pools))
        pools = enumerate(self.pools)
        allowed = [number for number, pool in pools if (pool.id in private if pool.private else not only_private)]
        groups: dict[tuple[int, bool], list[int]] = {}
        for number in allowed:
            pool = self.pools[number]
            groups.setdefault((pool.id if pool.private else -1, pool.small == (not pool.private)), []).append(number)
        for _, numbers in sorted(groups.items()):
            numbers.sort(key=lambda number: self.pools[number].stream & (2**64 - 1))
            mapped = []
            for number in numbers:
                smallest = min(self._smallest_segment, self.page_size(number) if self.ranges else _UNLIMITED)
                for key in self._free_from(number, smallest):
                    if self._in_range(key & ADDRESS_MASK):
                        mapped.append((number, key))
                    elif self._is_segment(key):
                        self._release(number, key, request)
            for number, key in mapped:
                self._unmap(number, key, request)

    def skip_next_search(self) -> None:
        """Serve the next request from new memory, because PyTorch does not search the free blocks after a retry."""
        self._skips_search, self._only_best_fit = True, False

    def release(self, addresses: list[int], request: int) -> None:
        wanted_addresses = set(addresses)
        for number in range(len(self.pools)):
            for key in self._free_from(number, self._smallest_segment):
                if key & ADDRESS_MASK in wanted_addresses and self._is_segment(key):
                    self._release(number, key, request)

    def cached_segments(self) -> set[tuple[int, int]]:
        """Return the pool index and the key of each unused segment of default pools, except expandable segments."""
        self.work.count(len(self.pools))
        numbers = (number for number, pool in enumerate(self.pools) if not pool.private)
        free = ((number, self._free_from(number, self._smallest_segment)) for number in numbers)
        return {(number, key) for number, keys in free for key in keys if self._is_segment(key)}

    def fits(self, pool: int, rounded: int) -> bool:
        return self._best_fit(pool, rounded) is not None

    def add_segment(self, address: int, size: int) -> None:
        """Add a segment that was allocated with cudaMalloc. Its free blocks are added with `free`."""
        self.segments[address] = size
        self._smallest_segment = min(self._smallest_segment, size)
        self._bounds.add(address)
        self._grow(size)

    def _place(self, pool: int, rounded: int, request: int) -> int:
        if self._collects:
            counter = self._counter(pool)
            self._searches[counter] = self._searches.get(counter, 0) + 1
        place = None if self._skips_search else self._best_fit(pool, rounded)
        self._skips_search = False
        self._only_best_fit = self._is_plain and (self.settings.expandable or not self.ranges)
        if place is not None:
            return place
        segment = self.settings.segment_size(rounded)
        if self._collects:
            self._collect(request)
        address = self._new_memory(pool, rounded, segment, request)
        retry = address is None and not self.settings.throws
        if retry:
            oversize, is_enough = self.oversize(pool, rounded)
            for key in oversize:
                self._release(pool, key, request)
            address = self._new_memory(pool, rounded, segment, request) if is_enough else None
        if retry and address is None:
            self.retries += 1
            if self.before_retry is not None:
                self.before_retry(request)
            self.release_cached(request)
            address = self._new_memory(pool, rounded, segment, request)
        while address is None and self.raises_limit:
            self.limit += max(-(-self._shortage(pool, rounded, segment) // SMALL_SEGMENT), 1) * SMALL_SEGMENT
            address = self._new_memory(pool, rounded, segment, request)
        if address is None:
            raise SimulatedOutOfMemoryError
        return bisect_left(self._free[pool], self._sizes[address] << ADDRESS_BITS | address)

    def _add_range(self, pool: int, start: int, end: int) -> None:
        super()._add_range(pool, start, end)
        self._only_best_fit &= self.settings.expandable

    def _best_fit(self, pool: int, rounded: int) -> int | None:
        free = self._free[pool]
        place = first = bisect_left(free, rounded << ADDRESS_BITS)
        if place == len(free):
            return None
        if self.ranges:
            if self.settings.expandable:
                while self._in_range(free[place] & ADDRESS_MASK) and place + 1 < len(free):
                    if self._room(free[place + 1]) >= self._room(free[place]):
                        break
                    place += 1
            else:  # expandable segments have been turned off
                while place < len(free) and self._in_range(free[place] & ADDRESS_MASK):
                    place += 1
            self.work.count(8 * (place - first))
            if place == len(free):
                return None
        size = free[place] >> ADDRESS_BITS
        if rounded < self._max_split:
            return None if size >= self._max_split else place
        return None if size >= rounded + self._non_split_rounding else place

    def _new_memory(self, pool: int, rounded: int, segment: int, request: int) -> int | None:
        expandable = self.settings.expandable and self.pools[pool].expandable
        if (self._by_fraction or not expandable) and self.exceeds_limit(self.reserved + segment):
            return None
        if expandable:
            return self._expand(pool, rounded, request)
        address = self._choose_address(segment)
        self.add_segment(address, segment)
        self.events.append(SegmentEvent(Action.SEGMENT_ALLOC, address, segment, request))
        return self.free(pool, address, segment)

    def _shortage(self, pool: int, rounded: int, segment: int) -> int:
        if self.settings.expandable and self.pools[pool].expandable and not self._by_fraction:
            self.work.count(len(self._free[pool]))
            segment = rounded - sum(key >> ADDRESS_BITS for key in self._free[pool])
        return self.reserved + segment - self.limit

    def _is_segment(self, key: int) -> bool:
        return self.segments.get(key & ADDRESS_MASK) == key >> ADDRESS_BITS

    def _release(self, pool: int, key: int, request: int) -> None:
        self._remove(pool, key)
        size, address = key >> ADDRESS_BITS, key & ADDRESS_MASK
        del self.segments[address]
        self._bounds.discard(address)
        self.reserved -= size
        self.events.append(SegmentEvent(Action.SEGMENT_FREE, address, size, request))

    def oversize(self, pool: int, rounded: int) -> tuple[list[int], bool]:
        """Return the keys of oversize segments to free before a request is tried again, and whether they are enough."""
        if self._max_split == _UNLIMITED:
            return [], False
        free, needed = self._free[pool], max(rounded, self._max_split)
        place = bisect_left(free, needed << ADDRESS_BITS)
        if place < len(free) and self._is_segment(free[place]):
            return [free[place]], True
        keys, released = [], 0
        for key in reversed(self._free_from(pool, self._max_split)):
            if released >= needed:
                break
            if key >> ADDRESS_BITS < needed and self._is_segment(key):
                released += key >> ADDRESS_BITS
                keys.append(key)
        return keys, released >= needed

    def segments_to_collect(self, limit: int) -> list[tuple[int, int]]:
        """Return the pool and the key of each segment that garbage collection would free.

        Garbage collection frees unused segments of the default pools for large requests in groups, the oldest first,
        until the reserved memory is at most a fraction of ``limit``, which is in bytes. A group contains all segments
        of at least the mean age.
        """
        reserved, threshold = self.reserved, self.settings.collection_threshold
        if not self.exceeds_limit(reserved, limit, threshold):
            return []
        self.work.count(len(self.pools))
        collected: list[tuple[int, int]] = []
        blocks: list[tuple[int, int, int]] = []
        for number, pool in enumerate(self.pools):
            if not pool.private and not pool.small:
                count = self._searches.get(self._counter(number), 0)
                blocks += [
                    (count - self._freed_at[key & ADDRESS_MASK], number, key)
                    for key in self._free_from(number, self._smallest_segment)
                    if self._is_segment(key)
                ]
        found_old = True
        while found_old and blocks and self.exceeds_limit(reserved, limit, threshold):
            mean_age = sum(age for age, _, _ in blocks) / len(blocks)
            old_blocks = [block for block in blocks if block[0] >= mean_age]
            blocks = [block for block in blocks if block[0] < mean_age]
            found_old = bool(old_blocks)
            for _, number, key in old_blocks:
                reserved -= key >> ADDRESS_BITS
                collected.append((number, key))
        return collected

    def _collect(self, request: int) -> None:
        for number, key in self.segments_to_collect(self.limit):
            self._release(number, key, request)
