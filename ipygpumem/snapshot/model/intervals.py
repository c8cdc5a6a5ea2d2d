"""Time intervals that may be nested: which one is on top at a time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.model.unique_values import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Intervals"]


class Intervals:
    """Closed intervals from ``starts`` to ``ends``, in microseconds.

    Args:
        starts: In ascending order.
        ends: The maximum of int64 for an interval without an end.
        ranks: Of overlapping intervals the one with the higher rank is on top, of equal ranks the later one. By default
            the later one.
    """

    def __init__(self, starts: Sequence[int], ends: Sequence[int], ranks: Sequence[Any] | None = None) -> None:
        latest = np.iinfo(np.int64).max
        after = (end + 1 for end in ends if end < latest)
        self._times = distinct(np.asarray([*starts, *after], np.int64))
        order = range(len(starts)) if ranks is None else sorted(range(len(starts)), key=ranks.__getitem__)
        rank = {interval: number for number, interval in enumerate(order)}
        active: list[tuple[int, int]] = []  # heap with the top interval first
        top = []
        started = 0
        for time in self._times.tolist():
            while started < len(starts) and starts[started] <= time:
                heapq.heappush(active, (-rank[started], started))
                started += 1
            while active and ends[active[0][1]] < time:
                heapq.heappop(active)
            top.append(active[0][1] if active else -1)
        self._top = np.asarray([*top, -1], np.int64)

    def at(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each time the number of the interval on top; -1 outside of all."""
        return self._top[np.searchsorted(self._times, times, side="right") - 1]
