"""The outermost file of each call stack: it identifies the thread that allocated or freed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot import Snapshot

__all__ = ["THREAD_FILE", "outermost_files"]

THREAD_FILE = "threading.py"
"""The outermost file of a thread started from Python ends with this name."""


def outermost_files(snapshot: Snapshot) -> NDArray[Any]:
    """Return the outermost file of each stack, None for empty stacks; the last element (index -1) is for no stack."""
    stacks = snapshot.stacks
    node_root: list[str | None] = []
    for frame, parent in zip(stacks.node_frame.tolist(), stacks.node_parent.tolist(), strict=True):
        # a parent comes before its children
        node_root.append(node_root[parent] if parent >= 0 else stacks.frames[frame].file)
    roots = np.full(len(stacks) + 1, None, object)
    for stack, leaf in enumerate(stacks.leaf.tolist()):
        roots[stack] = node_root[leaf] if leaf >= 0 else None
    return roots
