"""Alike trace entries of a pickle, read side by side with numpy instead of opcode by opcode.

Half a million trace entries are so many dicts with the same keys in the same order: ``}``, ``MEMOIZE``, ``MARK``,
then a reference to each key and a value of one to some dozen bytes, then ``SETITEMS``. Wherever the three opening bytes
stand a lane begins. Lanes of one shape are the rows of a matrix (`rows`); the others advance together, field by field,
and one that meets anything unforeseen is dropped (`front`). A lane says only "*if* an entry begins here, it reads so";
it counts when the machine, which reads in order, comes to that position. So nothing is guessed, and a hostile file
gains nothing but a slower read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot import opcodes as op
from ipygpumem.snapshot.front import MARGIN
from ipygpumem.snapshot.rows import Reader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Field", "Lanes", "find_lanes"]

_CHUNK = 1 << 22  # bytes whose lanes run together: their columns stay in the processor's cache

_TEXTS = ("action", "compile_context", "user_metadata", "internal_metadata")
_KINDS = {**dict.fromkeys(_TEXTS, "text"), "frames": "list", "forward_frames": "list", "pool_id": "pair"}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One key's values in all lanes.

    Attributes:
        value: A number as it is. For a text, list or pool id the memo index of the value, or -1 - k where the value
            stands in the entry itself, as ``unique[k]``.
        made: How many objects the entry put into the memo before the value. Of a number nothing.
        unique: Bytes of the values that stand in the entries: of a text in UTF-8, of a list the references in it, of a
            pool id both numbers as they are in the pickle.
    """

    value: NDArray[Any]
    made: NDArray[np.int16]
    unique: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """All places where an entry with certain keys can be read.

    Attributes:
        start: Where an entry begins, ascending.
        end: Where it ends.
        memos: How many objects it puts into the memo.
        before: How many objects all lanes before it put there.
        stop: For each lane the number of the lane at which the chain of entries, one at the heels of the other, ends.
        heads: Number of the first lane of each such chain, by its position.
        fields: The values by key.
    """

    start: Ints
    end: Ints
    memos: NDArray[np.int16]
    before: Ints
    stop: Ints
    heads: dict[int, int]
    fields: dict[str, Field]

    def text(self, first: int, offset: int) -> bytes | None:
        """The text that is object number ``offset`` of those that the lanes from ``first`` on put into the memo.

        Returns:
            The text in UTF-8; None if that object is no text.
        """
        wanted = int(self.before[first]) + offset
        lane = int(np.searchsorted(self.before, wanted, side="right")) - 1
        made = wanted - int(self.before[lane])
        for name in _TEXTS:
            field = self.fields.get(name)
            if field is None:
                continue
            if field.value[lane] < 0 and field.made[lane] == made:
                return field.unique[-1 - int(field.value[lane])]
        return None


def find_lanes(data: bytes, begin: int, keys: dict[str, bytes]) -> Lanes:
    """Find all entries from ``begin`` on that have these keys, each given with the bytes that refer to it."""
    reader = Reader(data, keys, {key: kind for key, kind in _KINDS.items() if key in keys}, _CHUNK)
    last = max(len(data) - MARGIN, begin + 1)
    parts = [reader.read(_openings(data, chunk)) for chunk in range(begin, last, _CHUNK)]
    start = np.concatenate([part.start for part in parts])
    end = np.concatenate([part.at for part in parts])
    memos = np.concatenate([part.memos for part in parts])
    nothing = np.zeros(0, np.int16)
    fields = {
        key: Field(
            np.concatenate([part.values[key] for part in parts]),
            np.concatenate([part.made.get(key, nothing) for part in parts]),
            tuple(reader.unique[key]),
        )
        for key in keys
    }
    breaks = np.flatnonzero(start[1:] != end[:-1]) + 1
    firsts = np.append(np.zeros(min(len(start), 1), np.int64), breaks)
    stops = np.append(breaks, np.full(min(len(start), 1), len(start)))
    heads = dict(zip(start[firsts].tolist(), firsts.tolist(), strict=True))
    before = np.cumsum(memos, dtype=np.int64) - memos
    return Lanes(start, end, memos, before, np.repeat(stops, stops - firsts), heads, fields)


def _openings(data: bytes, chunk: int) -> Ints:
    """Where the opening bytes of an entry stand in a chunk."""
    octets = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(octets[chunk : min(chunk + _CHUNK, len(data) - MARGIN)] == op.EMPTY_DICT) + chunk
    opening: Ints = at[(octets[at + 1] == op.MEMOIZE) & (octets[at + 2] == op.MARK)]
    return opening
