"""Trace entries with the same keys, read in batches with numpy instead of opcode by opcode.

Half a million trace entries are half a million dicts with the same keys in the same order: ``}``, ``MEMOIZE`` (which
``pickletools.optimize`` omits), ``MARK``, then for each key a reference to it and a value of one to a few dozen bytes,
then ``SETITEMS``. An entry is looked for wherever these first bytes occur. Entries of one layout are rows of a matrix
(`entry_layouts`); the others are read field by field (`field_reader`), and those with anything unexpected are dropped.
An entry found this way only says "*if* an entry starts here, these are its values". It counts once the pickle reader,
which reads in order, reaches its position. So nothing is guessed, and a malicious file gains only a slower read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.byte_strings import intern
from ipygpumem.snapshot.reader.entry_layouts import layout_of
from ipygpumem.snapshot.reader.field_reader import MARGIN, MAX_MEMO_INDEX, NONE, FieldReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.reader.entry_layouts import Layout

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["Entries", "Field", "find_entries"]

_CHUNK = 1 << 22  # bytes whose entries are read together: their columns fit into the processor's cache
_WORD = 8
_MAX_LENGTH = 1 << 10  # bytes of an entry that may be a row of a matrix
_MIN_ROWS = 512  # entries of one length for which a matrix is worth its cost
_MAX_LAYOUTS = 4  # looked for among the entries of one length

_KINDS = {
    **dict.fromkeys(("addr", "size", "stream", "time_us", "device_free"), "number"),
    **dict.fromkeys(("action", "compile_context", "user_metadata"), "text"),
    "frames": "list",
    "pool_id": "pair",
}
"""The values that become columns, as in `FieldReader.read`. Values of other keys are skipped."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """The values of one key in all entries.

    Attributes:
        value: Numbers as they are. For texts, lists and pool ids the memo index, or -1 - k for a value written inside
            the entry, which is ``inline[k]``, or `NONE`.
        memo_offset: How many objects the entry has added to the memo before the value; -1 for a value that is not
            memoized. Empty for numbers.
        inline: Values written inside entries: a text in UTF-8, the references in a list, the two numbers of a pool id
            as in the pickle.
    """

    value: NDArray[Any]
    memo_offset: NDArray[np.int16]
    inline: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """All positions at which an entry with certain keys can be read.

    Attributes:
        start: Where each entry starts, ascending.
        end: Where it ends.
        memo_count: How many objects it adds to the memo.
        memo_before: How many objects all entries before it add.
        run_end: For each entry the number of the entry at which the run of adjacent entries ends that it belongs to.
        runs: The first entry of each run, by position.
        fields: The columns, by key.
    """

    start: Ints
    end: Ints
    memo_count: NDArray[np.int16]
    memo_before: Ints
    run_end: Ints
    runs: dict[int, int]
    fields: dict[str, Field]


def find_entries(data: bytes, begin: int, keys: dict[str, bytes]) -> Entries:
    """Find all entries after ``begin`` that have these keys, each given with the bytes that refer to it."""
    kinds = {key: _KINDS.get(key, "any") for key in keys}
    inline: dict[str, dict[bytes, int]] = {key: {} for key in keys}
    layouts: dict[int, list[Layout]] = {}
    chunks = []
    for first in range(begin, max(len(data) - MARGIN, begin + 1), _CHUNK):
        chunk = _Chunk(data, _openings(data, first), keys, kinds, inline)
        chunk.read_layouts(layouts)
        chunk.read_fields()
        chunk.remove_invalid()
        chunks.append(chunk)
    start = np.concatenate([chunk.start for chunk in chunks])
    end = np.concatenate([chunk.end for chunk in chunks])
    memo_count = np.concatenate([chunk.memo_count for chunk in chunks])
    empty = np.zeros(0, np.int16)
    fields = {
        key: Field(
            np.concatenate([chunk.values[key] for chunk in chunks]),
            np.concatenate([chunk.memo_offsets.get(key, empty) for chunk in chunks]),
            tuple(inline[key]),
        )
        for key in keys
        if kinds[key] != "any"
    }
    breaks = np.flatnonzero(start[1:] != end[:-1]) + 1
    firsts = np.append(np.zeros(min(len(start), 1), np.int64), breaks)
    stops = np.append(breaks, np.full(min(len(start), 1), len(start)))
    runs = dict(zip(start[firsts].tolist(), firsts.tolist(), strict=True))
    memo_before = np.cumsum(memo_count, dtype=np.int64) - memo_count
    return Entries(start, end, memo_count, memo_before, np.repeat(stops, stops - firsts), runs, fields)


def _openings(data: bytes, chunk: int) -> Ints:
    """Where the first bytes of an entry occur in a chunk."""
    octets = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(octets[chunk : min(chunk + _CHUNK, len(data) - MARGIN)] == op.EMPTY_DICT) + chunk
    opening: Ints = at[octets[at + 1 + (octets[at + 1] == op.MEMOIZE)] == op.MARK]
    return opening


class _Chunk:
    """One row for each position in a chunk of the pickle at which an entry may start."""

    def __init__(
        self,
        data: bytes,
        start: Ints,
        keys: dict[str, bytes],
        kinds: dict[str, str],
        inline: dict[str, dict[bytes, int]],
    ) -> None:
        self._data = data
        self._keys = keys
        self._kinds = kinds
        self._inline = inline
        count = len(start)
        self.start = start
        self.end = np.zeros(count, np.int64)
        self.valid = np.zeros(count, np.bool_)
        self.memo_count = np.zeros(count, np.int16)
        self.values: dict[str, NDArray[Any]] = {
            key: np.zeros(count, np.int64 if kind == "number" else np.int32)
            for key, kind in kinds.items()
            if kind != "any"
        }
        self.memo_offsets = {key: np.zeros(count, np.int16) for key in self.values if kinds[key] != "number"}

    def read_layouts(self, layouts: dict[int, list[Layout]]) -> None:
        """Read the entries of which many have the same layout. New layouts are added, by length of the entry."""
        # an entry usually ends where the next one starts
        length = np.minimum(np.diff(self.start, append=self.start[-1:]), _MAX_LENGTH + 1).astype(np.uint16)
        order = np.argsort(length, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(length[order])) + 1):
            if len(rows) >= _MIN_ROWS and _WORD < length[rows[0]] <= _MAX_LENGTH:
                size = int(length[rows[0]])
                self._read_length(rows, size, layouts.setdefault(size, []))

    def _read_length(self, rows: Ints, size: int, layouts: list[Layout]) -> None:
        """Read entries of one length: those of known layouts first, then those of new ones."""
        width = -(-size // _WORD) * _WORD
        overlapping = np.ndarray((len(self._data) - width + 1,), f"V{width}", self._data, strides=(1,))
        matrix: Words = overlapping[self.start[rows]].view("<u8").reshape(len(rows), -1)
        tried = 0
        while len(rows) >= _MIN_ROWS and tried < max(len(layouts), _MAX_LAYOUTS):
            if tried == len(layouts):
                first = int(self.start[rows[0]])
                layout = layout_of(self._data[first : first + size], self._keys, self._kinds)
                if layout is None:
                    return
                layouts.append(layout)
            matches = layouts[tried].matches(matrix)
            if matches.all():
                self._fill(rows, matrix, layouts[tried])
                return
            if matches.any():
                self._fill(rows[matches], matrix[matches], layouts[tried])
                rows, matrix = rows[~matches], matrix[~matches]
            tried += 1

    def _fill(self, rows: Ints, matrix: Words, layout: Layout) -> None:
        start = self.start[rows]
        valid = np.ones(len(rows), np.bool_)
        for key, operand in layout.operands.items():
            if self._kinds[key] == "number":
                self.values[key][rows] = operand.numbers(matrix)
                continue
            self.memo_offsets[key][rows] = operand.memo_offset
            strings = self._inline[key]
            if operand.kind == "reference":
                value = operand.numbers(matrix)
                valid &= value <= MAX_MEMO_INDEX
            elif operand.kind == "none":
                value = np.array(NONE)
            elif operand.varies:
                content = start + operand.start
                value = -1 - intern(self._data, content, content + operand.size, operand.words(matrix), strings)
            else:
                first = int(start[0]) + operand.start
                value = np.array(-1 - strings.setdefault(self._data[first : first + operand.size], len(strings)))
            self.values[key][rows] = value
        self.end[rows] = start + layout.size
        self.memo_count[rows] = layout.memo_count
        self.valid[rows] = valid

    def read_fields(self) -> None:
        """Read all other entries field by field."""
        rest = np.flatnonzero(~self.valid)
        if not len(rest):
            return
        reader = FieldReader(self._data, self.start[rest], _CHUNK)
        for key, reference in self._keys.items():
            reader.read(self._kinds[key], key, reference, self._inline[key])
        reader.close()
        rows = rest[np.searchsorted(self.start[rest], reader.start)]
        for key, column in reader.values.items():
            self.values[key][rows] = column
        for key, offsets in reader.memo_offsets.items():
            self.memo_offsets[key][rows] = offsets
        self.end[rows] = reader.position
        self.memo_count[rows] = reader.memo_count
        self.valid[rows] = True

    def remove_invalid(self) -> None:
        """Remove the rows of positions at which no entry could be read."""
        valid = self.valid
        if not valid.all():
            self.start, self.end, self.memo_count = self.start[valid], self.end[valid], self.memo_count[valid]
            self.values = {key: column[valid] for key, column in self.values.items()}
            self.memo_offsets = {key: column[valid] for key, column in self.memo_offsets.items()}
