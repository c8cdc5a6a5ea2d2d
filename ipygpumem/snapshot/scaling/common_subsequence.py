"""Longest common subsequence of two sequences of allocations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MAX_DIFFERENCES = 600
"""Maximum number of differences between two sequences of allocations. The time is quadratic in this number."""


def common_subsequence(
    first: Sequence[int], second: Sequence[int], same: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Return pairs of the items of a longest common subsequence (Myers 1986); none if the sequences differ too much."""
    n, m = len(first), len(second)
    if abs(n - m) > _MAX_DIFFERENCES:
        return []
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
    """Return the pairs of positions in the common subsequence: the diagonal steps of the path to ``(x, y)``."""
    pairs = []
    for edits in range(len(history), -1, -1):
        diagonal = x - y
        start, previous = _after_edit(history, diagonal, edits)
        pairs += [(i, i - diagonal) for i in range(x - 1, start - 1, -1)]
        if edits:
            x = start if previous > diagonal else start - 1
            y = x - previous
    return pairs[::-1]
