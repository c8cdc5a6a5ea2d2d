"""Trace entries of one shape: the same opcodes at the same places. All of them are the rows of one matrix.

Most of half a million entries have one of some dozen shapes, which differ in the width of a number and in the length of
a list. Where one entry has been taken apart, another of its length needs only to have the same bytes wherever an opcode
or a key stands; then its numbers stand where they do in the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.reader import opcodes as op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["Part", "Shape", "shape_of"]

_WORD = 8
_INTS = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_REFERENCES = {op.BINGET: 1, op.LONG_BINGET: 4}
_PLAIN = {op.NONE: 0, op.NEWTRUE: 0, op.NEWFALSE: 0, op.EMPTY_TUPLE: 0, op.BINFLOAT: 8} | _INTS | _REFERENCES


@dataclass(frozen=True, slots=True)
class Part:
    """The value of one key.

    Attributes:
        at: Where its bytes begin in the entry: of a number or a reference the operand, else what makes it unique.
        size: How many they are.
        reference: Whether they are a memo index.
        signed: Whether they are a number below zero, if the highest bit is set.
        varies: Whether they may differ from entry to entry.
        made: How many objects the entry has put into the memo before; -1 of a value that is not put there.
        nothing: Whether it is None.
    """

    at: int
    size: int
    reference: bool = False
    signed: bool = False
    varies: bool = True
    made: int = 0
    nothing: bool = False

    def numbers(self, rows: Words) -> Ints:
        """The number in each row."""
        word, byte = divmod(self.at, _WORD)
        value = rows[:, word] >> np.uint64(8 * byte)
        if byte + self.size > _WORD:
            value |= rows[:, word + 1] << np.uint64(8 * (_WORD - byte))
        spare = 8 * (_WORD - self.size)
        raised = value << np.uint64(spare)
        return raised.view(np.int64) >> spare if self.signed else (raised >> np.uint64(spare)).view(np.int64)

    def words(self, rows: Words) -> list[tuple[slice, Words]]:
        """All its bytes in each row, in words with zeros where other bytes are."""
        found = []
        for word in range(self.at // _WORD, -(-(self.at + self.size) // _WORD)):
            begin, end = max(self.at - _WORD * word, 0), min(self.at + self.size - _WORD * word, _WORD)
            mask = (1 << 8 * end) - (1 << 8 * begin)
            found.append((slice(None), rows[:, word] & np.uint64(mask)))
        return found


@dataclass(frozen=True, slots=True)
class Shape:
    """What entries of one shape have in common.

    Attributes:
        size: Bytes of an entry.
        pattern: The bytes of one of them, as words.
        mask: Ones where all have the same bits.
        memos: How many objects an entry puts into the memo.
        parts: Where the values are, by key.
    """

    size: int
    pattern: tuple[int, ...]
    mask: tuple[int, ...]
    memos: int
    parts: dict[str, Part]

    def fits(self, rows: Words) -> NDArray[np.bool_]:
        """Which rows, each the words of an entry of this size, have the shape."""
        different = np.zeros(len(rows), np.uint64)
        for place, (word, mask) in enumerate(zip(self.pattern, self.mask, strict=True)):
            if mask:
                different |= (rows[:, place] ^ np.uint64(word)) & np.uint64(mask)
        same: NDArray[np.bool_] = different == 0
        return same


def shape_of(entry: bytes, keys: dict[str, bytes], kinds: dict[str, str]) -> Shape | None:
    """Take one entry apart.

    Args:
        entry: Its bytes.
        keys: Its keys in their order, each with the bytes that refer to it.
        kinds: What their values are: ``number``, ``text``, ``list``, ``pair``, or ``any`` if it does not matter.

    Returns:
        None if there is anything unforeseen in it.
    """
    walk = _Walk(entry)
    try:
        found = {key: walk.part(reference, kinds[key]) for key, reference in keys.items()}
        if entry[walk.at] != op.SETITEMS or walk.at + 1 != len(entry):
            return None
    except (IndexError, ValueError):
        return None
    parts = {key: part for key, part in found.items() if part is not None}
    padded = len(entry) + -len(entry) % _WORD
    pattern = np.frombuffer(entry.ljust(padded, b"\0"), "<u8").tolist()
    mask = np.frombuffer(bytes(walk.same).ljust(padded, b"\0"), "<u8").tolist()
    return Shape(len(entry), tuple(pattern), tuple(mask), walk.memos, parts)


class _Walk:
    """Through one entry, behind its opening bytes."""

    def __init__(self, entry: bytes) -> None:
        self._entry = entry
        self.memos = int(entry[1] == op.MEMOIZE)
        self.at = 2 + self.memos
        self.same = bytearray(b"\xff" * len(entry))

    def part(self, key: bytes, kind: str) -> Part | None:
        """The key and its value; None of a value that does not matter."""
        if not self._entry.startswith(key, self.at):
            raise ValueError(key)
        self.at += len(key)
        if kind == "any":
            self._any()
            return None
        if kind == "number":
            return self._number()
        if self._entry[self.at] == op.NONE:
            self.at += 1
            return Part(self.at, 0, varies=False, nothing=True)
        if self._entry[self.at] in _REFERENCES:
            return self._reference()
        before = self.memos
        begin, end = {"text": self._text, "list": self._list, "pair": self._pair}[kind]()
        varies = 0 in self.same[begin:end]
        return Part(begin, end - begin, varies=varies, made=before if self.memos > before else -1)

    def _memo(self) -> None:
        """What was read may be put into the memo."""
        memoed = self._entry[self.at] == op.MEMOIZE
        self.at += memoed
        self.memos += memoed

    def _any(self) -> None:
        code = self._entry[self.at]
        begin = self.at + 1
        if code == op.EMPTY_LIST:
            self._list()
        elif code == op.SHORT_BINUNICODE:
            begin, end = self._text()
            self.same[begin:end] = bytes(end - begin)
        elif code == op.LONG1:
            self.at = begin + 1 + self._entry[begin]
            self.same[begin + 1 : self.at] = bytes(self.at - begin - 1)
        else:
            if code not in _PLAIN:
                raise ValueError(code)
            self.at = begin + _PLAIN[code]
            if code in _INTS and self._entry[self.at] in _INTS:
                self.at -= 1 + _PLAIN[code]
                self._pair()
                return
            self.same[begin : self.at] = bytes(self.at - begin)

    def _operand(self, size: int, *, reference: bool = False, signed: bool = False) -> Part:
        part = Part(self.at, size, reference, signed, made=self.memos)
        self.same[self.at : self.at + size] = bytes(size)
        self.at += size
        return part

    def _number(self) -> Part:
        code = self._entry[self.at]
        self.at += 1
        if code != op.LONG1:
            if code not in _INTS:
                raise ValueError(code)
            return self._operand(_INTS[code], signed=code == op.BININT)
        size = self._entry[self.at]
        self.at += 1
        if not 0 < size <= _WORD:
            raise ValueError(size)
        return self._operand(size, signed=True)

    def _reference(self) -> Part:
        size = _REFERENCES[self._entry[self.at]]
        self.at += 1
        return self._operand(size, reference=True)

    def _text(self) -> tuple[int, int]:
        if self._entry[self.at] != op.SHORT_BINUNICODE:
            raise ValueError(self.at)
        begin = self.at + 2
        end = self.at = begin + self._entry[self.at + 1]
        self._memo()
        return begin, end

    def _pair(self) -> tuple[int, int]:
        begin = self.at
        self._number()
        self._number()
        end = self.at
        self.same[begin:end] = b"\xff" * (end - begin)  # there are few pools: one shape for each
        if self._entry[end] != op.TUPLE2:
            raise ValueError(end)
        self.at += 1
        self._memo()
        return begin, end

    def _list(self) -> tuple[int, int]:
        if self._entry[self.at] != op.EMPTY_LIST:
            raise ValueError(self.at)
        self.at += 1
        self._memo()
        many = self._entry[self.at] == op.MARK
        self.at += many
        begin = self.at
        count = 0
        while self._entry[self.at] in _REFERENCES and (many or self._single()):
            self._reference()
            count += 1
            if not many:
                break
        end = self.at
        if many:
            if self._entry[end] != op.APPENDS:
                raise ValueError(end)
            self.at += 1
        elif count:
            self.at += 1
        return begin, end

    def _single(self) -> bool:
        """Whether the reference ahead is the one item of a list, not the next key."""
        behind = self.at + 1 + _REFERENCES[self._entry[self.at]]
        return behind < len(self._entry) and self._entry[behind] == op.APPEND
