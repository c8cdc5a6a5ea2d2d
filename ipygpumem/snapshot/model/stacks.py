"""What many events share, kept once: texts, pools, and the call stacks as one tree."""

from __future__ import annotations

import re
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotLimitError
from ipygpumem.snapshot.reader.checks import integer, mapping, sequence, text

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

__all__ = ["Frame", "Numbers", "StackTable", "Stacks", "is_user_file", "pack_pool", "unpack_pool"]

_UNKNOWN_FILE = "??"
_LAST_LINE = (1 << 31) - 1
_DEEPEST = 1 << 16  # frames of a stack. Python's own limit is 1,000; a file may name one frame again in two bytes
# Numbers out of a file are keys of a dict as bytes only. Python's hash of numbers and of tuples of them can be computed
# beforehand: 60,000 pool ids of one hash took a minute. That of bytes has a secret.
_POOL = struct.Struct("<qq")
# Frames that are nobody's own code: libraries, Python's own, the notebook's machinery, what compilers wrote, C++
_FOREIGN = re.compile(
    r"""[/\\](site-packages|dist-packages)[/\\]
    | [/\\]lib[/\\]python3(\.\d+t?)?[/\\]
    | ^[a-z]:.*[/\\](python3\d*t?(-32)?|(mini|ana)conda3?|envs[/\\][^/\\]+|\d+\.\d+\.\d+)[/\\]lib[/\\]
    | [/\\]torch[/\\](nn|optim|autograd|utils|distributed|cuda|amp|fx|jit|_\w+|(functional|hub|overrides|random
      |serialization|storage)\.py$)
    | ^<(frozen[ ]|__array_function__|eval_with_key|fx-generated|decorator-gen|lambdifygenerated|attrs[ ]generated)
    | torchinductor_ | [/\\]\.triton[/\\]
    | \.(c|cc|cpp|cxx|cu|cuh|h|hpp|inl|so)(\.\d+)*$""",
    re.VERBOSE | re.IGNORECASE,
)


def is_user_file(filename: str) -> bool:
    """Whether a frame of this file is the user's own code: a script, a module outside site-packages, a cell."""
    return bool(filename) and filename != _UNKNOWN_FILE and not _FOREIGN.search(filename)


def pack_pool(owner: int, number: int) -> bytes:
    """The two numbers of a pool id as a key."""
    return _POOL.pack(owner, number)


def unpack_pool(key: bytes) -> tuple[int, int]:
    """The two numbers of a pool id."""
    owner, number = _POOL.unpack(key)
    return owner, number


class Numbers(dict[Any, int]):
    """Numbers its keys in the order of their first use."""

    def number(self, key: Hashable) -> int:
        """The number of a key."""
        return self.setdefault(key, len(self))


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}" if self.line else f"{self.file} {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """All call stacks of a file as a tree, from the outermost call down.

    Attributes:
        frames: Distinct frames.
        node_frame: int32 column, the frame of each node of the tree.
        node_parent: int32 column, the caller's node; -1 at the root. A parent comes before its children.
        leaf: int32 column, the innermost node of each stack; -1 for an empty stack.
        user_frame: int32 column, the innermost frame of the user's own code of each stack; -1 where there is none.
    """

    frames: tuple[Frame, ...]
    node_frame: NDArray[np.int32]
    node_parent: NDArray[np.int32]
    leaf: NDArray[np.int32]
    user_frame: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.leaf)

    def frame_numbers(self, stack: int) -> list[int]:
        """Numbers of a stack's frames, innermost first."""
        numbers = []
        node = int(self.leaf[stack]) if stack >= 0 else -1
        while node >= 0:
            numbers.append(int(self.node_frame[node]))
            node = int(self.node_parent[node])
        return numbers

    def stack(self, stack: int) -> tuple[Frame, ...]:
        """A stack's frames, innermost first; none for -1, the stack that was not recorded."""
        return tuple(self.frames[number] for number in self.frame_numbers(stack))


class Stacks:
    """Collects call stacks while a file is read."""

    def __init__(self) -> None:
        self._frames = Numbers()
        self._frame_of: dict[int, int] = {}
        self._stacks = Numbers()
        self._stack_of: dict[bytes, int] = {}
        self._kept: list[Any] = []

    def frame(self, frame: Any, where: str) -> int:
        """The number of a frame, given as the file's dict."""
        known = self._frame_of.get(id(frame))
        if known is not None:
            return known
        mapping(frame, where)
        key = (
            text(frame.get("filename", _UNKNOWN_FILE), f"{where}: filename"),
            integer(frame.get("line", 0), f"{where}: line", 0, _LAST_LINE),
            text(frame.get("name", ""), f"{where}: name"),
        )
        number = self._frame_of[id(frame)] = self._frames.number(key)
        self._kept.append(frame)  # an id means nothing once its object is gone
        return number

    def stack(self, frames: Any, where: str) -> int:
        """The number of a stack, given as the file's list of frames, innermost first."""
        if type(frames) in {list, tuple} and len(frames) > _DEEPEST:
            raise SnapshotLimitError(f"{where}: a call stack of {len(frames):,} frames, more than {_DEEPEST:,}")
        items = sequence(frames, where)
        same = array("Q", map(id, items)).tobytes()
        number = self._stack_of.get(same)
        if number is None:
            number = self._stacks.number(array("i", [self.frame(frame, where) for frame in items]).tobytes())
            self._stack_of[same] = number
        return number

    def table(self) -> StackTable:
        """All stacks collected."""
        frames = tuple(Frame(*key) for key in self._frames)
        own = np.array([frame.line > 0 and is_user_file(frame.file) for frame in frames], np.bool_)
        turned = [np.frombuffer(stack, np.int32)[::-1].astype(">i4").tobytes() for stack in self._stacks]
        leaf = np.full(len(turned), -1, np.int32)
        user = np.full(len(turned), -1, np.int32)
        node_frame, node_parent = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        path = before = np.zeros(0, np.int32)
        count = 0
        # in order, from the outermost call down: what a stack shares with any before, it shares with the last one
        for number in sorted(range(len(turned)), key=turned.__getitem__):
            stack = np.frombuffer(turned[number], ">i4").astype(np.int32)
            shared = _shared(stack, before)
            path = np.append(path[:shared], np.arange(count, count := count + len(stack) - shared, dtype=np.int32))
            node_frame.append(stack[shared:])
            node_parent.append(np.append(np.int32(-1), path)[shared:-1])
            mine = np.flatnonzero(own[stack])
            leaf[number] = path[-1] if len(path) else -1
            user[number] = stack[mine[-1]] if len(mine) else -1
            before = stack
        return StackTable(frames, np.concatenate(node_frame), np.concatenate(node_parent), leaf, user)


def _shared(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many items two columns have in common at their beginning."""
    most = min(len(one), len(other))
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if len(differ) else most
