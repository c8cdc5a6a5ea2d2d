"""Call stacks, stored once for all events that share them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass

UNKNOWN_FILE = "??"
# Files that are not user code: libraries, the standard library, notebook internals, generated code, C++
_NOT_USER_CODE = re.compile(
    r"""[/\\](site-packages|dist-packages)[/\\]
    | [/\\]lib[/\\]python3(\.\d+t?)?[/\\]
    | ^[a-z]:.*[/\\](python3\d*t?(-32)?|(mini|ana)conda3?|envs[/\\][^/\\]+|\d+\.\d+\.\d+)[/\\]lib[/\\]
    | [/\\]torch[/\\](nn|optim|autograd|utils|distributed|cuda|amp|fx|jit|_\w+|(functional|hub|overrides|random
      |serialization|storage)\.py$)
    | ^<(frozen[ ]|__array_function__|eval_with_key|fx-generated|decorator-gen|lambdifygenerated|attrs[ ]generated)
    | [/\\]ipygpumem[/\\](core|features|jupyter|measurement|sources)[/\\]
    | torchinductor_ | [/\\]\.triton[/\\] | [/\\]torch_geometric\.[^/\\]+_propagate_\w{1,32}\.py$
    | (^|[/\\])fx_generated_\w+\.py$
    | \.(c|cc|cpp|cxx|cu|cuh|h|hpp|inl|so)(\.\d+)*$""",
    re.VERBOSE | re.IGNORECASE,
)

_FORMATTED_FRAME = re.compile(r'File "([^"\n]+)", line ([0-9]{1,9}), in (\S+)')


def formatted_frames(trace: str) -> list[tuple[str, int, str]]:
    """Return file, line number and function name of each frame of a formatted stack trace, outermost frame first."""
    return [(file, int(line), name) for file, line, name in _FORMATTED_FRAME.findall(trace)]


def is_user_file(filename: str) -> bool:
    return bool(filename) and filename != UNKNOWN_FILE and not _NOT_USER_CODE.search(filename)


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame of a call stack: file name, line number (0 if unknown) and function name."""

    file: str
    line: int
    name: str

    def __hash__(self) -> int:
        # hashes of integers and empty strings are predictable, so that a file could choose lines with the same hash
        return hash((UNKNOWN_FILE, self.file, self.line, self.name))

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}" if self.line else f"{self.file} {self.name}"


def user_code(frames: Sequence[Frame]) -> NDArray[np.bool_]:
    is_user = {file: is_user_file(file) for file in {frame.file for frame in frames}}
    return np.array([frame.line > 0 and is_user[frame.file] for frame in frames], np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """All call stacks of a file as a tree whose roots are the outermost frames.

    Attributes:
        node_frame: int32, index into ``frames`` for each node of the tree.
        node_parent: int32, node of the caller; -1 for a root. Parents precede their children.
        leaf: int32, innermost node of each stack; -1 for an empty stack.
        user_frame: int32, index into ``frames`` of the innermost frame of user code in each stack; -1 if there is none.
        tuples: Cached results of `stack`, because many devices can share a deep stack.
    """

    frames: tuple[Frame, ...]
    node_frame: NDArray[np.int32]
    node_parent: NDArray[np.int32]
    leaf: NDArray[np.int32]
    user_frame: NDArray[np.int32]
    tuples: list[tuple[Frame, ...] | None] = field(default_factory=list)

    def stack(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first. Index -1 means that no stack was recorded."""
        if stack < 0:
            return ()
        if not self.tuples:
            self.tuples.extend(repeat(None, len(self.leaf)))
        result = self.tuples[stack]
        if result is None:
            frames = []
            node = int(self.leaf[stack])
            while node >= 0:
                frames.append(self.frames[self.node_frame[node]])
                node = int(self.node_parent[node])
            result = self.tuples[stack] = tuple(frames)
        return result
