"""Matching of the allocations of two runs of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ipygpumem.snapshot.model.timeline import Ints

_MAX_DIFFERENCES = 2000
"""Number of differences between two sequences up to which they are compared; the time grows with its square."""


def match(keys: tuple[Ints, Ints], sizes: tuple[Ints, Ints], growth: Sequence[float]) -> Ints:
    """Return the index in the second sequence for each allocation of the first one; -1 if there is no counterpart.

    If the sequences differ, allocations with the same key are matched in their order. Since many have the same key,
    such as all allocations of a backward pass, those whose size grows by an expected factor are matched first.

    Args:
        keys: Keys of both sequences.
        sizes: Requested sizes of both sequences in bytes.
        growth: Factors by which sizes can be expected to grow from the first to the second sequence.
    """
    first, second = keys
    if np.array_equal(first, second):
        return np.arange(len(first))
    result = np.full(len(first), -1, np.int64)
    a: list[int] = first.tolist()
    b: list[int] = second.tolist()
    smaller, larger = sizes[0].tolist(), sizes[1].tolist()
    low, high = min(1.0, *growth), max(1.0, *growth)

    def as_expected(i: int, j: int) -> bool:
        return a[i] == b[j] and larger[j] in {smaller[i] * factor for factor in growth}

    def possible(i: int, j: int) -> bool:
        return a[i] == b[j] and bool(low * smaller[i] <= larger[j] <= high * smaller[i])

    anchors = [(-1, -1), *_common(range(len(a)), range(len(b)), as_expected), (len(a), len(b))]
    for (i, j), (next_i, next_j) in pairwise(anchors):
        if i >= 0:
            result[i] = j
        between = range(i + 1, next_i), range(j + 1, next_j)
        if [a[row] for row in between[0]] == [b[row] for row in between[1]]:
            result[between[0]] = between[1]
        elif between[0] and between[1]:
            for row, counterpart in _common(*between, possible):
                result[row] = counterpart
    return result


def _common(first: range, second: range, same: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Return the index pairs of a longest common subsequence (Myers 1986); none if the sequences differ too much."""
    n, m = len(first), len(second)
    history: list[list[int]] = []  # for each number of edits, the furthest position on the diagonals -edits, ..., edits
    for edits in range(min(n + m, _MAX_DIFFERENCES) + 1):
        reached = []
        for diagonal in range(-edits, edits + 1, 2):
            x = _after_edit(history, diagonal, edits)[0]
            while x < n and x - diagonal < m and same(first[x], second[x - diagonal]):
                x += 1
            reached.append(x)
            if x >= n and x - diagonal >= m:
                return [(first[i], second[j]) for i, j in _path(history, n, m)]
        history.append(reached)
    return []


def _after_edit(history: list[list[int]], diagonal: int, edits: int) -> tuple[int, int]:
    """Return the furthest position on a diagonal after the last edit, and the diagonal before it."""
    if not edits:
        return 0, 0
    before, place = history[edits - 1], (diagonal + edits) // 2
    if place == 0 or (place < edits and before[place - 1] < before[place]):
        return before[place], diagonal + 1
    return before[place - 1] + 1, diagonal - 1


def _path(history: list[list[int]], x: int, y: int) -> list[tuple[int, int]]:
    """Return the pairs on the path to the end, which are its diagonal steps."""
    pairs = []
    for edits in range(len(history), -1, -1):
        diagonal = x - y
        start, previous = _after_edit(history, diagonal, edits)
        pairs += [(i, i - diagonal) for i in range(x - 1, start - 1, -1)]
        if edits:
            x = start if previous > diagonal else start - 1
            y = x - previous
    return pairs[::-1]
