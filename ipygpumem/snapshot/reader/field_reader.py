"""Reader for the fields of trace entries at given positions of a pickle, vectorized over all entries."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.columns import IndexByValue, distinct, stable_order
from ipygpumem.snapshot.reader import opcodes as op

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]

MARGIN = 32
"""Number of bytes at the end of the data that entries must not reach, so that reading ahead needs no bounds check."""

NONE = -1 << 31  # represents None in columns of memo indices

_WORD = 8
_SHORT_REFERENCE = 2
_MAX_MEMO_INDEX = (1 << 31) - 1  # columns hold memo indices as int32
_MAX_INVALID_SHARE = 1 / 8  # removing rows is slower than processing a few invalid rows
_MAX_LIST_LENGTH = 1000  # number of references; the pickle reader reads entries with longer lists
_LOW_BYTE = np.uint64(0xFF)
_BYTE = np.uint64(8)

# By opcode: size of the operand in bytes, 0 for other opcodes
_INT_WIDTH = np.zeros(256, np.int64)
_INT_WIDTH[[op.BININT1, op.BININT2, op.BININT]] = 1, 2, 4
_REFERENCE_WIDTH = np.zeros(256, np.int64)
_REFERENCE_WIDTH[[op.BINGET, op.LONG_BINGET]] = 1, 4
_IS_INT = _INT_WIDTH > 0
_IS_INT[op.LONG1] = True
# By opcode: size of a value in bytes, excluding the payload whose size is in the second byte; 0 for other opcodes
_FIXED_LENGTH = np.zeros(256, np.int64)
_FIXED_LENGTH[[op.NONE, op.NEWTRUE, op.NEWFALSE, op.EMPTY_TUPLE, op.BINFLOAT]] = 1, 1, 1, 1, 9
_FIXED_LENGTH[[op.LONG1, op.SHORT_BINUNICODE, op.EMPTY_LIST]] = 2, 2, 1
_FIXED_LENGTH += np.where(_INT_WIDTH > 0, 1 + _INT_WIDTH, 0)
_IS_COUNTED = np.zeros(256, np.int64)
_IS_COUNTED[[op.LONG1, op.SHORT_BINUNICODE]] = 1


class FieldReader:
    """Reader for the fields of many candidate entries at once. Candidates with unexpected contents are removed.

    Attributes:
        start, position: Position of the first byte of each entry, and of the next byte to read.
        memo_count: Number of objects that each entry has added to the memo so far.
        values: Values read so far, as columns by key in the format of `EntryBatch.values`.
        memo_offsets: Columns by key in the format of `EntryBatch.memo_offsets`.
    """

    def __init__(self, data: bytes, start: Ints, max_references: int) -> None:
        self._data = data
        # Entries of a valid file do not overlap, so all lists together have fewer references than there are bytes. The
        # limit rejects files in which each entry starts inside the list of the previous entry.
        self._max_references = max_references
        self._end = len(data) - MARGIN
        self._octets = np.frombuffer(data, np.uint8)
        # the eight bytes at every position; advanced indexing copies them, so alignment does not matter
        self._words: Words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
        self._valid = np.ones(len(start), np.bool_)
        self.start = start
        # pickletools.optimize omits MEMOIZE for objects without references
        self.memo_count = (self._octets[start + 1] == op.MEMOIZE).astype(np.int16)
        self.position: Ints = start + 2 + self.memo_count
        self.values: dict[str, NDArray[Any]] = {}
        self.memo_offsets: dict[str, NDArray[np.int16]] = {}
        self._inline: defaultdict[str, IndexByValue] = defaultdict(IndexByValue)

    def read_number(self, key: str, reference: bytes) -> None:
        """Read a key and an integer in every entry. ``reference`` is the opcode and operand that refer to the key."""
        words, code, valid = self._read_key(reference)
        width = _INT_WIDTH[code]
        long = code == op.LONG1
        if long.all():
            value, width = self._long_numbers(self.position, words)
        else:
            shift = (64 - 8 * width).astype(np.uint64)
            shifted = (words >> _BYTE) << shift
            signed, unsigned = shifted.view(np.int64) >> shift.view(np.int64), (shifted >> shift).view(np.int64)
            value = np.where(code == op.BININT, signed, unsigned)
            if long.any():
                value[long], width[long] = self._long_numbers(self.position[long], words[long])
        self.values[key] = value
        self.position = self.position + 1 + width
        self._retain(valid & (width > 0))

    def _long_numbers(self, position: Ints, words: Words) -> tuple[Ints, Ints]:
        """Return ``(values, sizes)`` of LONG1 operands. The size in bytes is 0 for operands of more than 64 bits."""
        size = ((words >> _BYTE) & _LOW_BYTE).view(np.int64)
        fits = (size > 0) & (size <= _WORD)
        spare = np.where(fits, 64 - 8 * size, 0)
        shifted = self._words[position + 2] << spare.view(np.uint64)
        return shifted.view(np.int64) >> spare, np.where(fits, size + 1, 0)

    def read_object(self, key: str, reference: bytes, *, is_kept: bool) -> None:
        """Read a key and a value of any type in every entry. ``reference`` is the opcode and operand of the key.

        If ``is_kept`` is false, the column of the key is omitted.
        """
        words, code, valid = self._read_key(reference)
        width = _REFERENCE_WIDTH[code]
        shift = (64 - 8 * width).astype(np.uint64)
        value = (((words >> _BYTE) << shift) >> shift).view(np.int64)
        end = self.position + 1 + width
        memoized = np.zeros(len(end), np.bool_)
        rows: Any = np.flatnonzero((width == 0) & valid & self._valid)
        if len(rows):
            rows = slice(None) if len(rows) == len(end) else rows
            end[rows], memoized[rows] = self._find_end(self.position[rows], code if len(code) == 1 else code[rows])
        if len(self.position[rows]) and is_kept:
            # Entries of a valid file do not overlap. The values of candidates that do would need more memory than the
            # file, for example if each candidate begins 26 bytes after the previous candidate.
            reach = np.maximum.accumulate(np.where(valid & self._valid, end, 0))
            valid[1:] &= reach[:-1] <= self.start[1:]
            if not valid[rows].all():
                rows = np.flatnonzero((width == 0) & valid & self._valid)
            indices = self._index(self.position[rows], end[rows], self._inline[key])
            is_none = (code if len(code) == 1 else code[rows]) == op.NONE
            value[rows] = np.where(is_none, NONE, -1 - indices)
        if is_kept:
            self.values[key] = value.astype(np.int32)
            self.memo_offsets[key] = np.where(memoized | (width > 0), self.memo_count, -1 - self.memo_count)
        self.memo_count = self.memo_count + memoized
        valid &= (end > self.position) & (value <= _MAX_MEMO_INDEX)
        self.position = end
        self._retain(valid)

    def renumber(self, key: str, indices: IndexByValue) -> None:
        """Replace the indices of the values written inside entries by indices in ``indices``, adding new values to it.

        Each reader first numbers these values independently, so that several readers can run in parallel.
        """
        values = self._inline.pop(key, None)
        if values:
            new_numbers = np.fromiter(map(indices.__getitem__, values), np.int32, len(values))
            column = self.values[key]
            rows = np.flatnonzero((column < 0) & (column != NONE))
            column[rows] = -1 - new_numbers[-1 - column[rows]]

    def close(self) -> None:
        valid = self._octets[self.position] == op.SETITEMS
        self.position = self.position + 1
        self._retain(valid)
        self._remove_invalid()
        for key, values in self._inline.items():  # discard the values of candidates that are not entries
            column = self.values[key]
            rows = np.flatnonzero((column < 0) & (column != NONE))
            numbers = -1 - column[rows]
            used_numbers = distinct(numbers)
            if len(used_numbers) < len(values):
                column[rows] = -1 - np.searchsorted(used_numbers, numbers)
                octets = list(values)
                self._inline[key] = IndexByValue(
                    (octets[number], place) for place, number in enumerate(used_numbers.tolist())
                )

    def _retain(self, valid: Flags) -> None:
        """Mark entries as invalid that are not ``valid`` or reach the `MARGIN`.

        Invalid entries are removed only if they are numerous.
        """
        self._valid &= valid
        self._valid &= self.position <= self._end
        invalid = len(self._valid) - int(np.count_nonzero(self._valid))
        if invalid > _MAX_INVALID_SHARE * len(self._valid):
            self._remove_invalid()
        elif invalid:
            self.position = np.minimum(self.position, self._end)

    def _remove_invalid(self) -> None:
        valid = self._valid
        self.start, self.position, self.memo_count = self.start[valid], self.position[valid], self.memo_count[valid]
        self.values = {key: column[valid] for key, column in self.values.items()}
        self.memo_offsets = {key: column[valid] for key, column in self.memo_offsets.items()}
        self._valid = np.ones(len(self.position), np.bool_)

    def _read_key(self, reference: bytes) -> tuple[Words, NDArray[np.uint8], Flags]:
        """Read a key in every entry.

        Returns:
            A tuple ``(words, code, valid)``: at least six bytes after the key, the opcode of the value (one element if
            all are equal), and whether the key was found.
        """
        words = self._words[self.position]
        mask = np.uint64((1 << 8 * len(reference)) - 1)
        valid = (words & mask) == np.uint64(int.from_bytes(reference, "little"))
        self.position = self.position + len(reference)
        short = len(reference) == _SHORT_REFERENCE
        words = words >> np.uint64(8 * _SHORT_REFERENCE) if short else self._words[self.position]
        code = words.astype(np.uint8)  # the lowest byte
        return words, code[:1] if (code == code[:1]).all() else code, valid

    def _find_end(self, position: Ints, code: NDArray[np.uint8]) -> tuple[Ints, Flags]:
        """Return ``(end, memoized)`` of values that are not memo references. Invalid values end at their start or 0."""
        octets, last = self._octets, self._end
        length = _FIXED_LENGTH[code] + _IS_COUNTED[code] * octets[position + 1]
        end = np.minimum(position + length, last)
        can_be_memoized = (code == op.SHORT_BINUNICODE) | (code == op.EMPTY_LIST)
        memoized = can_be_memoized & (octets[end] == op.MEMOIZE)
        end += memoized
        lists = np.flatnonzero((code == op.EMPTY_LIST) & (length > 0))
        if len(lists):
            end[lists] = self._find_list_end(end[lists])
        # an integer precedes the next key or the end of the entry, so two consecutive integers are a tuple
        pairs = np.flatnonzero(_IS_INT[code] & _IS_INT[octets[end]])
        if len(pairs):
            second = octets[end[pairs]]
            after = end[pairs] + _FIXED_LENGTH[second] + _IS_COUNTED[second] * octets[end[pairs] + 1]
            after = np.minimum(after, last)
            memoized[pairs] = octets[after + 1] == op.MEMOIZE
            end[pairs] = np.where(octets[after] == op.TUPLE2, after + 1 + memoized[pairs], position[pairs])
        return np.where(length > 0, end, position), memoized

    def _find_list_end(self, position: Ints) -> Ints:
        """Return the end of each list of memo references, given the positions after EMPTY_LIST; 0 for other lists."""
        position = np.minimum(position, self._end)
        # a list of one item is a reference and APPEND; a list of several starts with MARK; other lists are empty
        after_item = np.minimum(position + 1 + _REFERENCE_WIDTH[self._octets[position]], self._end)
        single = (after_item > position + 1) & (self._octets[after_item] == op.APPEND)
        end = np.where(single, after_item + 1, position)
        several = np.flatnonzero(self._octets[position] == op.MARK)
        end[several] += 1
        open_lists = several
        remaining = self._max_references
        for _ in range(_MAX_LIST_LENGTH):
            remaining -= len(open_lists)
            if remaining < 0:
                break
            width = _REFERENCE_WIDTH[self._octets[end[open_lists]]]
            end[open_lists] += np.where(width > 0, width + 1, 0)
            open_lists = open_lists[(width > 0) & (end[open_lists] < self._end)]
            if not len(open_lists):
                break
        end[several] = np.where(self._octets[end[several]] == op.APPENDS, end[several] + 1, 0)
        return end

    def _index(self, first: Ints, last: Ints, indices: IndexByValue) -> Ints:
        """For each pair of positions, return the index that ``indices`` assigns to the bytes between them."""
        if not len(first):
            return np.zeros(0, np.int64)
        size = last - first
        short = size <= _WORD
        word = self._words[first] << (8 * np.maximum(_WORD - size, 0)).astype(np.uint64)
        # most short strings are equal to the previous string
        differs = np.ones(len(first), np.bool_)
        differs[1:] = ~short[1:] | (size[1:] != size[:-1]) | (word[1:] != word[:-1])
        first, size = first[differs], size[differs]
        distinct: Ints = np.empty(len(first), np.int64)
        order = stable_order(size)
        for rows in np.split(order, np.flatnonzero(np.diff(size[order])) + 1):
            length = max(int(size[rows[0]]), 1)  # 1 for invalid values, which are not used
            overlapping = np.ndarray((len(self._data) - length + 1,), f"V{length}", self._data, strides=(1,))
            strings = overlapping[first[rows]].tolist()
            distinct[rows] = np.fromiter(map(indices.__getitem__, strings), np.int64, len(rows))
        result: Ints = distinct[np.cumsum(differs) - 1]
        return result
