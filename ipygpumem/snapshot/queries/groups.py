"""Live allocations, added up by what they have in common."""

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
    """Allocations with something in common.

    Attributes:
        label: What they have in common, in words.
        bytes: Requested bytes.
        count: Allocations.
        file: Of a group by line, function or file: the file.
        line: Of a group by line: the line.
        name: Of a group by line or function: the function.
        source: Of a group by line: the text of the line, where the snapshot carries it.
        frames: Of a group by stack: the stack, innermost frame first.
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
        """As plain values; ``frames`` as texts."""
        return {
            "label": self.label,
            "file": self.file,
            "line": self.line,
            "name": self.name,
            "source": self.source,
            "bytes": self.bytes,
            "count": self.count,
            **({"frames": [str(frame) for frame in self.frames]} if self.frames else {}),
        }


def add_up(codes: NDArray[Any], sizes: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Code, bytes and count of each group, the largest first; of equal ones the smaller code first."""
    unique, which, counts = np.unique(codes, return_inverse=True, return_counts=True)
    totals = np.zeros(len(unique), np.int64)
    np.add.at(totals, which, sizes)
    order = np.lexsort((unique, -totals))
    return [(int(unique[row]), int(totals[row]), int(counts[row])) for row in order]
