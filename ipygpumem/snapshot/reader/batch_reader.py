"""The columns of one chunk of a pickle: entries of known shapes as rows of a matrix, the others step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.reader.byte_strings import intern
from ipygpumem.snapshot.reader.cursor import MOST_MEMO, NOTHING, Front
from ipygpumem.snapshot.reader.entry_layouts import shape_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.reader.entry_layouts import Shape

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["Reader", "Rows"]

_WORD = 8
_LONGEST = 1 << 10  # bytes of an entry that may be a row
_MANY = 32  # entries of one length from which on a matrix pays
_TRIES = 8  # shapes looked for among the entries of one length, in one chunk


class Rows:
    """One row per entry, by its beginning.

    Attributes:
        start: Where each begins.
        at: Where it ends.
        good: Which of them could be read; the others hold nothing.
        memos: How many objects it puts into the memo.
        values: By key, as in `Field`.
        made: By key, how many objects it has put into the memo before; -1 of a value that is not put there.
    """

    def __init__(self, start: Ints, kinds: dict[str, str]) -> None:
        count = len(start)
        self.start = start
        self.at = np.zeros(count, np.int64)
        self.good = np.zeros(count, np.bool_)
        self.memos = np.zeros(count, np.int16)
        self.values: dict[str, NDArray[Any]] = {}
        self.made: dict[str, NDArray[np.int16]] = {}
        for key, kind in kinds.items():
            if kind == "number":
                self.values[key] = np.zeros(count, np.int64)
            elif kind != "any":
                self.values[key] = np.zeros(count, np.int32)
                self.made[key] = np.zeros(count, np.int16)

    def drop(self) -> None:
        """Keep the good ones only."""
        good = self.good
        if not good.all():
            self.start, self.at, self.memos = self.start[good], self.at[good], self.memos[good]
            self.values = {key: column[good] for key, column in self.values.items()}
            self.made = {key: column[good] for key, column in self.made.items()}


class Reader:
    """Reads chunk after chunk of one pickle.

    Attributes:
        unique: By key, the values that stand in the entries, and their numbers.
    """

    def __init__(self, data: bytes, keys: dict[str, bytes], kinds: dict[str, str], budget: int) -> None:
        self._data = data
        self._keys = keys
        self._kinds = kinds
        self._budget = budget
        self._shapes: dict[int, list[Shape]] = {}
        self.unique: dict[str, dict[bytes, int]] = {key: {} for key in keys}

    def read(self, start: Ints) -> Rows:
        """The entries that begin at these places, in ascending order."""
        rows = Rows(start, self._kinds)
        if len(start):
            # what follows an entry mostly begins at its end
            size = np.minimum(np.diff(start, append=start[-1]), _LONGEST + 1).astype(np.uint16)
            order = np.argsort(size, kind="stable")
            for group in np.split(order, np.flatnonzero(np.diff(size[order])) + 1):
                if _WORD < size[group[0]] <= _LONGEST and len(group) >= _MANY:
                    self._matrix(rows, group, int(size[group[0]]))
        self._steps(rows)
        rows.drop()
        return rows

    def _matrix(self, rows: Rows, group: Ints, size: int) -> None:
        """Entries of one length: first the shapes that are known, then new ones."""
        width = -(-size // _WORD) * _WORD
        overlapping = np.ndarray((len(self._data) - width + 1,), f"V{width}", self._data, strides=(1,))
        known = self._shapes.setdefault(size, [])
        tried = 0
        matrix: Words | None = None
        while len(group) >= _MANY and tried < max(len(known), _TRIES):
            if matrix is None:
                matrix = overlapping[rows.start[group]].view("<u8").reshape(len(group), -1)
            if tried == len(known):
                begin = int(rows.start[group[0]])
                shape = shape_of(self._data[begin : begin + size], self._keys, self._kinds)
                if shape is None:
                    return
                known.append(shape)
            good = known[tried].fits(matrix)
            if good.all():
                self._fill(rows, group, matrix, known[tried])
                return
            if good.any():
                self._fill(rows, group[good], matrix[good], known[tried])
                group, matrix = group[~good], matrix[~good]
            tried += 1

    def _fill(self, rows: Rows, group: Ints, matrix: Words, shape: Shape) -> None:
        start = rows.start[group]
        good = np.ones(len(group), np.bool_)
        for key, part in shape.parts.items():
            if self._kinds[key] == "number":
                rows.values[key][group] = part.numbers(matrix)
                continue
            rows.made[key][group] = part.made
            if part.reference:
                value = part.numbers(matrix)
                good &= value <= MOST_MEMO
            elif part.nothing:
                value = np.array(NOTHING)
            elif part.varies:
                first = start + part.at
                value = -1 - intern(self._data, first, first + part.size, part.words(matrix), self.unique[key])
            else:
                begin = int(start[0]) + part.at
                found = self._data[begin : begin + part.size]
                value = np.array(-1 - self.unique[key].setdefault(found, len(self.unique[key])))
            rows.values[key][group] = value
        rows.at[group] = start + shape.size
        rows.memos[group] = shape.memos
        rows.good[group] = good

    def _steps(self, rows: Rows) -> None:
        """All that fits no shape."""
        rest = np.flatnonzero(~rows.good)
        if not len(rest):
            return
        front = Front(self._data, rows.start[rest], self._budget)
        for key, reference in self._keys.items():
            front.read(self._kinds[key], key, reference, self.unique[key])
        front.close()
        places = rest[np.searchsorted(rows.start[rest], front.start)]
        for key, column in front.values.items():
            rows.values[key][places] = column
        for key, made in front.made.items():
            rows.made[key][places] = made
        rows.at[places] = front.at
        rows.memos[places] = front.memos
        rows.good[places] = True
