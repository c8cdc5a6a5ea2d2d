"""Alike trace entries of a pickle, read side by side with numpy instead of opcode by opcode.

Half a million trace entries are so many dicts with the same keys in the same order: ``}``, ``MEMOIZE`` (which
``pickletools.optimize`` leaves out), ``MARK``, then a reference to each key and a value of one to some dozen bytes,
then ``SETITEMS``. Wherever the opening bytes stand a lane begins. Lanes of one shape are the rows of a matrix (`rows`);
the others advance together, field by field, and one that meets anything unforeseen is dropped (`front`). A lane says
only "*if* an entry begins here, it reads so"; it counts when the machine, which reads in order, comes to that position.
So nothing is guessed, and a hostile file gains nothing but a slower read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.batch_reader import Reader
from ipygpumem.snapshot.reader.cursor import MARGIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Field", "Lanes", "find_lanes"]

_CHUNK = 1 << 22  # bytes whose lanes run together: their columns stay in the processor's cache

_KINDS = {
    **dict.fromkeys(("addr", "size", "stream", "time_us", "device_free"), "number"),
    **dict.fromkeys(("action", "compile_context", "user_metadata"), "text"),
    "frames": "list",
    "pool_id": "pair",
}
"""What the columns want. Any other value is passed over."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One key's values in all lanes.

    Attributes:
        value: A number as it is. For a text, list or pool id the memo index of the value, or -1 - k where the value
            stands in the entry itself, as ``unique[k]``; of None `NOTHING`.
        made: How many objects the entry put into the memo before the value; -1 of one that is not put there. Of a
            number nothing.
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
        fields: The values by key, of those keys that have a column.
    """

    start: Ints
    end: Ints
    memos: NDArray[np.int16]
    before: Ints
    stop: Ints
    heads: dict[int, int]
    fields: dict[str, Field]


def find_lanes(data: bytes, begin: int, keys: dict[str, bytes]) -> Lanes:
    """Find all entries from ``begin`` on that have these keys, each given with the bytes that refer to it."""
    kinds = {key: _KINDS.get(key, "any") for key in keys}
    reader = Reader(data, keys, kinds, _CHUNK)
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
        if kinds[key] != "any"
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
    opening: Ints = at[octets[at + 1 + (octets[at + 1] == op.MEMOIZE)] == op.MARK]
    return opening
