"""Pickle's frames taken out, so that the opcodes of a whole file lie one behind the other."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["PAD", "Tape", "unframe"]

_FRAME = 0x95
_HEADER = 9
_LONG_TEXTS = {0x58: 4, 0x8D: 8}  # BINUNICODE and BINUNICODE8 of 64 KiB and more stand outside the frames

PAD = 16
"""Zero bytes behind the data, so that eight bytes can be read at any position of it."""


@dataclass(frozen=True, slots=True)
class Tape:
    """The opcodes of a pickle.

    Attributes:
        data: Opcodes and `PAD` zero bytes.
        end: Where the opcodes end.
        cuts: Position in ``data`` of each piece of the file, ascending.
        shifts: What to add for the position in the file, for each piece.
    """

    data: bytes
    end: int
    cuts: tuple[int, ...]
    shifts: tuple[int, ...]

    def offset(self, position: int) -> int:
        """The position in the file of a position in ``data``."""
        return position + self.shifts[bisect_right(self.cuts, position) - 1]


def unframe(raw: bytes) -> Tape:
    """Take out the frame headers, as far as one frame follows another.

    Frames are an aid for reading from a stream and mean nothing else. Whatever does not look as the pickler writes it
    is left in place: the machine knows the opcode too.
    """
    parts: list[memoryview] = []
    cuts = [0]
    shifts = [0]
    view = memoryview(raw)
    position = length = 0
    while position < len(raw):
        begin = position
        if raw[position] == _FRAME:
            begin += _HEADER
            position = begin + int.from_bytes(raw[position + 1 : begin], "little")
        elif position == 0 and raw[:1] == b"\x80":
            position = 2
        elif raw[position] in _LONG_TEXTS:
            start = position + 1 + _LONG_TEXTS[raw[position]]
            position = start + int.from_bytes(raw[position + 1 : start], "little")
        else:
            position = len(raw)
        position = min(position, len(raw))
        if begin < position:
            cuts.append(length)
            shifts.append(begin - length)
            parts.append(view[begin:position])
            length += position - begin
    return Tape(b"".join([*parts, bytes(PAD)]), length, tuple(cuts), tuple(shifts))
