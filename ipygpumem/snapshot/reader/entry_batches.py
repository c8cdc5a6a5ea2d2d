"""Trace entries with the same keys, read in batches with numpy instead of opcode by opcode.

Half a million trace entries are half a million dicts with the same keys in the same order: ``}``, ``MEMOIZE`` (which
``pickletools.optimize`` omits), ``MARK``, then for each key a reference to it and a value of one to a few dozen bytes,
then ``SETITEMS``. An entry is looked for wherever these first bytes occur, and dropped if it has anything unexpected.
An entry found this way only says "*if* an entry starts here, these are its values". It counts once the pickle reader,
which reads in order, reaches its position. So nothing is guessed, and a malicious file gains only a slower read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.model.unique_values import IndexByValue
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.field_reader import MARGIN, FieldReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_CHUNK = 1 << 22  # bytes whose entries are read together: their columns fit into the processor's cache
_EVENT_KEYS = (["device_traces"], ["host_traces"])
_EVENT_DEPTHS = (2, 3)  # a list of one item is not preceded by MARK
_NUMBERS = {"addr", "size", "stream", "time_us", "device_free"}
_OBJECTS = {"action", "compile_context", "user_metadata", "frames", "pool_id"}


class NotColumnarError(Exception):
    """The file has something that only reading opcode by opcode can handle, or for which it has the precise error."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """All positions in a part of the file at which an entry with certain keys can be read.

    Attributes:
        start: Where each entry starts, ascending.
        end: Where it ends.
        memo_before: How many objects all entries before it add to the memo; one more value for the end.
        values: The columns, by key. Numbers as they are. For other values the memo index, or -1 - k for a value written
            inside the entry, which is number k in ``inline[key]``, or `NONE`.
        memo_offsets: For values that are not numbers, the n objects that the entry has added to the memo before the
            value; -1 - n for a value that is not memoized.
        inline: Values written inside entries, as in the pickle, with their numbers. All parts of a file share them.
    """

    start: Ints
    end: Ints
    memo_before: Ints
    values: dict[str, NDArray[Any]]
    memo_offsets: dict[str, NDArray[np.int16]]
    inline: dict[str, IndexByValue]

    def runs(self) -> Iterator[tuple[int, int]]:
        """The first and last entry (excluded) of each run of adjacent entries."""
        breaks = (np.flatnonzero(self.start[1:] != self.end[:-1]) + 1).tolist()
        return pairwise([0, *breaks, len(self.start)]) if len(self.start) else iter(())


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Adjacent entries of a list: ``first`` to ``stop`` (excluded), and the memo index of their first object."""

    entries: Entries
    first: int
    stop: int
    memo_index: int

    def __len__(self) -> int:
        return self.stop - self.first

    def memo_starts(self) -> Ints:
        """The memo index of the first object of each entry."""
        before = self.entries.memo_before
        starts: Ints = before[self.first : self.stop] + (self.memo_index - before[self.first])
        return starts


def find_entries(data: bytes, begin: int, keys: dict[str, int]) -> Iterator[Entries]:
    """Find all entries after ``begin`` that have these keys, each given with its memo index."""
    inline = {key: IndexByValue() for key in keys if key in _OBJECTS}
    for first in range(begin, len(data) - MARGIN, _CHUNK):
        reader = FieldReader(data, _openings(data, first), _CHUNK)
        for key, memo_index in keys.items():
            reference = _reference(memo_index)
            if key in _NUMBERS:
                reader.read_number(key, reference)
            else:
                reader.read_object(key, reference, inline.get(key))
        reader.close()
        memo_before = np.append(0, np.cumsum(reader.memo_count, dtype=np.int64))
        yield Entries(reader.start, reader.position, memo_before, reader.values, reader.memo_offsets, inline)


def _openings(data: bytes, chunk: int) -> Ints:
    """Where the first bytes of an entry occur in a chunk."""
    octets = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(octets[chunk : min(chunk + _CHUNK, len(data) - MARGIN)] == op.EMPTY_DICT) + chunk
    opening: Ints = at[octets[at + 1 + (octets[at + 1] == op.MEMOIZE)] == op.MARK]
    return opening


def _reference(index: int) -> bytes:
    """The bytes by which the pickler refers to a memo entry."""
    return bytes([op.BINGET, index]) if index < 1 << 8 else bytes([op.LONG_BINGET]) + index.to_bytes(4, "little")


def is_in_events(outer: list[list[Any]]) -> bool:
    """Whether the innermost open list has events: ``device_traces[0]``, ``host_traces[0]`` or ``host_traces``.

    ``outer`` has the objects on the pickle reader's stack before each MARK.
    """
    if len(outer) not in _EVENT_DEPTHS:
        return False
    path = outer[1][-3:] + [item for items in outer[2:] for item in items[-1:]]
    are_lists = [type(item) is list for item in path[-2:]]
    nested = path[-3:-2] in _EVENT_KEYS and all(are_lists)
    return nested or (path[-2:-1] == ["host_traces"] and are_lists[-1])
