"""Allocations added up by a common property."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.stacks import Frame

__all__ = ["Group", "add_up"]


@dataclass(frozen=True, slots=True)
class Group:
    """Allocations with a common property.

    Attributes:
        label: The property.
        bytes: Requested bytes.
        count: Number of allocations.
        file: The file, in groups by line, function or file.
        line: The line number, in groups by line.
        name: The function, in groups by line or function.
        source: The text of the line, in groups by line, if the snapshot contains it.
        frames: The stack, innermost frame first, in groups by stack.
    """

    label: str
    bytes: int
    count: int
    file: str | None = None
    line: int | None = None
    name: str | None = None
    source: str | None = None
    frames: tuple[Frame, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The group as plain values, ``frames`` as texts."""
        names = ("label", "file", "line", "name", "source", "bytes", "count")
        frames = {"frames": [str(frame) for frame in self.frames]} if self.frames else {}
        return {name: getattr(self, name) for name in names} | frames


def add_up(codes: NDArray[Any], sizes: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """The code, bytes and count of each group, the largest first; of equal ones the smaller code first."""
    unique, group, counts = np.unique(codes, return_inverse=True, return_counts=True)
    totals = np.zeros(len(unique), np.int64)
    np.add.at(totals, group, sizes)
    order = np.lexsort((unique, -totals))
    return [(int(unique[row]), int(totals[row]), int(counts[row])) for row in order]
