"""Expandable segments: address ranges in which PyTorch maps and unmaps physical memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT
from ipygpumem.snapshot.replay.free_blocks import ADDRESS_BITS, ADDRESS_MASK, BlockPool, FreeBlocks, SegmentEvent
from ipygpumem.snapshot.replay.settings import AllocatorSettings

_LIMITS = range(1 << 62)


def smallest_limit(amount: int, fraction: float) -> int:
    """Return the smallest limit in bytes of which a fraction, rounded down to bytes, is at least ``amount``."""
    return amount if fraction == 1 else bisect_left(_LIMITS, amount, key=lambda limit: int(fraction * limit))


class ExpandableSegments(FreeBlocks):
    """Free and unmapped blocks of all pools, including those of expandable segments.

    Args:
        limit: Limit on reserved memory in bytes.
        by_fraction: Whether the limit was set by ``set_per_process_memory_fraction``, which is checked before memory is
            mapped. Otherwise, the limit is the memory of the device.
        total: Total memory of the device in bytes, which determines the size of the address ranges.
        choose_address: Function that returns the address of a new segment with the given size in bytes.
        collects: Whether garbage collection is active.

    Attributes:
        limit: Limit on reserved memory in bytes.
        same_limits: Limits with which all requests so far would have been served in the same way.
        ranges: End and pool index of the address range of each expandable segment, by start.
        releases_ranges: Whether the addresses of an expandable segment are released when all of its memory is unmapped.
            This affects only the simulated addresses.
    """

    def __init__(  # noqa: PLR0917
        self,
        settings: AllocatorSettings,
        pools: list[BlockPool],
        limit: int,
        by_fraction: bool,
        total: int,
        choose_address: Callable[[int], int],
        collects: bool,
    ) -> None:
        super().__init__(settings, pools, collects=collects)
        self.ranges: dict[int, tuple[int, int]] = {}
        self.limit = limit
        self.same_limits = _LIMITS
        self.releases_ranges = False
        self._by_fraction = by_fraction
        self._total = total
        self._choose_address = choose_address
        self._range_starts: list[int] = []
        self._unmapped: list[list[int]] = [[] for _ in pools]
        self._unmapped_sizes: dict[int, int] = {}
        self._unmapped_starts: dict[int, int] = {}

    def exceeds_limit(self, amount: int, limit: int | None = None, fraction: float = 1) -> bool:
        """Return whether an amount of memory in bytes exceeds a fraction of a limit, by default of ``self.limit``.

        Each comparison restricts `same_limits`.
        """
        limit = self.limit if limit is None else limit
        is_exceeded, same = amount > int(fraction * limit), self.same_limits
        smallest = smallest_limit(amount, fraction)
        if is_exceeded:
            self.same_limits = range(same.start, min(same.stop, smallest))
        else:
            self.same_limits = range(max(same.start, smallest), same.stop)
        return is_exceeded

    def add_range(self, pool: int, start: int, end: int, mapped: list[tuple[int, int]]) -> None:
        """Add an expandable segment whose mapped ranges are given as tuples of address and size, ordered by address."""
        self._add_range(pool, start, end)
        for address, size in [*mapped, (end, 0)]:
            if address > start:
                self._add_unmapped(pool, start, address - start)
            start = address + size
            self._grow(size)

    def count_requests(self, count: int) -> None:
        super().count_requests(count)
        self.work.count(count * len(self._unmapped_sizes) / 200)

    def mapped_ranges(self) -> list[tuple[int, int, int]]:
        """Return the address, size and pool index of each mapped range, ordered by address."""
        result = []
        for start, (end, pool) in sorted(self.ranges.items()):
            position, unmapped = start, self._unmapped[pool]
            for address in [*unmapped[bisect_left(unmapped, start) : bisect_left(unmapped, end)], end]:
                if address > position:
                    result.append((position, address - position, pool))
                position = address + self._unmapped_sizes.get(address, 0)
        return result

    def is_mapped(self, address: int) -> bool:
        """Return whether an address is in an expandable segment, before the unmapped memory at its end."""
        if not self._in_range(address):
            return False
        end = self.ranges[self._range_starts[bisect_right(self._range_starts, address) - 1]][0]
        return address < self._unmapped_starts.get(end, end)

    def _in_range(self, address: int) -> bool:
        place = bisect_right(self._range_starts, address) - 1
        return place >= 0 and address < self.ranges[self._range_starts[place]][0]

    def _room(self, key: int) -> int:
        size = key >> ADDRESS_BITS
        return size + self._unmapped_sizes.get((key & ADDRESS_MASK) + size, 0)

    def _expand(self, pool: int, rounded: int, request: int) -> int | None:
        block = self._expandable_block(pool, rounded)
        start = block if block in self._sizes else self._map(pool, block, rounded, request)
        while start is not None and self._sizes[start] < rounded:
            size = self._sizes[start]
            start = self._map(pool, start + size, rounded - size, request)
        return start

    def _expandable_block(self, pool: int, rounded: int) -> int:
        """Return the start of ``rounded`` bytes of adjacent free or unmapped memory, and add a range if necessary."""
        for unmapped in self._unmapped[pool]:
            start = end = unmapped if unmapped in self._bounds else self._starts.get(unmapped, unmapped)
            steps = 5
            while end - start < rounded and (end == start or end not in self._bounds):
                size = self._sizes.get(end) or self._unmapped_sizes.get(end)
                if size is None:
                    break
                end += size
                steps += 3
            self.work.count(steps)
            if end - start >= rounded:
                return start
        unit = self.page_size(pool)
        size = -(-max(self._total + self._total // 8, rounded) // unit) * unit
        start = self._choose_address(size)
        self._truncate_range(start)
        next_range = bisect_right(self._range_starts, start)
        if next_range < len(self._range_starts):
            size = min(size, self._range_starts[next_range] - start)
        self._add_range(pool, start, start + size)
        self._add_unmapped(pool, start, size)
        return start

    def _truncate_range(self, address: int) -> None:
        if self._in_range(address):
            start = self._range_starts[bisect_right(self._range_starts, address) - 1]
            end, pool = self.ranges[start]
            unmapped = self._unmapped_starts[end]
            self._remove_unmapped(pool, unmapped)
            if address > unmapped:
                self._add_unmapped(pool, unmapped, address - unmapped)
            self.ranges[start] = (address, pool)

    def _add_range(self, pool: int, start: int, end: int) -> None:
        self.ranges[start] = (end, pool)
        insort(self._range_starts, start)
        self._bounds.add(start)

    def page_size(self, pool: int) -> int:
        return SMALL_SEGMENT if self.pools[pool].small else self.settings.large_segment

    def _map(self, pool: int, address: int, needed_bytes: int, request: int) -> int | None:
        unmapped_bytes = self._unmapped_sizes[address]
        unit = self.page_size(pool)
        size = min(-(-min(needed_bytes, unmapped_bytes) // unit) * unit, unmapped_bytes)
        if not self._by_fraction and self.exceeds_limit(self.reserved + size):
            return None
        self._remove_unmapped(pool, address)
        if size < unmapped_bytes:
            self._add_unmapped(pool, address + size, unmapped_bytes - size)
        self._grow(size)
        self.events.append(SegmentEvent(Action.MAP, address, size, request))
        return self.free(pool, address, size)

    def _unmap(self, pool: int, key: int, request: int) -> None:
        size, address = key >> ADDRESS_BITS, key & ADDRESS_MASK
        base = self._range_starts[bisect_right(self._range_starts, address) - 1]
        unit = self.page_size(pool)
        first = base + -(-(address - base) // unit) * unit
        last = base + (address + size - base) // unit * unit
        if first >= last:
            return
        self._remove(pool, key)
        if first > address:
            self._insert(pool, address, first - address)
        if last < address + size:
            self._insert(pool, last, address + size - last)
        self._add_unmapped(pool, first, last - first)
        self.reserved -= last - first
        self.events.append(SegmentEvent(Action.UNMAP, first, last - first, request))
        end = self.ranges[base][0]
        if self.releases_ranges and self._unmapped_sizes.get(base) == end - base:
            self._remove_unmapped(pool, base)
            del self._range_starts[bisect_left(self._range_starts, base)]
            self._bounds.discard(base)
            del self.ranges[base]

    def _add_unmapped(self, pool: int, start: int, size: int) -> None:
        end = start + size
        if start not in self._bounds and start in self._unmapped_starts:
            before = self._unmapped_starts[start]
            size += self._remove_unmapped(pool, before)
            start = before
        if end not in self._bounds and end in self._unmapped_sizes:
            size += self._remove_unmapped(pool, end)
        self._unmapped_sizes[start] = size
        self._unmapped_starts[start + size] = start
        insort(self._unmapped[pool], start)

    def _remove_unmapped(self, pool: int, start: int) -> int:
        size = self._unmapped_sizes.pop(start)
        del self._unmapped_starts[start + size]
        starts = self._unmapped[pool]
        del starts[bisect_left(starts, start)]
        return size
