"""Reads the trace entries that start at given positions of a pickle field by field, all entries at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.byte_strings import intern, words_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Words = NDArray[np.uint64]
    Strings = dict[bytes, int]

__all__ = ["MARGIN", "MAX_MEMO_INDEX", "NONE", "FieldReader"]

MARGIN = 32
"""Bytes at the end of the data that no entry may reach, so that reading a few bytes ahead needs no check."""

MAX_MEMO_INDEX = (1 << 31) - 1
"""Columns hold memo indices as int32."""

NONE = -1 << 31
"""Stands for None in these columns."""

_WORD = 8
_SHORT_REFERENCE = 2
_MAX_INVALID_SHARE = 1 / 8  # removing rows costs more than reading a few invalid ones to the end
_MAX_LIST_LENGTH = 1000  # references; the pickle reader takes entries with longer lists
_BYTE = np.uint64(8)
_LOW_BYTE = np.uint64(0xFF)

# By opcode: bytes of the operand, 0 for other opcodes
_INT_WIDTH = np.zeros(256, np.int64)
_INT_WIDTH[[op.BININT1, op.BININT2, op.BININT]] = 1, 2, 4
_REFERENCE_WIDTH = np.zeros(256, np.int64)
_REFERENCE_WIDTH[[op.BINGET, op.LONG_BINGET]] = 1, 4
# By opcode: bytes of a value of fixed length, the opcode included
_FIXED_LENGTH = np.zeros(256, np.int64)
_FIXED_LENGTH[[op.NONE, op.NEWTRUE, op.NEWFALSE, op.EMPTY_TUPLE, op.BINFLOAT]] = 1, 1, 1, 1, 9
_FIXED_LENGTH += np.where(_INT_WIDTH > 0, 1 + _INT_WIDTH, 0) + np.where(_REFERENCE_WIDTH > 0, 1 + _REFERENCE_WIDTH, 0)


class FieldReader:
    """The entries that could be read so far, and the position reached in each.

    Attributes:
        start: Where each entry starts.
        position: Where the next field starts.
        memo_count: How many objects the entry has added to the memo.
        values: The values read, by key, as in `FieldColumn`.
        memo_offsets: By key, how many objects the entry had added before the value; -1 if the value is not memoized.
    """

    def __init__(self, data: bytes, start: Ints, max_references: int) -> None:
        self._data = data
        # Entries of a valid file share no bytes, so all lists together have fewer references than bytes to read. The
        # limit stops a file in which every entry starts inside the list of the one before.
        self._max_references = max_references
        self._end = len(data) - MARGIN
        self._octets = np.frombuffer(data, np.uint8)
        # the eight bytes at every position; fancy indexing copies them, so they need not be aligned
        self._words: Words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
        self._valid = np.ones(len(start), np.bool_)
        self.start = start
        # pickletools.optimize omits MEMOIZE for objects that nothing refers to
        self.memo_count = (self._octets[start + 1] == op.MEMOIZE).astype(np.int16)
        self.position: Ints = start + 2 + self.memo_count
        self.values: dict[str, NDArray[Any]] = {}
        self.memo_offsets: dict[str, NDArray[np.int16]] = {}

    def read(self, kind: str, key: str, reference: bytes, strings: Strings) -> None:
        """Read a key and its value in every entry; entries in which they differ become invalid.

        Args:
            kind: ``number``, ``text``, ``list`` or ``pair`` (each may be None), or ``any`` to skip the value.
            key: The key.
            reference: The bytes that refer to the key.
            strings: Numbers of the values that are written inside entries; new ones are added.
        """
        words = self._read_key(reference)
        if kind == "number":
            self.values[key], valid, position = self._numbers(words, self.position)
            self.position = np.minimum(position, self._end + 1)
            self._retain(valid)
        elif kind == "any":
            self._skip(words)
        else:
            self._read_object(kind, key, words, strings)

    def close(self) -> None:
        """Read the end of every entry, and remove all invalid ones."""
        valid = self._octets[self.position] == op.SETITEMS
        self.position = self.position + 1
        self._retain(valid)
        self._remove_invalid()

    def _retain(self, valid: Flags) -> None:
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

    def _read_key(self, reference: bytes) -> Words:
        """Read a key and return the bytes that follow it, at least six of them."""
        words = self._words[self.position]
        mask = np.uint64((1 << 8 * len(reference)) - 1)
        valid = (words & mask) == np.uint64(int.from_bytes(reference, "little"))
        self.position = self.position + len(reference)
        self._retain(valid)
        if len(reference) == _SHORT_REFERENCE and len(words) == len(self.position):
            return words >> np.uint64(8 * _SHORT_REFERENCE)
        return self._words[self.position]

    def _numbers(self, words: Words, position: Ints) -> tuple[Ints, Flags, Ints]:
        """Decode integers. Returns the values, which of them are valid, and where they end."""
        code = (words & _LOW_BYTE).astype(np.intp)
        first = int(code[0]) if len(code) else 0
        if first == op.LONG1 and (code == first).all():
            value, width = self._long_numbers(position)
        elif first == op.BININT1 and (code == first).all():
            value, width = ((words >> _BYTE) & _LOW_BYTE).view(np.int64), np.ones(len(code), np.int64)
        else:
            width = _INT_WIDTH[code]
            shift = (64 - 8 * width).astype(np.uint64)
            shifted = (words >> _BYTE) << shift
            signed, unsigned = shifted.view(np.int64) >> shift.view(np.int64), (shifted >> shift).view(np.int64)
            value = np.where(code == op.BININT, signed, unsigned)
            long = np.flatnonzero(code == op.LONG1)
            if len(long):
                value[long], width[long] = self._long_numbers(position[long])
        return value, width > 0, position + 1 + width

    def _long_numbers(self, position: Ints) -> tuple[Ints, Ints]:
        """Decode LONG1 values: the values, and the bytes of their operands (0 if they do not fit into 64 bits)."""
        size = self._octets[position + 1].astype(np.int64)
        fits = (size > 0) & (size <= _WORD)
        spare = np.where(fits, 64 - 8 * size, 0)
        shifted = self._words[position + 2] << spare.view(np.uint64)
        return shifted.view(np.int64) >> spare, np.where(fits, size + 1, 0)

    def _read_object(self, kind: str, key: str, words: Words, strings: Strings) -> None:
        """Read a text, list or pair: a memo index, None, or the object itself."""
        width = _REFERENCE_WIDTH[(words & _LOW_BYTE).astype(np.intp)]
        shift = (64 - 8 * width).astype(np.uint64)
        index = ((words >> _BYTE) << shift) >> shift
        # a larger index would become negative, which means "written inside the entry"; the pickle reader refuses it
        width[index > MAX_MEMO_INDEX] = 0
        value = index.astype(np.int64)
        valid, length = width > 0, 1 + width
        memoized = np.zeros(len(valid), np.bool_)
        rest = np.flatnonzero(~valid & self._valid)
        if len(rest):
            position = self.position[rest]
            first, last, after, matched, memoized[rest] = self._find(kind, position)
            value[rest] = np.where(matched, -1 - self._intern(first, last, strings, matched), NONE)
            valid[rest] = matched | (self._octets[position] == op.NONE)
            length[rest] = np.where(matched, after - position, 1)
        self.values[key] = value.astype(np.int32)
        self.memo_offsets[key] = np.where(memoized | (value >= 0), self.memo_count, -1).astype(np.int16)
        self.memo_count = self.memo_count + memoized
        self.position = self.position + length
        self._retain(valid)

    def _find(self, kind: str, position: Ints) -> tuple[Ints, Ints, Ints, Flags, Flags]:
        """Find objects of a kind.

        Returns:
            Where their contents start and end, where the next field starts, which positions hold such an object, and
            which of these are memoized.
        """
        if kind == "list":
            memoized = self._octets[position + 1] == op.MEMOIZE
            first, last, after, matched = self._references(position + 1 + memoized)
            matched &= self._octets[position] == op.EMPTY_LIST
            return first, last, after, matched, matched & memoized
        if kind == "text":
            first, last = position + 2, position + 2 + self._octets[position + 1]
            matched = (last <= self._end) & (self._octets[position] == op.SHORT_BINUNICODE)
            after = last = np.minimum(last, self._end)
        else:
            first = position
            last, matched = self._pairs(position)
            after = last + 1
        memoized = matched & (self._octets[after] == op.MEMOIZE)
        return first, last, after + memoized, matched, memoized

    def _pairs(self, position: Ints) -> tuple[Ints, Flags]:
        """Where two integers end, and whether a TUPLE2 follows them."""
        _, first, position = self._numbers(self._words[position], position)
        position = np.minimum(position, self._end)
        _, second, position = self._numbers(self._words[position], position)
        position = np.minimum(position, self._end)
        return position, first & second & (self._octets[position] == op.TUPLE2)

    def _references(self, position: Ints) -> tuple[Ints, Ints, Ints, Flags]:
        """Find the references in lists: where they start and end, where the list ends, and whether it is valid."""
        position = np.minimum(position, self._end)
        several = self._octets[position] == op.MARK
        first = position + several
        last = first.copy()
        valid = np.ones(len(position), np.bool_)
        # one item is a reference and APPEND. Anything else than that or MARK is the next key: the list is empty
        after_item = np.minimum(position + 1 + _REFERENCE_WIDTH[self._octets[position]], self._end)
        single = ~several & (after_item > position + 1) & (self._octets[after_item] == op.APPEND)
        last[single] = after_item[single]
        open_lists = np.flatnonzero(several)
        remaining = self._max_references
        for _ in range(_MAX_LIST_LENGTH):
            remaining -= len(open_lists)
            if remaining < 0:
                break
            width = _REFERENCE_WIDTH[self._octets[last[open_lists]]]
            last[open_lists] += np.where(width > 0, width + 1, 0)
            open_lists = open_lists[(width > 0) & (last[open_lists] < self._end)]
            if not len(open_lists):
                break
        valid[several] = self._octets[last[several]] == op.APPENDS
        return first, last, last + (several | single), valid

    def _skip(self, words: Words) -> None:
        """Skip a value of any kind."""
        position = self.position
        code = (words & _LOW_BYTE).astype(np.intp)
        length = np.where(code == op.LONG1, 2 + self._octets[position + 1].astype(np.int64), _FIXED_LENGTH[code])
        memoized = np.zeros(len(position), np.bool_)
        # an integer is followed by the next key or the end; two integers in a row are a tuple
        following = self._octets[np.minimum(position + length, self._end)]
        pairs = (_INT_WIDTH[code] > 0) & (_INT_WIDTH[following] > 0)
        for kind, flags in (("text", code == op.SHORT_BINUNICODE), ("list", code == op.EMPTY_LIST), ("pair", pairs)):
            rows = np.flatnonzero(flags & self._valid)
            if len(rows):
                _, _, after, matched, memoized[rows] = self._find(kind, position[rows])
                length[rows] = np.where(matched, after - position[rows], 0)
        self.memo_count = self.memo_count + memoized
        self.position = position + length
        self._retain(length > 0)

    def _intern(self, first: Ints, last: Ints, strings: Strings, matched: Flags) -> Ints:
        number = np.zeros(len(first), np.int64)
        rows = np.flatnonzero(matched)
        if len(rows):
            first, last = first[rows], last[rows]
            number[rows] = intern(self._data, first, last, words_of(self._words, first, last), strings)
        return number
