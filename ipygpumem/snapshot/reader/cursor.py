"""Lanes at work: many places of a pickle, read forward together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.byte_strings import gathered, intern

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["MARGIN", "MOST_MEMO", "NOTHING", "Front"]

MARGIN = 32
"""Bytes at the end of the data that no lane enters, so that each may read some bytes ahead unseen."""

MOST_MEMO = (1 << 31) - 1
"""Columns hold memo indices as int32."""

NOTHING = -1 << 31
"""Stands for None in these columns."""

_WORD = 8
_SHORT_REFERENCE = 2
_MOST_DEAD = 1 / 8  # of the lanes; to drop the dead ones costs more than to read on for a few
_LONGEST_LIST = 1000  # references; an entry with more goes to the machine

# By opcode: bytes of the argument (0: the opcode is none of the kind)
_INT_WIDTH = np.zeros(256, np.int64)
_INT_WIDTH[[op.BININT1, op.BININT2, op.BININT]] = 1, 2, 4
_REF_WIDTH = np.zeros(256, np.int64)
_REF_WIDTH[[op.BINGET, op.LONG_BINGET]] = 1, 4
# bytes of whatever always takes as many, opcode included
_STEP = np.zeros(256, np.int64)
_STEP[[op.NONE, op.NEWTRUE, op.NEWFALSE, op.EMPTY_TUPLE, op.BINFLOAT]] = 1, 1, 1, 1, 9
_STEP += np.where(_INT_WIDTH > 0, 1 + _INT_WIDTH, 0) + np.where(_REF_WIDTH > 0, 1 + _REF_WIDTH, 0)
_BYTE = np.uint64(8)
_LOWEST = np.uint64(0xFF)


class Front:
    """The lanes that are still in the race, and where each of them is.

    Attributes:
        start: Where each lane began.
        at: Where it is.
        memos: How many objects its entry has put into the memo.
        values: By key, what it read, as in `Field`.
        made: By key, how many objects the entry had put into the memo before; -1 of a value that is not put there.
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
        self._alive = np.ones(len(start), np.bool_)
        # pickletools.optimize leaves out what nobody refers to
        self.memos = (self._octets[start + 1] == op.MEMOIZE).astype(np.int16)
        self.at: Ints = start + 2 + self.memos
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
        """A key and its value come next: a ``number``, ``text``, ``list`` or ``pair``, the reference to one, or None.

        Or ``any`` of these, of which nobody wants to know more.
        """
        words = self._key(reference)
        if kind == "number":
            self._read_int(key, words)
        elif kind == "text":
            self._read_text(key, words, unique)
        elif kind == "list":
            self._read_list(key, words, unique)
        elif kind == "pair":
            self._read_pair(key, words, unique)
        else:
            self._pass(words)

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

    def _int(self, words: Words, at: Ints) -> tuple[Ints, NDArray[np.bool_], Ints]:
        """Numbers at places of which six bytes are known; whether they are some, and where they end."""
        code = (words & _LOWEST).astype(np.intp)
        one = int(code[0]) if len(code) else 0
        if one == op.LONG1 and (code == one).all():
            value, width = self._long(at)
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
                value[long], width[long] = self._long(at[long])
        return value, width > 0, at + 1 + width

    def _long(self, at: Ints) -> tuple[Ints, Ints]:
        """Numbers with their length in front, and the bytes that follow the opcode (0: more than a column can hold)."""
        size = self._octets[at + 1].astype(np.int64)
        sound = (size > 0) & (size <= _WORD)
        rest = np.where(sound, 64 - 8 * size, 0)
        raised = self._words[at + 2] << rest.view(np.uint64)
        return raised.view(np.int64) >> rest, np.where(sound, size + 1, 0)

    def _read_int(self, key: str, words: Words) -> None:
        self.values[key], good, at = self._int(words, self.at)
        self.at = np.minimum(at, self._end + 1)
        self._keep(good)

    def _read_pair(self, key: str, words: Words, unique: dict[bytes, int]) -> None:
        """A tuple of two numbers."""
        value, step = self._reference(words)
        good = step > 1
        rest = np.flatnonzero(~good & self._alive)
        memoed = np.zeros(len(good), np.bool_)
        if len(rest):
            end, inline = self._pair(self.at[rest])
            number = -1 - self._intern(self.at[rest], end, unique, inline)
            nothing = self._octets[self.at[rest]] == op.NONE
            value[rest] = np.where(inline, number, NOTHING)
            good[rest] = inline | nothing
            memoed[rest] = inline & (self._octets[end + 1] == op.MEMOIZE)
            step[rest] = np.where(inline, end + 1 + memoed[rest] - self.at[rest], 1)
        self._advance(key, value, step, memoed, good)

    def _pair(self, at: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where two numbers end, and whether there are two and a tuple of them."""
        _, first, at = self._int(self._words[at], at)
        _, second, at = self._int(self._words[np.minimum(at, self._end)], np.minimum(at, self._end))
        at = np.minimum(at, self._end)
        return at, first & second & (self._octets[at] == op.TUPLE2)

    def _advance(self, key: str, value: Ints, step: Ints, memoed: NDArray[np.bool_], good: NDArray[np.bool_]) -> None:
        """A value was read; the front moves behind it."""
        self.values[key] = value.astype(np.int32)
        self.made[key] = np.where(memoed | (value >= 0), self.memos, -1).astype(np.int16)
        self.memos = self.memos + memoed
        self.at = self.at + step
        self._keep(good)

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
        rest = np.flatnonzero(~good & self._alive)
        memoed = np.zeros(len(good), np.bool_)
        if len(rest):
            at = self.at[rest]
            end, sound = self._text(at)
            nothing = self._octets[at] == op.NONE
            value[rest] = np.where(sound, -1 - self._intern(at + 2, end, unique, sound), NOTHING)
            good[rest] = sound | nothing
            memoed[rest] = sound & (self._octets[end] == op.MEMOIZE)
            step[rest] = np.where(sound, end - at, 1) + memoed[rest]
        self._advance(key, value, step, memoed, good)

    def _text(self, at: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where a short text ends, and whether there is one."""
        end, sound = self._sized(at)
        return end, sound & (self._octets[at] == op.SHORT_BINUNICODE)

    def _sized(self, at: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where that ends which has its length in one byte, and whether it does so before the end of the data."""
        end = at + 2 + self._octets[at + 1]
        return np.minimum(end, self._end), end <= self._end

    def _read_list(self, key: str, words: Words, unique: dict[bytes, int]) -> None:
        """A list of references."""
        value, step = self._reference(words)
        good = step > 1
        rest = np.flatnonzero(~good & self._alive)
        memoed = np.zeros(len(good), np.bool_)
        if len(rest):
            at = self.at[rest]
            first, last, after, sound, memo = self._list(at)
            nothing = self._octets[at] == op.NONE
            value[rest] = np.where(sound, -1 - self._intern(first, last, unique, sound), NOTHING)
            good[rest] = sound | nothing
            memoed[rest] = sound & memo
            step[rest] = np.where(sound, after - at, 1)
        self._advance(key, value, step, memoed, good)

    def _list(self, at: Ints) -> tuple[Ints, Ints, Ints, NDArray[np.bool_], NDArray[np.bool_]]:
        """A list: begin and end of its references, where it ends, whether there is one, and whether it is memoized."""
        memo = self._octets[at + 1] == op.MEMOIZE
        first, last, after, ended = self._items(at + 1 + memo)
        return first, last, after, ended & (self._octets[at] == op.EMPTY_LIST), memo

    def _pass(self, words: Words) -> None:
        """A value of which nobody wants to know more than where it ends."""
        at = self.at
        code = (words & _LOWEST).astype(np.intp)
        step = _STEP[code]
        memoed = np.zeros(len(at), np.bool_)
        for opcode in (op.SHORT_BINUNICODE, op.LONG1, op.EMPTY_LIST):
            some = np.flatnonzero((code == opcode) & self._alive)
            if not len(some):
                continue
            if opcode == op.EMPTY_LIST:
                _, _, end, sound, memo = self._list(at[some])
            else:
                end, sound = self._sized(at[some])
                memo = (self._octets[end] == op.MEMOIZE) & (opcode == op.SHORT_BINUNICODE)
                end = end + memo
            memoed[some] = sound & memo
            step[some] = np.where(sound, end - at[some], 0)
        # a number, and behind it neither the next key nor the end: two numbers that are a tuple
        after = self._octets[np.minimum(at + step, self._end)]
        some = np.flatnonzero((_INT_WIDTH[code] > 0) & self._alive & (_INT_WIDTH[after] > 0))
        if len(some):
            end, sound = self._pair(at[some])
            memoed[some] = sound & (self._octets[end + 1] == op.MEMOIZE)
            step[some] = np.where(sound, end + 1 - at[some] + memoed[some], 0)
        self.memos = self.memos + memoed
        self.at = at + step
        self._keep(step > 0)

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
