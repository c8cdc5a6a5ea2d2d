"""Alike trace entries of a pickle, read side by side with numpy instead of opcode by opcode.

Half a million trace entries are so many dicts with the same keys in the same order: ``}``, ``MEMOIZE``, ``MARK``,
then a reference to each key and a value of one to some dozen bytes, then ``SETITEMS``. Wherever the three opening bytes
stand a lane begins. All lanes advance together, field by field, and one that meets anything unforeseen is dropped. A
lane says only "*if* an entry begins here, it reads so"; it counts when the machine, which reads in order, comes to that
position. So nothing is guessed, and a hostile file gains nothing but a slower read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot import opcodes as op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.framing import Tape

    Ints = NDArray[np.int64]

__all__ = ["Field", "Lanes", "find_lanes"]

_CHUNK = 1 << 20
_WORD = 8
_LONGEST_LIST = 1000  # references; an entry with more goes to the machine

_TEXTS = frozenset({"action", "compile_context", "user_metadata", "internal_metadata"})
_LISTS = frozenset({"frames", "forward_frames"})
_PAIRS = frozenset({"pool_id"})

# By opcode: bytes of the argument (0: the opcode is none of the kind)
_INT_WIDTH = np.zeros(256, np.int64)
_INT_WIDTH[[op.BININT1, op.BININT2, op.BININT]] = 1, 2, 4
_REF_WIDTH = np.zeros(256, np.int64)
_REF_WIDTH[[op.BINGET, op.LONG_BINGET]] = 1, 4


@dataclass(slots=True, eq=False)
class Field:
    """One key's values in all lanes.

    Attributes:
        value: A number as it is. For a text or list the memo index of the value, or -1 - k where the value stands in
            the entry itself, as ``unique[k]``. Of a pool id the first number.
        second: Of a pool id the second number; else the same as ``value``.
        made: How many objects the entry put into the memo before this value.
        unique: Bytes of the values that stand in the entries: of a text in UTF-8, of a list the references in it.
    """

    value: Ints
    second: Ints
    made: Ints
    unique: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """All places where an entry with certain keys can be read.

    Attributes:
        start: Where an entry begins, ascending.
        end: Where it ends.
        memos: How many objects it puts into the memo.
        stop: For each lane the number of the lane at which the chain of entries, one at the heels of the other, ends.
        heads: Number of the first lane of each such chain, by its position.
        fields: The values by key.
    """

    start: Ints
    end: Ints
    memos: Ints
    stop: Ints
    heads: dict[int, int]
    fields: dict[str, Field]


def find_lanes(tape: Tape, begin: int, keys: dict[str, bytes]) -> Lanes:
    """Find all entries from ``begin`` on that have these keys, each given with the bytes that refer to it."""
    front = _Front(tape, _openings(tape, begin))
    for key, reference in keys.items():
        front.expect(reference)
        if key in _TEXTS:
            front.read_text(key)
        elif key in _LISTS:
            front.read_list(key)
        elif key in _PAIRS:
            front.read_pair(key)
        else:
            front.read_int(key)
    front.expect(bytes([op.SETITEMS]))
    return front.lanes()


def _openings(tape: Tape, begin: int) -> Ints:
    octets = np.frombuffer(tape.data, np.uint8)
    found = []
    for start in range(begin, tape.end, _CHUNK):
        part = octets[start : min(start + _CHUNK, tape.end) + 2]
        found.append(
            np.flatnonzero((part[:-2] == op.EMPTY_DICT) & (part[1:-1] == op.MEMOIZE) & (part[2:] == op.MARK)) + start
        )
    return np.concatenate(found) if found else np.zeros(0, np.int64)


class _Front:
    """The lanes that are still in the race, and where each of them is."""

    def __init__(self, tape: Tape, start: Ints) -> None:
        self._data = tape.data
        self._end = tape.end
        self._octets = np.frombuffer(tape.data, np.uint8)
        # the eight bytes at every position; numpy copies what it takes, so that nothing need be aligned
        self._words: NDArray[np.uint64] = np.ndarray((len(tape.data) - _WORD + 1,), "<u8", tape.data, strides=(1,))
        self._start = start
        self._at = start + 3
        self._memos = np.ones_like(start)
        self._fields: dict[str, Field] = {}

    def _keep(self, good: NDArray[np.bool_]) -> None:
        """Drop all other lanes."""
        good &= self._at <= self._end
        if good.all():
            return
        self._start, self._at, self._memos = self._start[good], self._at[good], self._memos[good]
        for field in self._fields.values():
            field.value, field.second, field.made = field.value[good], field.second[good], field.made[good]

    def expect(self, octets: bytes) -> None:
        """These very bytes come next."""
        good = np.ones(len(self._at), np.bool_)
        for ahead, octet in enumerate(octets):
            good &= self._octets[self._at + ahead] == octet
        self._at = self._at + len(octets)
        self._keep(good)

    def _int(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Numbers at the front; the front moves on."""
        words = self._words[self._at]
        code = (words & np.uint64(0xFF)).astype(np.intp)
        width = _INT_WIDTH[code]
        shift = (64 - 8 * width).astype(np.uint64)
        raised = (words >> np.uint64(8)) << shift
        value = np.where(
            code == op.BININT, raised.view(np.int64) >> shift.view(np.int64), (raised >> shift).view(np.int64)
        )
        long = np.flatnonzero(code == op.LONG1)
        if len(long):
            size = self._octets[self._at[long] + 1].astype(np.int64)
            sound = (size > 0) & (size <= _WORD)
            rest = np.where(sound, 64 - 8 * size, 0)
            raised = self._words[self._at[long] + 2] << rest.view(np.uint64)
            value[long] = raised.view(np.int64) >> rest
            width[long] = np.where(sound, size + 1, 0)
        self._at = np.minimum(self._at + 1 + width, self._end + 1)
        return value, width > 0

    def read_int(self, key: str) -> None:
        """A number comes next."""
        value, good = self._int()
        self._fields[key] = Field(value, value, self._memos)
        self._keep(good)

    def read_pair(self, key: str) -> None:
        """A tuple of two numbers comes next."""
        first, good = self._int()
        second, also = self._int()
        good &= also & (self._octets[self._at] == op.TUPLE2) & (self._octets[self._at + 1] == op.MEMOIZE)
        self._fields[key] = Field(first, second, self._memos)
        self._memos = self._memos + 1
        self._at = self._at + 2
        self._keep(good)

    def _reference(self) -> tuple[Ints, Ints]:
        """Memo index at the front, and the bytes that the reference takes (1: it is none). The front stays."""
        words = self._words[self._at]
        width = _REF_WIDTH[(words & np.uint64(0xFF)).astype(np.intp)]
        shift = (64 - 8 * width).astype(np.uint64)
        value = ((words >> np.uint64(8)) << shift) >> shift
        return value.astype(np.int64), 1 + width

    def read_text(self, key: str) -> None:
        """A text comes next, or the reference to one."""
        value, step = self._reference()
        good = step > 1
        inline = np.flatnonzero(~good)
        unique: dict[bytes, int] = {}
        if len(inline):
            at = self._at[inline]
            size = self._octets[at + 1].astype(np.int64)
            after = np.minimum(at + 2 + size, self._end)
            sound = (self._octets[at] == op.SHORT_BINUNICODE) & (self._octets[after] == op.MEMOIZE)
            good[inline] = sound
            step[inline] = 3 + size
            value[inline] = -1 - self._intern(at + 2, at + 2 + size, unique, sound)
        self._fields[key] = Field(value, value, self._memos, tuple(unique))
        self._memos = self._memos + (value < 0)
        self._at = self._at + step
        self._keep(good)

    def read_list(self, key: str) -> None:
        """A list of references comes next, or the reference to a list."""
        value, step = self._reference()
        good = step > 1
        at = self._at + step
        inline = np.flatnonzero(~good)
        unique: dict[bytes, int] = {}
        if len(inline):
            front = self._at[inline]
            sound = (self._octets[front] == op.EMPTY_LIST) & (self._octets[front + 1] == op.MEMOIZE)
            first, last, after, ended = self._items(front + 2)
            good[inline] = sound & ended
            at[inline] = after
            value[inline] = -1 - self._intern(first, last, unique, good[inline])
        self._fields[key] = Field(value, value, self._memos, tuple(unique))
        self._memos = self._memos + (value < 0)
        self._at = at
        self._keep(good)

    def _items(self, at: Ints) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
        """References in lists: begin and end of them, where the list ends, and whether it does so as foreseen."""
        at = np.minimum(at, self._end)
        many = self._octets[at] == op.MARK
        first = at + many
        last = first.copy()
        ended = np.ones(len(at), np.bool_)
        # one item: its reference, then APPEND. Anything else but a mark: the list is empty and the next key follows
        single = np.minimum(at + 1 + _REF_WIDTH[self._octets[at]], self._end)
        one = ~many & (single > at + 1) & (self._octets[single] == op.APPEND)
        last[one] = single[one]
        running = np.flatnonzero(many)
        for _ in range(_LONGEST_LIST):
            width = _REF_WIDTH[self._octets[last[running]]]
            going = width > 0
            last[running] += np.where(going, width + 1, 0)
            running = running[going & (last[running] < self._end)]
            if not len(running):
                break
        ended[many] = self._octets[last[many]] == op.APPENDS
        return first, last, last + (many | one), ended

    def _intern(self, first: Ints, last: Ints, unique: dict[bytes, int], sound: NDArray[np.bool_]) -> Ints:
        """Number the byte strings between two positions, equal ones alike; add new ones to ``unique``."""
        number = np.zeros(len(first), np.int64)
        size = last - first
        short = sound & (size < _WORD)
        if short.any():
            # up to seven bytes: text and length make one number
            bits = (8 * size[short]).astype(np.uint64)
            words = self._words[first[short]] & ((np.uint64(1) << bits) - np.uint64(1))
            _, where, which = np.unique(words | (bits << np.uint64(53)), return_index=True, return_inverse=True)
            begin, end = first[short][where], last[short][where]
            known = [unique.setdefault(self._data[a:b], len(unique)) for a, b in zip(begin, end, strict=True)]
            number[short] = np.asarray(known, np.int64)[which]
        long = np.flatnonzero(sound & (size >= _WORD))
        spans = map(slice, first[long].tolist(), last[long].tolist())
        data = self._data
        number[long] = [unique.setdefault(data[span], len(unique)) for span in spans]
        return number

    def lanes(self) -> Lanes:
        """What came through."""
        chained = self._start[1:] == self._at[:-1]
        breaks = np.flatnonzero(~chained) + 1
        count = len(self._start)
        firsts = np.concatenate([np.zeros(min(count, 1), np.int64), breaks])
        stops = np.concatenate([breaks, np.full(min(count, 1), count, np.int64)])
        stop = np.repeat(stops, stops - firsts)
        heads = dict(zip(self._start[firsts].tolist(), firsts.tolist(), strict=True))
        return Lanes(self._start, self._at, self._memos, stop, heads, self._fields)
