"""Search for the smallest set of blocks to free so that expandable segments can map memory for a request.

Physical memory is mapped in pages of equal size. A page can be unmapped if all blocks that overlap it are freed; a
block can overlap several pages. The smallest set is found by dynamic programming over the pages, ordered by address.
The state is whether the block at the boundary of two pages is freed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.replay.work_limit import STEPS_PER_SECOND

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.run import ReplayRun

_UNREACHABLE = 1 << 60
_MAX_PAGES = 1 << 18
"""Maximum number of pages, which corresponds to 512 GiB in pages of 2 MiB."""
_MAX_ENTRIES = 1 << 21
"""Maximum product of the number of pages and the amount of memory to free, in the unit in which both are counted.

Tables of this size require 64 MiB.
"""


@dataclass(slots=True)
class _Page:
    """Page of physical memory with blocks in use.

    Attributes:
        inner: Rows of the blocks that are completely inside the page.
        left: Row of the block that extends to the previous page; None if there is none.
        right: Row of the block that extends to the next page; None if there is none.
    """

    start: int
    size: int
    inner: list[int] = field(default_factory=list)
    left: int | None = None
    right: int | None = None


def blocks_to_unmap(
    result: ReplayRun, rows: list[int], limit: int, request: tuple[int, int] | None
) -> list[int] | None:
    """Return the rows of the smallest set of blocks to free; None if no set is sufficient or the search takes too long.

    Args:
        result: Replay up to a failed request.
        rows: Rows of the blocks that may be freed: those of the default pools in expandable segments.
        limit: Maximum total size in bytes of the pages that remain mapped: pages with these blocks and, if ``request``
            is given, pages for the request.
        request: Pool index and rounded size of the request, which is served from a part of an address range of this
            pool, between blocks that are not freed; None if its pages are not included in the limit.
    """
    by_range = _by_range(result, rows)
    if sum(result.sizes[row] // size for _, size, inside in by_range for row in inside) > _MAX_PAGES:
        return None
    pages = [page for base, size, inside in by_range for page in _pages(result, base, size, inside)]
    pages.sort(key=lambda page: page.start)
    needed_bytes = sum(page.size for page in pages) - limit
    large = max((page.size for page in pages), default=0)
    most = needed_bytes if request is None else needed_bytes + request[1] + 2 * large
    for smallest in (0, large):  # pages for small blocks are ignored if there are too many pages
        pages = [page for page in pages if page.size >= smallest]
        unit = math.gcd(*(page.size for page in pages)) or MIB
        units = max(-(-most // unit), 0)
        steps = 400 * len(rows) + (len(pages) + len(rows)) * min(units, sum(page.size for page in pages) // unit) / 10
        work = result.allocator.work
        if len(pages) * (units + 2) <= _MAX_ENTRIES and steps < work.left * STEPS_PER_SECOND / 4:
            work.count(steps)
            return _PageSearch(result, pages, unit, units, needed_bytes).smallest(request, by_range)
    return None


def _by_range(result: ReplayRun, rows: list[int]) -> list[tuple[int, int, list[int]]]:
    allocator = result.allocator
    starts = sorted(allocator.ranges)
    inside: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: result.addresses[row]):
        inside.setdefault(starts[bisect_right(starts, result.addresses[row]) - 1], []).append(row)
    return [
        (start, allocator.page_size(allocator.ranges[start][1]), inside_range) for start, inside_range in inside.items()
    ]


def _pages(result: ReplayRun, base: int, size: int, rows: list[int]) -> list[_Page]:
    pages: dict[int, _Page] = {}
    for row in rows:
        first = (result.addresses[row] - base) // size
        last = (result.addresses[row] + result.sizes[row] - 1 - base) // size
        for number in range(first, last + 1):
            page = pages.setdefault(number, _Page(base + number * size, size))
            if first == last:
                page.inner.append(row)
            page.left = row if number > first else page.left
            page.right = row if number < last else page.right
    return list(pages.values())


class _PageSearch:
    """Dynamic programming over pages.

    Its tables contain the minimum number of bytes that must be freed, for the first ``n`` pages, each state (see the
    docstring of the module) and each amount of memory to unmap.
    """

    def __init__(self, result: ReplayRun, pages: list[_Page], unit: int, most: int, needed: int) -> None:
        self.result, self.pages, self.unit, self.most, self.needed = result, pages, unit, most, needed
        self.reachable = sum(page.size for page in pages) // unit
        self.tables = [self._table(backwards=False)]

    def smallest(self, request: tuple[int, int] | None, by_range: list[tuple[int, int, list[int]]]) -> list[int] | None:
        if request is None:
            return self._rows(0, len(self.pages), 1, max(-(-self.needed // self.unit), 0))
        self.tables.append(self._table(backwards=True))
        best, choice = _UNREACHABLE, None
        pool, rounded = request
        ranges = self.result.allocator.ranges
        for base, size, rows in by_range:
            if ranges[base][1] == pool:
                totals = list(accumulate((self.result.sizes[row] for row in rows), initial=0))
                for window in _windows(self.result, base, rows, rounded):
                    window_bytes = totals[window.stop] - totals[window.start]
                    if window_bytes >= best:
                        continue
                    cost, entries = self._with_window((base, size, rounded), rows, window, window_bytes, best)
                    if entries is not None:
                        best, choice = cost, (rows[window], entries)
        if choice is None:
            return None
        inside, parts = choice
        return sorted({*inside, *(row for part in parts for row in self._rows(*part) or ())})

    def _with_window(
        self, place: tuple[int, int, int], rows: list[int], window: slice, window_bytes: int, best: int
    ) -> tuple[int, list[tuple[int, int, int, int]] | None]:
        """Return the minimum number of bytes that must be freed if a request is served after a block.

        The second result contains the corresponding entries of both tables. If the minimum is not less than ``best``,
        the result is ``(best, None)``. ``window_bytes`` is the total size in bytes of the blocks in the window.
        """
        base, size, rounded = place
        addresses, sizes = self.result.addresses, self.result.sizes
        row_before = rows[window.start - 1] if window.start else None
        start = base if row_before is None else addresses[row_before] + sizes[row_before]
        first = bisect_left(self.pages, start + 1, key=lambda page: page.start + page.size)
        last = bisect_left(self.pages, start + rounded, key=lambda page: page.start)
        page_count = (start + rounded - 1 - base) // size - (start - base) // size + 1
        amount = max(-(-(self.needed + (page_count - last + first) * size) // self.unit), 0)
        if amount > self.reachable:
            return best, None
        left = self.pages[first].left if first < last else None
        right = self.pages[last - 1].right if first < last else None
        left_states = (1,) if left is None else (0,) if left == row_before else (0, 1)
        is_inside = (
            right is not None
            and window.start < window.stop
            and (addresses[rows[window.start]] <= addresses[right] <= addresses[rows[window.stop - 1]])
        )
        right_states = (1,) if right is None or is_inside else (0, 1)
        right_bytes = sizes[right] if right is not None and is_inside else 0
        entries = None
        for before in left_states:
            for after in right_states:
                costs = (
                    self.tables[0][first, before, : amount + 1]
                    + self.tables[1][len(self.pages) - last, after, amount::-1]
                )
                split = int(costs.argmin())
                cost = int(costs[split]) + window_bytes - right_bytes
                if cost < best:
                    best = cost
                    entries = [(0, first, before, split), (1, len(self.pages) - last, after, amount - split)]
        return best, entries

    def _order(self, table: int) -> list[_Page]:
        return self.pages[::-1] if table else self.pages

    def _table(self, *, backwards: bool) -> NDArray[Any]:
        table = np.full((len(self.pages) + 1, 2, self.most + 1), _UNREACHABLE, np.int64)
        table[0, 1, 0] = 0
        for number, page in enumerate(self._order(backwards)):
            for before, after, cost, amount, _ in self._transitions(page, backwards=backwards):
                new, old = table[number + 1, after], table[number, before] + cost
                shift = min(amount, len(old))
                np.minimum(new, np.append(np.full(shift, old[0]), old[: len(old) - shift]), out=new)
        return table

    def _transitions(self, page: _Page, *, backwards: bool) -> Iterator[tuple[int, int, int, int, list[int]]]:
        sizes = self.result.sizes
        first, second = (page.right, page.left) if backwards else (page.left, page.right)
        inner = sum(sizes[row] for row in page.inner)
        for before in (1,) if first is None else (0, 1):
            for after in (1,) if second is None else (before,) if first == second else (0, 1):
                freed_rows = [second] if after and second is not None and first != second else []
                cost = sum(sizes[row] for row in freed_rows)
                yield before, after, cost, 0, freed_rows
                if before and after:
                    yield 1, 1, cost + inner, page.size // self.unit, freed_rows + page.inner

    def _rows(self, table: int, count: int, state: int, amount: int) -> list[int] | None:
        values, pages = self.tables[table], self._order(table)
        if amount > self.most or values[count, state, amount] >= _UNREACHABLE:
            return None
        rows: list[int] = []
        for number in range(count - 1, -1, -1):
            for before, after, cost, unmapped, freed_rows in self._transitions(pages[number], backwards=bool(table)):
                remaining = max(amount - unmapped, 0)
                if after == state and values[number, before, remaining] + cost == values[number + 1, state, amount]:
                    rows += freed_rows
                    state, amount = before, remaining
                    break
        return rows


def _windows(result: ReplayRun, base: int, rows: list[int], rounded: int) -> Iterator[slice]:
    addresses, sizes = result.addresses, result.sizes
    last = 0
    for first in range(len(rows) + 1):
        start = addresses[rows[first - 1]] + sizes[rows[first - 1]] if first else base
        last = max(last, first)
        while last < len(rows) and addresses[rows[last]] < start + rounded:
            last += 1
        yield slice(first, last)
