"""Spans of time that may lie in each other: which one is on top at a time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.model.unique_values import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Spans"]


class Spans:
    """Spans from ``starts`` to ``ends``, both microseconds and both inside.

    Args:
        starts: Ascending.
        ends: The largest number of 64 bits for a span without an end.
        ranks: Of two spans at one time that with the higher rank is on top, the later one of equals; by default the
            later one.
    """

    def __init__(self, starts: Sequence[int], ends: Sequence[int], ranks: Sequence[Any] | None = None) -> None:
        latest = np.iinfo(np.int64).max
        after = (end + 1 for end in ends if end < latest)
        self._marks = distinct(np.asarray([*starts, *after], np.int64))
        order = range(len(starts)) if ranks is None else sorted(range(len(starts)), key=ranks.__getitem__)
        place = {span: number for number, span in enumerate(order)}
        inside: list[tuple[int, int]] = []  # heap: the one on top first
        top = []
        following = 0
        for mark in self._marks.tolist():
            while following < len(starts) and starts[following] <= mark:
                heapq.heappush(inside, (-place[following], following))
                following += 1
            while inside and ends[inside[0][1]] < mark:
                heapq.heappop(inside)
            top.append(inside[0][1] if inside else -1)
        self._top = np.asarray([*top, -1], np.int64)

    def at(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each time the number of the span on top; -1 outside of all."""
        return self._top[np.searchsorted(self._marks, times, side="right") - 1]
