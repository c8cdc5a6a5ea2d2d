"""Lanes at work: many places of a pickle, read forward together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot import opcodes as op
from ipygpumem.snapshot.interning import gathered, intern

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["MARGIN", "MOST_MEMO", "Front"]

MARGIN = 32
"""Bytes at the end of the data that no lane enters, so that each may read some bytes ahead unseen."""

MOST_MEMO = (1 << 31) - 1
"""Columns hold memo indices as int32."""

_WORD = 8
_SHORT_REFERENCE = 2
_MOST_DEAD = 1 / 8  # of the lanes; to drop the dead ones costs more than to read on for a few
_LONGEST_LIST = 1000  # references; an entry with more goes to the machine

# By opcode: bytes of the argument (0: the opcode is none of the kind)
_INT_WIDTH = np.zeros(256, np.int64)
_INT_WIDTH[[op.BININT1, op.BININT2, op.BININT]] = 1, 2, 4
_REF_WIDTH = np.zeros(256, np.int64)
_REF_WIDTH[[op.BINGET, op.LONG_BINGET]] = 1, 4
_BYTE = np.uint64(8)
_LOWEST = np.uint64(0xFF)


class Front:
    """The lanes that are still in the race, and where each of them is.

    Attributes:
        start: Where each lane began.
        at: Where it is.
        memos: How many objects its entry has put into the memo.
        values: By key, what it read, as in `Field`.
        made: By key, how many objects the entry had put into the memo before.
    """

    def __init__(self, data: bytes, start: Ints, budget: int) -> None:
        self._data = data
        # No honest lanes share bytes, so that all their lists together have fewer references than bytes to read. This
        # stops a file that lets each lane begin inside the list of the one before.
        self._budget = budget
        self._end = len(data) - MARGIN
        self._octets = np.frombuffer(data, np.uint8)
        # the eight bytes at every position; numpy copies what it takes, so that nothing need be aligned
        self._words: Words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
        self.start = start
        self.at = start + 3
        self._alive = np.ones(len(start), np.bool_)
        self.memos = np.ones(len(start), np.int16)
        self.values: dict[str, NDArray[Any]] = {}
        self.made: dict[str, NDArray[np.int16]] = {}

    def _keep(self, good: NDArray[np.bool_]) -> None:
        """All other lanes are dead. They read on, whatever they find, until it pays to drop them."""
        self._alive &= good
        self._alive &= self.at <= self._end
        dead = len(self._alive) - int(np.count_nonzero(self._alive))
        if dead > _MOST_DEAD * len(self._alive):
            self._drop()
        elif dead:
            self.at = np.minimum(self.at, self._end)

    def _drop(self) -> None:
        good = self._alive
        self.start, self.at, self.memos = self.start[good], self.at[good], self.memos[good]
        self.values = {key: column[good] for key, column in self.values.items()}
        self.made = {key: column[good] for key, column in self.made.items()}
        self._alive = np.ones(len(self.at), np.bool_)

    def read(self, kind: str, key: str, reference: bytes, unique: dict[bytes, int]) -> None:
        """A key and its value come next: a ``number``, ``text``, ``list`` or ``pair``, or the reference to one."""
        words = self._key(reference)
        if kind == "number":
            self._read_int(key, words)
        elif kind == "text":
            self._read_text(key, words, unique)
        elif kind == "list":
            self._read_list(key, words, unique)
        else:
            self._read_pair(key, words, unique)

    def close(self) -> None:
        """The entry ends."""
        good = self._octets[self.at] == op.SETITEMS
        self.at = self.at + 1
        self._keep(good)
        self._drop()

    def _key(self, reference: bytes) -> Words:
        """A reference to a key comes next. The front moves behind it.

        Returns:
            What follows it, six bytes of it at least.
        """
        words = self._words[self.at]
        mask = np.uint64((1 << 8 * len(reference)) - 1)
        good = (words & mask) == np.uint64(int.from_bytes(reference, "little"))
        self.at = self.at + len(reference)
        self._keep(good)
        if len(reference) == _SHORT_REFERENCE and len(words) == len(self.at):
            return words >> np.uint64(8 * _SHORT_REFERENCE)
        return self._words[self.at]

    def _int(self, words: Words) -> tuple[Ints, NDArray[np.bool_]]:
        """Numbers at the front, where six bytes are known; the front moves on."""
        code = (words & _LOWEST).astype(np.intp)
        one = int(code[0]) if len(code) else 0
        if one == op.LONG1 and (code == one).all():
            value, width = self._long(self.at)
        elif one == op.BININT1 and (code == one).all():
            value, width = ((words >> _BYTE) & _LOWEST).view(np.int64), np.ones(len(code), np.int64)
        else:
            width = _INT_WIDTH[code]
            shift = (64 - 8 * width).astype(np.uint64)
            raised = (words >> _BYTE) << shift
            value = np.where(
                code == op.BININT, raised.view(np.int64) >> shift.view(np.int64), (raised >> shift).view(np.int64)
            )
            long = np.flatnonzero(code == op.LONG1)
            if len(long):
                value[long], width[long] = self._long(self.at[long])
        self.at = np.minimum(self.at + 1 + width, self._end + 1)
        return value, width > 0

    def _long(self, at: Ints) -> tuple[Ints, Ints]:
        """Numbers with their length in front, and the bytes that follow the opcode (0: more than a column can hold)."""
        size = self._octets[at + 1].astype(np.int64)
        sound = (size > 0) & (size <= _WORD)
        rest = np.where(sound, 64 - 8 * size, 0)
        raised = self._words[at + 2] << rest.view(np.uint64)
        return raised.view(np.int64) >> rest, np.where(sound, size + 1, 0)

    def _read_int(self, key: str, words: Words) -> None:
        value, good = self._int(words)
        self.values[key] = value
        self._keep(good)

    def _read_pair(self, key: str, words: Words, unique: dict[bytes, int]) -> None:
        """A tuple of two numbers."""
        begin = self.at
        value, step = self._reference(words)
        _, first = self._int(words)
        _, second = self._int(self._words[self.at])
        end = self.at
        inline = first & second & (self._octets[end] == op.TUPLE2) & (self._octets[end + 1] == op.MEMOIZE)
        inline &= self._alive
        value = np.where(inline, -1 - self._intern(begin, end, unique, inline), value)
        self.values[key], self.made[key] = value.astype(np.int32), self.memos
        self.memos = self.memos + inline
        self.at = np.where(inline, end + 2, begin + step)
        self._keep(inline | (step > 1))

    @staticmethod
    def _reference(words: Words) -> tuple[Ints, Ints]:
        """Memo index at the front, and the bytes that the reference takes (1: it is none). The front stays."""
        width = _REF_WIDTH[(words & _LOWEST).astype(np.intp)]
        shift = (64 - 8 * width).astype(np.uint64)
        value = ((words >> _BYTE) << shift) >> shift
        # a larger index would wrap around to what means "stands in the entry itself"; the machine refuses it
        width[value > MOST_MEMO] = 0
        return value.astype(np.int64), 1 + width

    def _read_text(self, key: str, words: Words, unique: dict[bytes, int]) -> None:
        value, step = self._reference(words)
        good = step > 1
        inline = np.flatnonzero(~good & self._alive)
        if len(inline):
            at = self.at[inline]
            size = self._octets[at + 1].astype(np.int64)
            after = np.minimum(at + 2 + size, self._end)
            sound = (self._octets[at] == op.SHORT_BINUNICODE) & (self._octets[after] == op.MEMOIZE)
            good[inline] = sound
            step[inline] = 3 + size
            value[inline] = -1 - self._intern(at + 2, at + 2 + size, unique, sound)
        self.values[key], self.made[key] = value.astype(np.int32), self.memos
        self.memos = self.memos + (value < 0)
        self.at = self.at + step
        self._keep(good)

    def _read_list(self, key: str, words: Words, unique: dict[bytes, int]) -> None:
        """A list of references."""
        value, step = self._reference(words)
        good = step > 1
        at = self.at + step
        inline = np.flatnonzero(~good & self._alive)
        if len(inline):
            front = self.at[inline]
            sound = (self._octets[front] == op.EMPTY_LIST) & (self._octets[front + 1] == op.MEMOIZE)
            first, last, after, ended = self._items(front + 2)
            good[inline] = sound & ended
            at[inline] = after
            value[inline] = -1 - self._intern(first, last, unique, good[inline])
        self.values[key], self.made[key] = value.astype(np.int32), self.memos
        self.memos = self.memos + (value < 0)
        self.at = at
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
        budget = self._budget
        for _ in range(_LONGEST_LIST):
            budget -= len(running)
            if budget < 0:
                break
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
        where = np.flatnonzero(sound)
        if len(where):
            first, last = first[where], last[where]
            number[where] = intern(self._data, first, last, gathered(self._words, first, last), unique)
        return number
