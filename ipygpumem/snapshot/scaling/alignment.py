"""Matching of the allocations of two runs of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.timeline import Ints

Mask = NDArray[np.bool_]

_MAX_DIFFERENCES = 2000
"""Largest number of differences between two sequences that are compared; the time grows with its square."""


def match(
    keys: tuple[Ints, Ints], sizes: tuple[Ints, Ints], factors: Sequence[float], workspaces: tuple[Mask, Mask]
) -> Ints:
    """For each allocation of the first run, return the index of its counterpart in the second run, or -1.

    If the keys of the runs differ, allocations with the same key are matched in order. Workspaces are matched last if
    all other allocations have the same keys in both runs. Since many allocations have the same key, such as all
    allocations of a backward pass, those whose size grows by an expected factor are matched first, and then those whose
    size grows at most as the square of the size of the step.

    Args:
        keys: Keys of the allocations of both runs, such as numbers of call stacks.
        sizes: Requested sizes of the allocations of both runs in bytes.
        factors: Factors by which the size of the step grows on each axis from the first run to the second run.
        workspaces: Masks of the workspaces of both runs, which may exist at only some sizes.
    """
    if np.array_equal(*keys):
        return np.arange(len(keys[0]))
    first, second = keys[0].tolist(), keys[1].tolist()
    before, after = sizes[0].tolist(), sizes[1].tolist()
    powers = [math.prod(map(pow, factors, exponents)) for exponents in product((0, 1, 2), repeat=len(factors))]

    def grows_exactly(i: int, j: int) -> bool:
        return first[i] == second[j] and after[j] in {before[i] * power for power in powers}

    low, high = min(1.0, *powers), max(1.0, *powers)

    def grows_plausibly(i: int, j: int) -> bool:
        return first[i] == second[j] and bool(low * before[i] <= after[j] <= high * before[i])

    pairs = [(-1, -1), (len(first), len(second))]
    kept = [np.flatnonzero(~mask) for mask in workspaces]
    if np.array_equal(keys[0][kept[0]], keys[1][kept[1]]):
        pairs[1:1] = zip(kept[0].tolist(), kept[1].tolist(), strict=True)
    for matches in (grows_exactly, grows_plausibly):
        found: list[tuple[int, int]] = []
        for (i, j), (next_i, next_j) in pairwise(pairs):
            gap = range(i + 1, next_i), range(j + 1, next_j)
            same_keys = [first[row] for row in gap[0]] == [second[row] for row in gap[1]]
            found += zip(*gap, strict=True) if same_keys else _common(*gap, matches)
        pairs = sorted([*pairs, *found])
    result = np.full(len(first), -1, np.int64)
    rows, counterparts = np.asarray(pairs[1:-1], np.int64).reshape(-1, 2).T
    result[rows] = counterparts
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
    """Return the furthest position on a diagonal after the last edit, and the diagonal before this edit."""
    if not edits:
        return 0, 0
    before, place = history[edits - 1], (diagonal + edits) // 2
    if place == 0 or (place < edits and before[place - 1] < before[place]):
        return before[place], diagonal + 1
    return before[place - 1] + 1, diagonal - 1


def _path(history: list[list[int]], x: int, y: int) -> list[tuple[int, int]]:
    """Return the index pairs of the subsequence, which are the diagonal steps of the path to ``(x, y)``."""
    pairs = []
    for edits in range(len(history), -1, -1):
        diagonal = x - y
        start, previous = _after_edit(history, diagonal, edits)
        pairs += [(i, i - diagonal) for i in range(x - 1, start - 1, -1)]
        if edits:
            x = start if previous > diagonal else start - 1
            y = x - previous
    return pairs[::-1]
