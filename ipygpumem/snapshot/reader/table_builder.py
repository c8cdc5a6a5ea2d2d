"""Builders for the tables of strings, stacks and pool IDs."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.model.columns import IndexByValue
from ipygpumem.snapshot.model.stacks import (
    UNKNOWN_FILE,
    Frame,
    StackTable,
    formatted_frames,
    is_user_file,
    user_code,
)
from ipygpumem.snapshot.reader.checks import (
    RepeatedTextLimit,
    check_repetition,
    integer,
    is_plain,
    mapping,
    sequence,
    text,
)

_FIRST_CHECK = 1 << 16
_MAX_LINE = (1 << 31) - 1
_NO_LINE = (1 << 64) - 1  # PyTorch writes -1 as unsigned for a frame that is being left by an exception
_MAX_TEXT, _MAX_ITEMS = 100, 20  # limits for user metadata that is a dict
_PAIR = 2
# Numbers in a file are used as dict keys only as bytes, whose hash is randomized. The hash of integers and tuples is
# predictable, and reading 60,000 pool IDs with the same hash took a minute.
_POOL = struct.Struct("<qq")
_SALT = "frame"  # first item of keys that may otherwise consist of numbers and empty strings, whose hash is 0
_TEXT_KEYS = {"action", "compile_context", "user_metadata"}
_MAX_FRAMES = 1 << 16
"""Maximum number of frames in a stack. Python's default limit is 1,000, but a file can repeat a frame in two bytes."""


class TableBuilder:
    """Builder for the tables of strings, pool IDs and stacks, to which columns refer by index."""

    def __init__(self) -> None:
        self.texts = IndexByValue()
        self.pools = IndexByValue()
        self.budget = RepeatedTextLimit()
        self.stacks = StackBuilder(self.budget)
        self._metadata: dict[int, tuple[Any, int]] = {}
        self._ids = array("Q")
        self._next_check = _FIRST_CHECK

    def text(self, value: Any, where: str) -> int:
        if type(value) is not dict:
            return self.texts[text(value, where)]
        if id(value) not in self._metadata:
            name = _metadata_text(value)
            if name not in self.texts:
                self.budget.count(name, where, created=True)
            self._metadata[id(value)] = value, self.texts[name]  # the reference keeps the id valid
        return self._metadata[id(value)][1]

    def pool(self, value: Any, where: str) -> int:
        """Return the index of a pool ID, a pair of integers that is (0, 0) for the default pool."""
        parts = sequence(value, where)
        if len(parts) != _PAIR:
            raise SnapshotFormatError(f"{where} has {len(parts)} items, not two")
        return self.pools[_POOL.pack(*(integer(part, where) for part in parts))]

    def index(self, key: str, value: Any) -> int:
        if value is None:
            return -1
        if key in _TEXT_KEYS:
            return self.text(value, key)
        return self.pool(value, key) if key == "pool_id" else self.stacks.stack(value, key)

    def indices(self, key: str, values: list[Any], where: Callable[[int], str]) -> NDArray[np.int32]:
        """Return the indices of the values of a key. ``where(i)`` names event ``i`` in error messages."""
        indices: dict[int, int] = {}
        for place, value in enumerate(values):
            if id(value) not in indices:
                try:
                    indices[id(value)] = self.index(key, value)
                except SnapshotError as error:
                    raise type(error)(f"{where(place)}: {error}") from None
        return np.array([indices[id(value)] for value in values], np.int32)

    def pool_ids(self) -> tuple[tuple[int, int], ...]:
        return tuple((owner, number) for owner, number in map(_POOL.unpack, self.pools))

    def count(self, items: Sequence[Any], where: str) -> None:
        """Count the dicts of a list, together with those of all previous lists, for `check_repetition`."""
        self._ids.extend(map(id, items))
        if len(self._ids) > self._next_check:
            check_repetition(self._ids, where)
            self._next_check = 2 * len(self._ids)


