"""Conversion of lists of events to columns. Each item of a list is a dict (one event) or an `EntryRun` (several)."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError
from ipygpumem.snapshot.model.columns import ACTIONS, Action, EventValues, Trace, distinct
from ipygpumem.snapshot.reader.checks import MAX_BLOCK, MAX_TOTAL, column, integer, mapping
from ipygpumem.snapshot.reader.entry_batches import EntryBatch, EntryRun, NotColumnarError
from ipygpumem.snapshot.reader.field_reader import NONE
from ipygpumem.snapshot.reader.pickle_reader import PickleReader
from ipygpumem.snapshot.reader.table_builder import TableBuilder

Ints = NDArray[np.int64]
Numbered = NDArray[np.int32]

_ACTION_NUMBER = {name: number for number, name in enumerate(ACTIONS)}
_HAS_SIZE = ~np.isin(np.arange(len(ACTIONS)), [Action.SNAPSHOT, Action.ANNOTATE, Action.OTHER])  # by action
_HAS_ADDRESS = _HAS_SIZE & (np.arange(len(ACTIONS)) != Action.OOM)
_NUMBER_KEYS = ("addr", "size", "stream", "time_us")
_TABLE_KEYS = ("action", "frames", "compile_context", "user_metadata", "pool_id")  # in the order of `Trace`
_MISSING = -1
_UNKNOWN = -2
_KINDS = {"frames": "stack", "pool_id": "pool"}  # table of each key; other keys refer to the string table


class TraceReader:
    def __init__(self, tables: TableBuilder, reader: PickleReader | None) -> None:
        self._tables = tables
        self._runs = _RunColumns(reader, tables)

    def read(self, device: int, items: Sequence[Any], where: str = "") -> Trace:
        where = where or f"device_traces[{device}]"
        entries = [item for item in items if type(item) is not EntryRun]
        self._tables.count(entries, where)
        size = np.array([len(item) if type(item) is EntryRun else 1 for item in items], np.int64)
        first = np.cumsum(size) - size
        columns = _Columns(int(size.sum()), where, self._tables)
        if entries:
            columns.fill_entries(entries, first[[type(item) is not EntryRun for item in items]])
        runs: dict[int, list[tuple[EntryRun, int]]] = defaultdict(list)  # by batch, whose columns are copied together
        for item, row in zip(items, first.tolist(), strict=True):
            if type(item) is EntryRun:
                runs[id(item.entries)].append((item, row))
        for batch in runs.values():
            columns.fill_runs(batch, self._runs)
        return columns.trace(device)

    def failed_trace(self, device: int, error: str) -> Trace:
        return replace(self.read(device, []), error=error)


class _Columns:
    def __init__(self, count: int, where: str, tables: TableBuilder) -> None:
        self._where = where
        self._tables = tables
        self._numbers = {name: np.full(count, _MISSING, np.int64) for name in _NUMBER_KEYS}
        self._table_rows = {name: np.full(count, _MISSING, np.int32) for name in _TABLE_KEYS}
        # of oom events, as columns because a dict would need more memory than the entries in the file
        self._free_rows, self._device_free = array("q"), array("q")

    def fill_entries(self, entries: list[Any], rows: NDArray[np.int64]) -> None:
        if set(map(type, entries)) != {dict}:
            for row, entry in zip(rows.tolist(), entries, strict=True):
                mapping(entry, f"{self._where}[{row}]")

        def event(place: int) -> str:
            return f"{self._where}[{rows[place]}]"

        for name, numbers in self._numbers.items():
            values = [entry.get(name, _MISSING) for entry in entries]
            numbers[rows] = column(values, lambda place, name=name: f"{event(place)}: {name}")  # type: ignore[misc]
        for name, table_rows in self._table_rows.items():
            table_rows[rows] = self._tables.indices(name, [entry.get(name) for entry in entries], event)
        for row, entry in zip(rows.data, entries, strict=True):
            if "device_free" in entry:
                self._device_free.append(integer(entry["device_free"], f"{self._where}[{row}]: device_free"))
                self._free_rows.append(row)

    def fill_runs(self, runs: list[tuple[EntryRun, int]], run_columns: _RunColumns) -> None:
        """Fill in the entries of runs of the same batch. Each run is given with the row of its first entry."""
        entries = runs[0][0].entries
        indices = np.concatenate([np.arange(run.first, run.stop) for run, _ in runs])
        rows = np.concatenate([np.arange(row, row + len(run)) for run, row in runs])
        columns: dict[str, NDArray[Any]] = {**self._numbers, **self._table_rows}
        for name, numbers in columns.items():
            values = run_columns.column(entries, name)
            if values is not None:
                numbers[rows] = values[indices]
        free = run_columns.column(entries, "device_free")
        if free is not None:
            self._device_free.extend(free[indices].tolist())
            self._free_rows.extend(rows.tolist())

    def trace(self, device: int) -> Trace:
        """Return the events, sorted by time if all have a time. Raises `SnapshotFormatError` if a value is invalid."""
        action = self._actions()
        address, size, stream, time = (self._numbers[name] for name in _NUMBER_KEYS)
        for name in ("addr", "size", "time_us"):
            self._refuse(self._numbers[name] < _MISSING, f"{name} is out of range")
        free_rows, device_free = np.array(self._free_rows, np.int64), np.array(self._device_free, np.int64)
        negative = free_rows[device_free < 0]
        if len(negative):
            raise SnapshotFormatError(f"{self._where}[{negative.min()}]: device_free is out of range")
        self._refuse((address < 0) & _HAS_ADDRESS[action], "addr is missing or negative")
        self._refuse((size < 0) & _HAS_SIZE[action], "size is missing or negative")
        allocated = np.where(action == Action.OOM, 0, size)  # failed requests may have any size
        self._refuse(allocated > MAX_BLOCK, f"size is more than {MAX_BLOCK:,} bytes")
        if allocated.sum(dtype=np.float64) > MAX_TOTAL:
            raise SnapshotFormatError(f"{self._where}: the sizes add up to more than {MAX_TOTAL:,} bytes")
        address[address < 0] = 0
        size[size < 0] = 0
        stream[stream == _MISSING] = 0
        untimed = int(np.count_nonzero(time < 0))
        if untimed:
            time[:] = _MISSING
        out_of_order = int(np.count_nonzero(time < np.maximum.accumulate(time))) if len(time) else 0
        is_oom = action[free_rows] == Action.OOM
        free_rows, device_free = free_rows[is_oom], device_free[is_oom]
        order: NDArray[np.int64] | slice = slice(None)
        if out_of_order:
            order = np.argsort(time, kind="stable")
            free_rows = np.argsort(order, kind="stable")[free_rows]
        table_rows = (self._table_rows[key] for key in _TABLE_KEYS[1:])
        columns: list[NDArray[Any]] = [action, address, size, stream, time, *table_rows]
        free = EventValues(free_rows.data, device_free.data)
        values: list[Any] = [*(column[order] for column in columns), free, out_of_order, untimed]
        return Trace(device, *values)

    def _actions(self) -> NDArray[np.uint8]:
        texts = self._table_rows["action"]
        self._refuse(texts == _MISSING, "action is missing")
        names = list(self._tables.texts)
        numbers = np.full(len(names), Action.OTHER, np.uint8)
        for text in np.flatnonzero(np.bincount(texts)).tolist():
            numbers[text] = _ACTION_NUMBER.get(names[text], Action.OTHER)
        return numbers[texts]

    def _refuse(self, bad: NDArray[np.bool_], problem: str) -> None:
        if bad.any():
            raise SnapshotFormatError(f"{self._where}[{int(np.argmax(bad))}]: {problem}")


class _RunColumns:
    """Values of all `EntryRun` objects of a file, as columns. Invalid values raise `NotColumnarError`."""

    def __init__(self, reader: PickleReader | None, tables: TableBuilder) -> None:
        self._columns: dict[tuple[int, str], Numbered] = {}
        if reader is None or not reader.runs:
            return
        self._reader = reader
        self._tables = tables
        # by table: the index of each memo entry if known
        self._numbers = {kind: np.full(len(reader.memo), _MISSING, np.int32) for kind in ("text", "stack", "pool")}
        # table indices of the values written inside entries
        self._inline_numbers: dict[int, Numbered] = {}
        batches = {id(run.entries): run.entries for run in reader.runs}
        memo_starts = {number: np.full(len(entries.start), _MISSING, np.int64) for number, entries in batches.items()}
        for run in reader.runs:
            memo_starts[id(run.entries)][run.first : run.stop] = run.memo_starts()
        try:
            # inline values are filled first because references may point to values in entries with other keys
            for fill in (self._fill_inline, self._fill_references):
                for number, entries in batches.items():
                    for key in entries.inline:
                        fill(key, entries, memo_starts[number])
        except SnapshotError:
            raise NotColumnarError from None

    def column(self, entries: EntryBatch, key: str) -> NDArray[np.int64] | Numbered | None:
        """Return a key's values as integers or table indices (-1 for None), or None if the entries lack the key."""
        return self._columns.get((id(entries), key), entries.values.get(key))

    def _fill_inline(self, key: str, entries: EntryBatch, memo_start: Ints) -> None:
        value = entries.values[key]
        column = self._columns[id(entries), key] = np.full(len(value), _MISSING, np.int32)
        rows = _selected((value < 0) & (value != NONE) & (memo_start >= 0))
        inline, offset = -1 - value[rows], entries.memo_offsets[key][rows]
        memo_index = memo_start[rows] + np.maximum(offset, -1 - offset)
        octets = list(entries.inline[key])
        numbers = self._inline_numbers.setdefault(id(entries.inline[key]), np.full(len(octets), _UNKNOWN, np.int32))
        if len(unknown := distinct(inline[numbers[inline] == _UNKNOWN])):
            # an object that one entry can refer to is also available to all later entries
            first = np.empty(len(octets), np.int64)
            first[inline[::-1]] = memo_index[::-1]
            for number, memo in zip(unknown.tolist(), first[unknown].tolist(), strict=True):
                numbers[number] = self._tables.index(key, self._reader.decode(octets[number], memo))
        column[rows] = numbers[inline]
        self._numbers[_KINDS.get(key, "text")][memo_index[offset >= 0]] = column[rows][offset >= 0]

    def _fill_references(self, key: str, entries: EntryBatch, memo_start: Ints) -> None:
        rows = _selected((entries.values[key] >= 0) & (memo_start >= 0))
        index = entries.values[key][rows]
        # an entry may refer to its own earlier values because Python shares empty and one-character strings
        if (index >= memo_start[rows] + entries.memo_offsets[key][rows]).any():
            raise NotColumnarError
        numbers = self._numbers[_KINDS.get(key, "text")]
        for memo_index in distinct(index[numbers[index] == _MISSING]).tolist():
            numbers[memo_index] = self._tables.index(key, self._reader.memoized(memo_index))
        self._columns[id(entries), key][rows] = numbers[index]


def _selected(flags: NDArray[np.bool_]) -> Any:
    return slice(None) if flags.all() else np.flatnonzero(flags)  # indexing with a slice avoids a copy
