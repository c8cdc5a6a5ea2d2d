"""Find the operations of a compiled graph that allocated memory."""

from __future__ import annotations

import linecache
import re
from functools import cache

import numpy as np

from ipygpumem.measurement.compiled_graphs import CompiledGraph, GraphNode
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.stacks import Frame

_GENERATED_FILE = re.compile(r"[/\\]c[a-z2-7]{51}\.py$|^<eval_with_key>|^fx_generated_")
"""Names of files with code from Inductor, which contain a hash, and from torch.fx."""
_OPERATIONS = re.compile(r"# .*Source Nodes: \[(.*?)\]")
_ALLOCATION = re.compile(r"\s*(buf\d+) = empty_strided")
_REUSE = re.compile(r"\s*(buf\d+) = (?:reinterpret_tensor\()?(buf\d+)\b")
_ONE_OUTPUT = re.compile(r"extern_kernels\.|torch\.ops\.|triton_tem_")
_NO_OPERATION = re.compile(r"\s*(#|del |assert_|\w*stream\d+ = |buf\d+ = (empty_strided|buf|reinterpret_tensor))")


class CompiledCode:
    """Code that torch.compile generated, in the stacks of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        stacks = self._stacks = snapshot.stacks
        generated = [bool(_GENERATED_FILE.search(frame.file)) for frame in stacks.frames]
        frames: list[int] = []  # innermost generated frame by node
        for frame, parent in zip(stacks.node_frame.tolist(), stacks.node_parent.tolist(), strict=True):
            frames.append(frame if generated[frame] else frames[parent] if parent >= 0 else -1)
        leaves = np.append(stacks.leaf, -1)  # the last element is for events without a stack
        self.frame_of_stack = np.asarray([*frames, -1], np.int64)[leaves]
        """Index of the innermost generated frame of each stack; -1 if there is none."""

    def operations(self, graph: CompiledGraph, stack: int) -> list[GraphNode]:
        """Return the operations of a graph whose memory was allocated at a stack, or an empty list if unknown."""
        frame = int(self.frame_of_stack[stack])
        return [] if frame < 0 else _operations(graph, self._stacks.frames[frame])


def _operations(graph: CompiledGraph, frame: Frame) -> list[GraphNode]:
    names = [graph.node_of_line.get(frame.line, "")] if frame.file == graph.file else _source_nodes(frame)
    return [graph.nodes[name] for name in names if name in graph.nodes]


@cache
def _source_nodes(frame: Frame) -> tuple[str, ...]:
    """Return the operation names in Inductor's comment above the kernel that uses the memory allocated by a line."""
    lines = linecache.getlines(frame.file)
    if not 0 < frame.line <= len(lines):
        return ()
    kernel = frame.line - 1
    allocation = _ALLOCATION.match(lines[kernel])
    if allocation is not None:
        kernel = _first_use(allocation[1], lines, frame.line)
    for line in reversed(lines[:kernel]):
        names = _OPERATIONS.search(line)
        if names is not None:
            operations = tuple(names[1].split(", "))
            # the others are views of the kernel's inputs; a fused kernel may have several outputs
            return operations[-1:] if _ONE_OUTPUT.search(lines[kernel]) else operations
        if not _NO_OPERATION.match(line):
            break
    return ()


def _first_use(buffer: str, lines: list[str], start: int) -> int:
    for number in range(start, len(lines)):
        renamed = _REUSE.match(lines[number])
        if renamed is not None and renamed[2] == buffer:
            buffer = renamed[1]
        elif re.search(rf"\b{buffer}\b", lines[number]) and not _NO_OPERATION.match(lines[number]):
            return number
    return 0
