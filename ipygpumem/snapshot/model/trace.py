"""The events of one device, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotFormatError
from ipygpumem.snapshot.model.unique_values import distinct
from ipygpumem.snapshot.reader.checks import LARGEST, MOST, column, integer, mapping
from ipygpumem.snapshot.reader.memo_table import Run
from ipygpumem.snapshot.reader.value_resolver import Placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.reader.table_builder import Book

__all__ = ["ACTIONS", "HOST", "Action", "Trace", "placed_runs", "read_trace", "unread_trace"]

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
    "other",
)
"""Names of the numbers in the ``action`` column. ``other`` is what no PyTorch up to 2.15 writes."""


HOST = -1
"""The device of events of pinned host memory."""


class Action:
    """Numbers in the ``action`` column."""

    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP, OOM, SNAPSHOT, ANNOTATE, OTHER = (
        range(len(ACTIONS))
    )


_NUMBER = {name: number for number, name in enumerate(ACTIONS)}
_WITHOUT_ADDRESS = (Action.OOM, Action.SNAPSHOT, Action.ANNOTATE, Action.OTHER)
_WITHOUT_SIZE = (Action.SNAPSHOT, Action.ANNOTATE, Action.OTHER)
_IDS = ("action", "compile_context", "user_metadata", "frames", "pool_id")
_ABSENT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """All columns have one row per event, oldest first. An event is named by its row.

    Attributes:
        device: The device's index.
        action: uint8, index into `ACTIONS`.
        address: int64; 0 where the event has none.
        size: int64, bytes. Of alloc and free events the *requested* bytes.
        stream: int64, the raw stream handle; 0 is the default stream.
        time: int64, microseconds since 1970; -1 in files of torch 2.1, which wrote no time.
        stack: int32, index into the stack table; -1 where no stack was recorded.
        context: int32, index into the texts: compile context; -1 without.
        metadata: int32, index into the texts: user metadata; -1 without.
        pool: int32, index into the pools; -1 where the file does not say (before torch 2.12).
        device_free: Free bytes of the device at each oom event.
        out_of_order: How many events stood behind a later one in the file. They were sorted in by time.
        untimed: How many events have no time. If only some have none, the times of the others are not used either.
        trouble: Why the file's events are not here, in a sentence; empty where they are.
    """

    device: int
    action: NDArray[np.uint8]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    time: NDArray[np.int64]
    stack: NDArray[np.int32]
    context: NDArray[np.int32]
    metadata: NDArray[np.int32]
    pool: NDArray[np.int32]
    device_free: dict[int, int]
    out_of_order: int
    untimed: int
    trouble: str = ""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def timed(self) -> bool:
        """Whether the events have times."""
        return len(self) > 0 and bool(self.time[0] >= 0)

    def time_of(self, event: int) -> int | None:
        """Microseconds since 1970 of an event; None for -1, the moment before the first, and without times."""
        return int(self.time[event]) if 0 <= event < len(self) and self.timed else None

    def events(self, *actions: int) -> NDArray[np.int64]:
        """The events with one of these actions."""
        return np.flatnonzero(np.isin(self.action, actions))


def placed_runs(items: Sequence[Any], where: str) -> list[Placed]:
    """The runs among a list's trace entries, with the row of their first one."""
    placed = []
    row = 0
    for item in items:
        if type(item) is Run:
            placed.append(Placed(item, where, row))
        row += len(item) if type(item) is Run else 1
    return placed


def read_trace(device: int, items: Sequence[Any], book: Book, where: str = "") -> Trace:
    """Columns of one device's list of trace entries. The book's resolver must have taken its runs.

    Raises:
        SnapshotFormatError: A value of the wrong type or out of range; the message names entry and key.
    """
    where = where or f"device_traces[{device}]"
    entries = [item for item in items if type(item) is not Run]
    book.count(entries, where)
    size = np.array([len(item) if type(item) is Run else 1 for item in items], np.int64)
    first = np.cumsum(size) - size
    columns = _Columns(int(size.sum()), where, book)
    if entries:
        columns.fill_entries(entries, first[[type(item) is not Run for item in items]])
    for placed in placed_runs(items, where):
        columns.fill_run(placed)
    return columns.trace(device)


def unread_trace(device: int, trouble: str, book: Book) -> Trace:
    """A trace without events, and why."""
    return replace(read_trace(device, [], book), trouble=trouble)


