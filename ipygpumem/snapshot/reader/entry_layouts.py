"""Layouts of trace entries. All entries with the same opcodes at the same positions are rows of one matrix.

Most of half a million entries have one of about a dozen layouts, which differ in the width of a number and the length
of a list. Once one entry has been decoded, another of the same length only needs to have the same bytes wherever an
opcode or a key is; its numbers are then where they are in the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.field_reader import MARGIN, FieldReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["Layout", "Operand", "layout_of"]

_WORD = 8
_REFERENCES = {op.BINGET: 1, op.LONG_BINGET: 4}
_INTS = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}


@dataclass(frozen=True, slots=True)
class Operand:
    """The value of one key.

    Attributes:
        kind: ``number``, ``reference`` (a memo index), ``inline`` (written in the entry), ``none``.
        start: Where its bytes start in the entry.
        size: How many bytes it has.
        signed: Whether a number is negative if its highest bit is set.
        varies: Whether an inline value may differ between entries.
        memo_offset: How many objects the entry has added to the memo before it; -1 for a value that is not memoized.
    """

    kind: str
    start: int = 0
    size: int = 0
    signed: bool = False
    varies: bool = False
    memo_offset: int = 0

    def numbers(self, rows: Words) -> Ints:
        """The number in each row."""
        word, byte = divmod(self.start, _WORD)
        value = rows[:, word] >> np.uint64(8 * byte)
        if byte + self.size > _WORD:
            value |= rows[:, word + 1] << np.uint64(8 * (_WORD - byte))
        spare = 8 * (_WORD - self.size)
        shifted = value << np.uint64(spare)
        return shifted.view(np.int64) >> spare if self.signed else (shifted >> np.uint64(spare)).view(np.int64)

    def words(self, rows: Words) -> list[tuple[slice, Words]]:
        """The bytes of the operand in each row as 8-byte words, with zeros in place of other bytes."""
        words = []
        for word in range(self.start // _WORD, -(-(self.start + self.size) // _WORD)):
            first, last = max(self.start - _WORD * word, 0), min(self.start + self.size - _WORD * word, _WORD)
            mask = (1 << 8 * last) - (1 << 8 * first)
            words.append((slice(None), rows[:, word] & np.uint64(mask)))
        return words


@dataclass(frozen=True, slots=True)
class Layout:
    """What entries of one layout have in common.

    Attributes:
        size: Bytes of an entry.
        pattern: The bytes of one entry, as 8-byte words.
        mask: Ones where all entries have the same bits.
        memo_count: How many objects an entry adds to the memo.
        operands: The values by key.
    """

    size: int
    pattern: tuple[int, ...]
    mask: tuple[int, ...]
    memo_count: int
    operands: dict[str, Operand]

    def matches(self, rows: Words) -> NDArray[np.bool_]:
        """Which rows, each the words of an entry of this size, have the layout."""
        different = np.zeros(len(rows), np.uint64)
        for place, (word, mask) in enumerate(zip(self.pattern, self.mask, strict=True)):
            if mask:
                different |= (rows[:, place] ^ np.uint64(word)) & np.uint64(mask)
        same: NDArray[np.bool_] = different == 0
        return same


def layout_of(entry: bytes, keys: dict[str, bytes], kinds: dict[str, str]) -> Layout | None:
    """Decode one entry and note where its values are.

    Args:
        entry: Its bytes.
        keys: Its keys in their order, each with the bytes that refer to it.
        kinds: What the values are, as in `FieldReader.read`.

    Returns:
        None if the entry cannot be decoded.
    """
    reader = FieldReader(entry + bytes(MARGIN), np.zeros(1, np.int64), len(entry))
    same = bytearray(b"\xff" * len(entry))
    operands = {}
    for key, reference in keys.items():
        at = int(reader.position[0]) + len(reference)
        code = entry[at] if at < len(entry) else op.STOP
        kind = "list" if kinds[key] == "any" and code == op.EMPTY_LIST else kinds[key]
        contents: dict[bytes, int] = {}
        reader.read(kind, key, reference, contents)
        if not len(reader.position):
            return None
        operand = _operand(entry, at, int(reader.position[0]), kind, next(iter(contents), None))
        for start, end in _varying(entry, at, operand, kind):
            same[start:end] = bytes(end - start)
        if kinds[key] != "any":
            offset = int(reader.memo_offsets[key][0]) if kind != "number" else 0
            varies = operand.kind == "inline" and 0 in same[operand.start : operand.start + operand.size]
            operands[key] = replace(operand, varies=varies, memo_offset=offset)
    reader.close()
    if reader.position.tolist() != [len(entry)]:
        return None
    padded = len(entry) + -len(entry) % _WORD
    pattern = np.frombuffer(entry.ljust(padded, b"\0"), "<u8").tolist()
    mask = np.frombuffer(bytes(same).ljust(padded, b"\0"), "<u8").tolist()
    return Layout(len(entry), tuple(pattern), tuple(mask), int(reader.memo_count[0]), operands)


def _operand(entry: bytes, at: int, end: int, kind: str, contents: bytes | None) -> Operand:
    """The value between two positions."""
    code = entry[at]
    if contents is not None:
        return Operand("inline", entry.index(contents, at), len(contents))
    if code == op.SHORT_BINUNICODE:
        return Operand("inline", at + 2, entry[at + 1])
    start = at + 2 if code == op.LONG1 else at + 1
    if kind == "number" or code not in _REFERENCES:
        return Operand("number" if end > start else "none", start, end - start, signed=code in {op.LONG1, op.BININT})
    return Operand("reference", start, end - start)


def _varying(entry: bytes, at: int, operand: Operand, kind: str) -> Iterator[tuple[int, int]]:
    """The bytes of a value that may differ between entries of one layout."""
    start, end = operand.start, operand.start + operand.size
    if operand.kind == "inline" and kind == "list":
        while start < end:
            width = _REFERENCES[entry[start]]
            yield start + 1, start + 1 + width
            start += 1 + width
    elif kind == "any" and entry[at] in _INTS and operand.size > _INTS[entry[at]]:
        return  # a pair: there are few pools, so each has a layout of its own
    elif operand.kind != "inline" or kind == "any":
        yield start, end
