"""Columns of the entries that were read in batches: their texts, stacks and pool ids become numbers of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot.model.unique_values import distinct
from ipygpumem.snapshot.reader.entry_batches import NotColumnarError
from ipygpumem.snapshot.reader.field_reader import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.reader.entry_batches import Entries, Run
    from ipygpumem.snapshot.reader.pickle_reader import PickleReader
    from ipygpumem.snapshot.reader.table_builder import TableBuilder

    Ints = NDArray[np.int64]
    Numbered = NDArray[np.int32]

__all__ = ["RunColumns"]

_MISSING = -1
_UNKNOWN = -2
_KINDS = {"frames": "stack", "pool_id": "pool"}  # of the values by key; all others are texts


class RunColumns:
    """The columns of all runs of a file.

    Raises:
        NotColumnarError: A value is invalid.
    """

    def __init__(self, reader: PickleReader | None, tables: TableBuilder) -> None:
        self._columns: dict[tuple[int, str], Numbered] = {}
        if reader is None or not reader.runs:
            return
        self._reader = reader
        self._tables = tables
        # for texts, stacks and pool ids the numbers of memo entries, as far as they are known
        self._numbers = {kind: np.full(len(reader.memo), _MISSING, np.int32) for kind in ("text", "stack", "pool")}
        # the numbers of the values written inside entries
        self._inline_numbers: dict[int, Numbered] = {}
        batches = {id(run.entries): run.entries for run in reader.runs}
        memo_starts = {number: np.full(len(entries.start), _MISSING, np.int64) for number, entries in batches.items()}
        for run in reader.runs:
            memo_starts[id(run.entries)][run.first : run.stop] = run.memo_starts()
        try:
            # values written inside entries first: a reference may point to a value in an entry with other keys
            for fill in (self._fill_inline, self._fill_references):
                for number, entries in batches.items():
                    for key in entries.inline:
                        fill(key, entries, memo_starts[number])
        except SnapshotError:
            raise NotColumnarError from None

    def column(self, run: Run, key: str) -> NDArray[np.int64] | Numbered | None:
        """The values of a key in a run: numbers, or rows of tables (-1 for None). None if it does not have the key."""
        values = self._columns.get((id(run.entries), key), run.entries.values.get(key))
        return None if values is None else values[run.first : run.stop]

    def _fill_inline(self, key: str, entries: Entries, memo_start: Ints) -> None:
        """Number the values that are written inside entries."""
        value = entries.values[key]
        column = self._columns[id(entries), key] = np.full(len(value), _MISSING, np.int32)
        rows = _selected((value < 0) & (value != NONE) & (memo_start >= 0))
        inline, offset = -1 - value[rows], entries.memo_offsets[key][rows]
        memo_index = memo_start[rows] + np.maximum(offset, -1 - offset)
        octets = list(entries.inline[key])
        numbers = self._inline_numbers.setdefault(id(entries.inline[key]), np.full(len(octets), _UNKNOWN, np.int32))
        for number in distinct(inline[numbers[inline] == _UNKNOWN]).tolist():
            # what one entry may refer to, all later ones may refer to as well
            first = int(memo_index[np.argmax(inline == number)])
            numbers[number] = self._tables.number(key, self._reader.decode(octets[number], first))
        column[rows] = numbers[inline]
        self._numbers[_KINDS.get(key, "text")][memo_index[offset >= 0]] = column[rows][offset >= 0]

    def _fill_references(self, key: str, entries: Entries, memo_start: Ints) -> None:
        """Fill in the numbers of values that are references."""
        rows = _selected((entries.values[key] >= 0) & (memo_start >= 0))
        index = entries.values[key][rows]
        # an entry may refer to its own earlier values: Python has one empty text and one text for each letter
        if (index >= memo_start[rows] + entries.memo_offsets[key][rows]).any():
            raise NotColumnarError
        numbers = self._numbers[_KINDS.get(key, "text")]
        for memo_index in distinct(index[numbers[index] == _MISSING]).tolist():
            numbers[memo_index] = self._tables.number(key, self._reader.memoized(memo_index))
        self._columns[id(entries), key][rows] = numbers[index]


def _selected(flags: NDArray[np.bool_]) -> Any:
    """An index of the selected rows: usually all, and a slice needs no copy."""
    return slice(None) if flags.all() else np.flatnonzero(flags)