class StackBuilder:
    def __init__(self, budget: RepeatedTextLimit) -> None:
        self._budget = budget
        self._frames = IndexByValue()
        # by frame: index of the frame of the source code that generated code comes from, or -1. A dict would be slow
        # for frames that a file chooses.
        self._source_of = array("i")
        self._sources: dict[str, int] = {}  # by formatted stack, which a file can repeat in two bytes
        self._frame_of: dict[int, int] = {}  # by id of the dict in the file
        self._stacks = IndexByValue()
        self._stack_of: dict[bytes, int] = {}  # by ids of the frames
        self._stack_of_list: dict[int, int] = {}  # by id of the list in the file
        self._objects: list[Any] = []  # keeps the ids valid

    def frame(self, frame: Any, where: str) -> int:
        number = self._frame_of.get(id(frame))
        if number is not None:
            return number
        mapping(frame, where)
        line = frame.get("line", 0)
        key = (
            text(frame.get("filename", UNKNOWN_FILE), f"{where}: filename"),
            0 if line == _NO_LINE else integer(line, f"{where}: line", 0, _MAX_LINE),
            text(frame.get("name", ""), f"{where}: name"),
        )
        if (_SALT, *key) not in self._frames:
            self._budget.count(key[0], where)
            self._budget.count(key[2], where)
        number = self._frame_of[id(frame)] = self._frames[(_SALT, *key)]
        self._objects.append(frame)
        trace = frame.get("fx_original_trace")
        if trace is not None and (number >= len(self._source_of) or self._source_of[number] < 0):
            source = self._source(text(trace, f"{where}: fx_original_trace"), where)
            if source >= 0:
                self._source_of.extend(repeat(-1, len(self._frames) - len(self._source_of)))
                self._source_of[number] = source
        return number

    def _source(self, trace: str, where: str) -> int:
        if trace not in self._sources:
            key = next((frame for frame in reversed(formatted_frames(trace)) if is_user_file(frame[0])), None)
            if key is not None:
                self._budget.count(f"{key[0]}{key[2]}", where)
            self._sources[trace] = -1 if key is None else self._frames[(_SALT, *key)]
        return self._sources[trace]

    def stack(self, frames: Any, where: str) -> int:
        """Return the index of a stack, given as a list of frames, innermost first."""
        number = self._stack_of_list.get(id(frames))
        if number is not None:  # a file can repeat a long list in two bytes
            return number
        if type(frames) in {list, tuple} and len(frames) > _MAX_FRAMES:
            raise SnapshotLimitError(f"{where}: a stack of {len(frames):,} frames exceeds the limit of {_MAX_FRAMES:,}")
        items = sequence(frames, where)
        ids = array("Q", map(id, items)).tobytes()
        number = self._stack_of.get(ids)
        if number is None:
            numbers = [self.frame(frame, where) for frame in items]
            if self._source_of:
                self._source_of.extend(repeat(-1, len(self._frames) - len(self._source_of)))
                numbers = [n for frame in numbers for n in (self._source_of[frame], frame) if n >= 0]
            number = self._stack_of[ids] = self._stacks[array("i", numbers).tobytes()]
        self._stack_of_list[id(frames)] = number
        self._objects.append(frames)
        return number

    def table(self) -> StackTable:
        """Return the tree of all stacks. No stacks can be added afterwards."""
        for objects in (self._frame_of, self._stack_of, self._stack_of_list, self._objects):
            objects.clear()
        frames = tuple(Frame(*key) for _, *key in self._frames)
        is_user = user_code(frames)
        outermost_first = [np.frombuffer(stack, np.int32)[::-1].astype(">i4").tobytes() for stack in self._stacks]
        leaf = np.full(len(outermost_first), -1, np.int32)
        user_frame = np.full(len(outermost_first), -1, np.int32)
        node_frame, node_parent = array("i"), array("i")
        path = previous = np.zeros(0, np.int32)
        count = 0
        # in lexicographic order, no earlier stack shares a longer prefix than the previous stack
        for number in sorted(range(len(outermost_first)), key=outermost_first.__getitem__):
            stack = np.frombuffer(outermost_first[number], ">i4").astype(np.int32)
            shared = _common_prefix(stack, previous)
            path = np.append(path[:shared], np.arange(count, count := count + len(stack) - shared, dtype=np.int32))
            node_frame.frombytes(stack[shared:].tobytes())
            node_parent.frombytes(np.append(np.int32(-1), path)[shared:-1].tobytes())
            user = np.flatnonzero(is_user[stack])
            leaf[number] = path[-1] if len(path) else -1
            user_frame[number] = stack[user[-1]] if len(user) else -1
            previous = stack
        return StackTable(frames, np.array(node_frame), np.array(node_parent), leaf, user_frame)


def _metadata_text(metadata: dict[str, Any]) -> str:
    items = (
        f"{str(key)[:_MAX_TEXT]}={str(value)[:_MAX_TEXT]}"
        for key, value in metadata.items()
        if all(item is not None and is_plain(item) for item in (key, value))
    )
    return ", ".join(islice(items, _MAX_ITEMS))


def _common_prefix(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
