"""Which thread made an event: the outermost file of its stack tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot import Snapshot

__all__ = ["THREAD", "outermost_files"]

THREAD = "threading.py"
"""The outermost file of a thread that Python code started."""


def outermost_files(snapshot: Snapshot) -> NDArray[Any]:
    """The outermost file of each stack; None for one without frames, and (the last place, as by -1) for none at all."""
    stacks = snapshot.stacks
    roots: list[str | None] = []
    for frame, parent in zip(stacks.node_frame.tolist(), stacks.node_parent.tolist(), strict=True):
        roots.append(roots[parent] if parent >= 0 else stacks.frames[frame].file)  # a parent comes before its children
    found = np.full(len(stacks) + 1, None, object)
    for number, leaf in enumerate(stacks.leaf.tolist()):
        found[number] = roots[leaf] if leaf >= 0 else None
    return found
