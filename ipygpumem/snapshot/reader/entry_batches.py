"""Read trace entries with the same keys in batches with NumPy instead of opcode by opcode.

The entries of a trace are dicts with the same keys in the same order. An entry is pickled as ``EMPTY_DICT``,
``MEMOIZE`` (which ``pickletools.optimize`` omits), ``MARK``, a reference to each key followed by a value of one to a
few dozen bytes, and ``SETITEMS``. Each occurrence of the opcodes up to ``MARK`` is a candidate, and candidates with
unexpected contents are removed.

The values of a candidate are used only if the pickle reader, which reads in order, reaches its position. The result is
therefore always correct, and a malicious file can only slow down reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from math import inf
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.snapshot.model.columns import IndexByValue
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.field_reader import MARGIN, FieldReader

Ints = NDArray[np.int64]

_CHUNK = 1 << 22  # bytes whose entries are read together, chosen such that the columns fit into the CPU cache
_MAX_THREADS = 4  # more are not faster, because looking up strings requires the GIL
_EVENT_KEYS = (["device_traces"], ["host_traces"])
_EVENT_DEPTHS = (2, 3)  # a list of one item is not preceded by MARK
_NUMBERS = {"addr", "size", "stream", "time_us", "device_free"}
_OBJECTS = {"action", "compile_context", "user_metadata", "frames", "pool_id"}


class NotColumnarError(Exception):
    """Raised if a file must be read opcode by opcode, either to support its contents or to raise a precise error."""


@dataclass(frozen=True, slots=True, eq=False)
class EntryBatch:
    """All candidate entries with the same keys in a part of the file.

    Attributes:
        start, end: Position of the first byte of each entry, and position after the last byte.
        memo_before: Number of objects that the preceding entries of the batch add to the memo. The last element is the
            total number.
        values: Columns by key. Integers are stored directly. Other values are stored as a memo index, as `NONE`, or as
            -1 - k for a value written inside the entry, where k is its index in ``inline[key]``.
        memo_offsets: Columns by key: the number n of objects that the entry adds to the memo before the value, or
            -1 - n if the value is not memoized.
        inline: Indices of the values written inside entries, by key and pickled bytes; shared by all parts of a file.
    """

    start: Ints
    end: Ints
    memo_before: Ints
    values: dict[str, NDArray[Any]]
    memo_offsets: dict[str, NDArray[np.int16]]
    inline: dict[str, IndexByValue]

    def runs(self) -> Iterator[tuple[int, int]]:
        breaks = (np.flatnonzero(self.start[1:] != self.end[:-1]) + 1).tolist()
        return pairwise([0, *breaks, len(self.start)]) if len(self.start) else iter(())


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Consecutive entries of a list that were read as a batch.

    Attributes:
        first, stop: Index of the first entry in the batch, and index after the last entry.
        memo_index: Memo index of the first object in the first entry.
    """

    entries: EntryBatch
    first: int
    stop: int
    memo_index: int

    def __len__(self) -> int:
        return self.stop - self.first

    def memo_starts(self) -> Ints:
        before = self.entries.memo_before
        starts: Ints = before[self.first : self.stop] + (self.memo_index - before[self.first])
        return starts


class CandidateRuns:
    """Sequences of adjacent candidate entries, which are visited in the order of their positions in the file.

    The sequences are stored in a sorted list, because a file can choose positions for which a dict is slow.

    Attributes:
        next_position: Position of the first byte of the next sequence; infinity if there is none.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[int, EntryBatch, int, int]] = []  # by position, in descending order
        self.next_position: float = inf

    def add(self, batches: Iterable[EntryBatch]) -> None:
        for entries in batches:
            self._runs.extend((int(entries.start[first]), entries, first, stop) for first, stop in entries.runs())
        self._runs.sort(key=itemgetter(0), reverse=True)
        self.next_position = self._runs[-1][0] if self._runs else inf

    def pop(self, position: int, outer: list[list[Any]]) -> tuple[EntryBatch, int, int] | None:
        """Return ``(entries, first, stop)`` of the sequence at a position, or None. Remove all sequences up to there.

        ``outer`` contains the stack objects before each MARK. Sequences outside of lists of events are not returned.
        """
        run = None
        while self.next_position <= position:
            start, entries, first, stop = self._runs.pop()
            run = (entries, first, stop) if start == position else None
            self.next_position = self._runs[-1][0] if self._runs else inf
        return run if is_in_events(outer) else None


def find_entries(data: bytes, start: int, keys: dict[str, int]) -> Iterator[EntryBatch]:
    """Yield the candidate entries after position ``start``. ``keys`` maps each key to its memo index."""
    inline = {key: IndexByValue() for key in keys if key in _OBJECTS}
    chunks = range(start, len(data) - MARGIN, _CHUNK)
    for reader in _in_threads(partial(_read_chunk, data, keys), chunks):
        for key, indices in inline.items():
            reader.renumber(key, indices)
        memo_before = np.append(0, np.cumsum(reader.memo_count, dtype=np.int64))
        yield EntryBatch(reader.start, reader.position, memo_before, reader.values, reader.memo_offsets, inline)


def _in_threads(read: Callable[[int], FieldReader], chunks: range) -> Iterator[FieldReader]:
    """Call a function for each chunk, in several threads because NumPy releases the GIL. Yield results in order."""
    threads = min(len(chunks), _MAX_THREADS, os.cpu_count() or 1)
    if threads <= 1:
        yield from map(read, chunks)
        return
    with ThreadPoolExecutor(threads) as executor:
        try:
            readers = executor.map(read, chunks)
        except RuntimeError:  # no thread can be started, for example while Python exits
            readers = map(read, chunks)
        yield from readers


def _read_chunk(data: bytes, keys: dict[str, int], first: int) -> FieldReader:
    reader = FieldReader(data, _openings(data, first), _CHUNK)
    for key, memo_index in keys.items():
        reference = _reference(memo_index)
        if key in _NUMBERS:
            reader.read_number(key, reference)
        else:
            reader.read_object(key, reference, is_kept=key in _OBJECTS)
    reader.close()
    return reader


def _openings(data: bytes, chunk: int) -> Ints:
    octets = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(octets[chunk : min(chunk + _CHUNK, len(data) - MARGIN)] == op.EMPTY_DICT) + chunk
    opening: Ints = at[octets[at + 1 + (octets[at + 1] == op.MEMOIZE)] == op.MARK]
    return opening


def _reference(index: int) -> bytes:
    return bytes([op.BINGET, index]) if index < 1 << 8 else bytes([op.LONG_BINGET]) + index.to_bytes(4, "little")


def is_in_events(outer: list[list[Any]]) -> bool:
    """Return whether the innermost open list contains events. ``outer`` contains the stack objects before each MARK."""
    if len(outer) not in _EVENT_DEPTHS:
        return False
    path = outer[1][-3:] + [item for items in outer[2:] for item in items[-1:]]
    are_lists = [type(item) is list for item in path[-2:]]
    nested = path[-3:-2] in _EVENT_KEYS and all(are_lists)
    return nested or (path[-2:-1] == ["host_traces"] and are_lists[-1])