class _Columns:
    def __init__(self, count: int, where: str, book: Book) -> None:
        self._where = where
        self._book = book
        self._numbers = {name: np.full(count, _ABSENT, np.int64) for name in ("addr", "size", "stream", "time_us")}
        self._ids = {name: np.full(count, _ABSENT, np.int32) for name in _IDS}
        self._device_free: dict[int, int] = {}

    def fill_entries(self, entries: list[Any], rows: NDArray[np.int64]) -> None:
        """Rows from dicts."""
        if set(map(type, entries)) != {dict}:
            for row, entry in zip(rows.tolist(), entries, strict=True):
                mapping(entry, f"{self._where}[{row}]")

        def event(place: int) -> str:
            return f"{self._where}[{rows[place]}]"

        for name, numbers in self._numbers.items():
            values = [entry.get(name, _ABSENT) for entry in entries]
            numbers[rows] = column(values, lambda place, name=name: f"{event(place)}: {name}")  # type: ignore[misc]
        for name, ids in self._ids.items():
            ids[rows] = self._book.resolver.numbers(name, [entry.get(name) for entry in entries], event)
        for row, entry in zip(rows.tolist(), entries, strict=True):
            if "device_free" in entry:
                self._device_free[row] = integer(entry["device_free"], f"{self._where}[{row}]: device_free")

    def fill_run(self, placed: Placed) -> None:
        """Rows from lanes."""
        run = placed.run
        rows = slice(placed.row, placed.row + len(run))
        lanes = slice(run.first, run.stop)
        fields = run.lanes.fields
        for name, numbers in self._numbers.items():
            if name in fields:
                numbers[rows] = fields[name].value[lanes]
        for name, ids in self._ids.items():
            if name in fields:
                ids[rows] = self._book.resolver.column(run, name)
        if "device_free" in fields:
            free = fields["device_free"].value[lanes].tolist()
            self._device_free.update(zip(range(rows.start, rows.stop), free, strict=True))

    def trace(self, device: int) -> Trace:
        """The columns, checked and in the order of time."""
        action = self._actions()
        address, size, time = self._numbers["addr"], self._numbers["size"], self._numbers["time_us"]
        stream = self._numbers["stream"]
        for name in ("addr", "size", "time_us"):
            self._refuse(self._numbers[name] < _ABSENT, f"{name} is out of range")
        negative = [row for row, free in self._device_free.items() if free < 0]
        if negative:
            raise SnapshotFormatError(f"{self._where}[{min(negative)}]: device_free is out of range")
        absent = (address < 0) & ~np.isin(action, _WITHOUT_ADDRESS)
        self._refuse(absent, "addr is missing or negative")
        self._refuse((size < 0) & ~np.isin(action, _WITHOUT_SIZE), "size is missing or negative")
        taken = np.where(action == Action.OOM, 0, size)  # what was asked for in vain may be any number
        self._refuse(taken > LARGEST, f"size is more than {LARGEST:,} bytes")
        if taken.sum(dtype=np.float64) > MOST:
            raise SnapshotFormatError(f"{self._where}: the sizes add up to more than {MOST:,} bytes")
        address[address < 0] = 0
        size[size < 0] = 0
        stream[stream == _ABSENT] = 0
        untimed = int(np.count_nonzero(time < 0))
        if untimed:
            time[:] = _ABSENT
        late = int(np.count_nonzero(time < np.maximum.accumulate(time))) if len(time) else 0
        free = self._device_free
        order: NDArray[np.int64] | slice = slice(None)
        if late:
            order = np.argsort(time, kind="stable")
            place = np.argsort(order, kind="stable")
            free = {int(place[row]): value for row, value in free.items()}
        return Trace(
            device,
            action[order],
            address[order],
            size[order],
            stream[order],
            time[order],
            self._ids["frames"][order],
            self._ids["compile_context"][order],
            self._ids["user_metadata"][order],
            self._ids["pool_id"][order],
            free,
            late,
            untimed,
        )

    def _actions(self) -> NDArray[np.uint8]:
        ids = self._ids["action"]
        self._refuse(ids == _ABSENT, "action is missing")
        names = list(self._book.texts)
        numbers = np.full(len(names), Action.OTHER, np.uint8)
        for number in distinct(ids).tolist():
            numbers[number] = _NUMBER.get(names[number], Action.OTHER)
        return numbers[ids]

    def _refuse(self, bad: NDArray[np.bool_], what: str) -> None:
        if bad.any():
            raise SnapshotFormatError(f"{self._where}[{int(np.argmax(bad))}]: {what}")
