"""Reads lists of events into columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotFormatError
from ipygpumem.snapshot.model.trace import ACTIONS, Action, Trace
from ipygpumem.snapshot.reader.checks import MAX_BLOCK, MAX_TOTAL, column, integer, mapping
from ipygpumem.snapshot.reader.entry_batches import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.reader.run_columns import RunColumns
    from ipygpumem.snapshot.reader.table_builder import TableBuilder

__all__ = ["TraceReader"]

_ACTION_NUMBER = {name: number for number, name in enumerate(ACTIONS)}
_WITHOUT_ADDRESS = (Action.OOM, Action.SNAPSHOT, Action.ANNOTATE, Action.OTHER)
_WITHOUT_SIZE = (Action.SNAPSHOT, Action.ANNOTATE, Action.OTHER)
_NUMBER_KEYS = ("addr", "size", "stream", "time_us")
_TABLE_KEYS = ("action", "frames", "compile_context", "user_metadata", "pool_id")
_MISSING = -1


class TraceReader:
    """Reads the lists of events of one file."""

    def __init__(self, tables: TableBuilder, runs: RunColumns) -> None:
        self._tables = tables
        self._runs = runs

    def read(self, device: int, items: Sequence[Any], where: str = "") -> Trace:
        """The columns of one device's list of events.

        Raises:
            SnapshotFormatError: A value has the wrong type or is out of range; the message names event and key.
        """
        where = where or f"device_traces[{device}]"
        entries = [item for item in items if type(item) is not Run]
        self._tables.count(entries, where)
        size = np.array([len(item) if type(item) is Run else 1 for item in items], np.int64)
        first = np.cumsum(size) - size
        columns = _Columns(int(size.sum()), where, self._tables)
        if entries:
            columns.fill_entries(entries, first[[type(item) is not Run for item in items]])
        for item, row in zip(items, first.tolist(), strict=True):
            if type(item) is Run:
                columns.fill_run(item, row, self._runs)
        return columns.trace(device)

    def unread(self, device: int, trouble: str) -> Trace:
        """A trace without events, and why they could not be read."""
        return replace(self.read(device, []), trouble=trouble)


class _Columns:
    def __init__(self, count: int, where: str, tables: TableBuilder) -> None:
        self._where = where
        self._tables = tables
        self._numbers = {name: np.full(count, _MISSING, np.int64) for name in _NUMBER_KEYS}
        self._table_rows = {name: np.full(count, _MISSING, np.int32) for name in _TABLE_KEYS}
        self._device_free: dict[int, int] = {}

    def fill_entries(self, entries: list[Any], rows: NDArray[np.int64]) -> None:
        """Fill rows from dicts."""
        if set(map(type, entries)) != {dict}:
            for row, entry in zip(rows.tolist(), entries, strict=True):
                mapping(entry, f"{self._where}[{row}]")

        def event(place: int) -> str:
            return f"{self._where}[{rows[place]}]"

        for name, numbers in self._numbers.items():
            values = [entry.get(name, _MISSING) for entry in entries]
            numbers[rows] = column(values, lambda place, name=name: f"{event(place)}: {name}")  # type: ignore[misc]
        for name, table_rows in self._table_rows.items():
            table_rows[rows] = self._tables.numbers(name, [entry.get(name) for entry in entries], event)
        for row, entry in zip(rows.tolist(), entries, strict=True):
            if "device_free" in entry:
                self._device_free[row] = integer(entry["device_free"], f"{self._where}[{row}]: device_free")

    def fill_run(self, run: Run, row: int, runs: RunColumns) -> None:
        """Fill rows from entries that were read in a batch."""
        columns: dict[str, NDArray[Any]] = {**self._numbers, **self._table_rows}
        for name, numbers in columns.items():
            values = runs.column(run, name)
            if values is not None:
                numbers[row : row + len(run)] = values
        free = runs.column(run, "device_free")
        if free is not None:
            self._device_free.update(zip(range(row, row + len(run)), free.tolist(), strict=True))

    def trace(self, device: int) -> Trace:
        """The columns, checked and sorted by time."""
        action = self._actions()
        address, size, stream, time = (self._numbers[name] for name in _NUMBER_KEYS)
        for name in ("addr", "size", "time_us"):
            self._refuse(self._numbers[name] < _MISSING, f"{name} is out of range")
        negative = [row for row, free in self._device_free.items() if free < 0]
        if negative:
            raise SnapshotFormatError(f"{self._where}[{min(negative)}]: device_free is out of range")
        self._refuse((address < 0) & ~np.isin(action, _WITHOUT_ADDRESS), "addr is missing or negative")
        self._refuse((size < 0) & ~np.isin(action, _WITHOUT_SIZE), "size is missing or negative")
        allocated = np.where(action == Action.OOM, 0, size)  # a request that failed may have any size
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
        device_free = self._device_free
        order: NDArray[np.int64] | slice = slice(None)
        if out_of_order:
            order = np.argsort(time, kind="stable")
            place = np.argsort(order, kind="stable")
            device_free = {int(place[row]): free for row, free in device_free.items()}
        return Trace(
            device,
            action[order],
            address[order],
            size[order],
            stream[order],
            time[order],
            self._table_rows["frames"][order],
            self._table_rows["compile_context"][order],
            self._table_rows["user_metadata"][order],
            self._table_rows["pool_id"][order],
            device_free,
            out_of_order,
            untimed,
        )

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
