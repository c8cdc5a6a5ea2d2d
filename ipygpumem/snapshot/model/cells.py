"""Notebook cells and their assignment to events, and other metadata that ipygpumem's recorder writes."""

from __future__ import annotations

import heapq
import re
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.snapshot.model.columns import distinct
from ipygpumem.snapshot.model.stacks import StackTable

OUTSIDE = "(no cell)"
_MAX_LABELS = 3
_MAX_FILES = 100  # maximum number of cells in a stack that are considered
_NUMBER = re.compile(r"[0-9]{1,9}")
FOREVER = (1 << 63) - 1
_IPYTHON = re.compile(r"<ipython-input-([0-9]+)-[0-9a-f]+>")
_IPYKERNEL = re.compile(r".*[/\\]ipykernel_[0-9]+[/\\]([0-9]+)\.py")


@dataclass(frozen=True, slots=True)
class Cell:
    """One execution of a notebook cell.

    Attributes:
        number: Execution count, such as 3 for ``In[3]``; None if the cell has no execution count.
        filename: File name under which IPython compiled the cell; empty if unknown.
        start_us, end_us: Start and end time in microseconds since the Unix epoch.
        success: Whether the cell finished without an exception; None if unknown.
    """

    number: int | None
    filename: str
    start_us: int
    end_us: int
    success: bool | None

    @property
    def label(self) -> str:
        return (self.filename or "(unnamed cell)") if self.number is None else f"In[{self.number}]"


def block_key(device: int, address: int) -> bytes:
    """Return a dict key for a block. A file can choose the hashes of integers, but not those of bytes."""
    return struct.pack("<qq", device, address)


@dataclass(frozen=True, slots=True)
class RecorderMetadata:
    """Metadata that ipygpumem's recorder writes. Files written by other programs contain no such metadata.

    Attributes:
        version: Version of ipygpumem that wrote the file, or None if another program did.
        torch: Version of PyTorch, or None if unknown.
        host: Name of the machine, or None if unknown.
        cells: Runs of notebook cells during the recording.
        execution_counts: Execution counts of the cells in the recorded stacks, by file name.
        dropped: Number of allocation events dropped from the ring buffer, by device index; None if unknown.
        device_names: Name of each device, by device index.
        device_totals: Total memory of each device in bytes, by device index.
        device_limits: Limit of PyTorch's reserved memory in bytes that the program had set, by device index.
        device_threads: Number of threads that a device can run at the same time, by device index.
        variables: Names of variables by the `block_key` of the block that they hold at the end.
        readings: Memory counters ``before`` and ``after`` the recording, by device.
        curves: Sampled curves by name, each with ``device``, ``time_us`` and ``bytes``.
    """

    version: str | None = None
    torch: str | None = None
    host: str | None = None
    cells: tuple[Cell, ...] = ()
    execution_counts: dict[str, int] = field(default_factory=dict)
    dropped: tuple[int | None, ...] = ()
    device_names: dict[int, str] = field(default_factory=dict)
    device_totals: dict[int, int] = field(default_factory=dict)
    device_limits: dict[int, int] = field(default_factory=dict)
    device_threads: dict[int, int] = field(default_factory=dict)
    variables: dict[bytes, str] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)

    @property
    def torch_version(self) -> tuple[int, ...] | None:
        """Major and minor version of PyTorch, such as ``(2, 13)``; None if unknown."""
        parts = (self.torch or "").split(".")[:2]
        return tuple(int(part) for part in parts if _NUMBER.fullmatch(part)) or None

    def dropped_of(self, device: int) -> int | None:
        return self.dropped[device] if 0 <= device < len(self.dropped) else None


class CellLookup:
    """Lookup of the cell in which an event occurred.

    An event belongs to the cell that was running at its time. If several cells were running (nested cells, or
    consecutive cells in the same microsecond), it belongs to the latest cell whose file name occurs in the call stack.
    File names alone are ambiguous because all runs of a cell have the same file name. They are used only for blocks
    without a timestamp and for snapshots without a list of cells.
    """

    def __init__(self, cells: tuple[Cell, ...], stacks: StackTable, numbers: Mapping[str, int] | None = None) -> None:
        self._cells = cells
        runs: dict[str, list[int]] = {}  # by file name, ordered by time
        for number, cell in enumerate(cells):
            if cell.filename:
                runs.setdefault(cell.filename, []).append(number)
        self._runs = {file: np.asarray(numbers) for file, numbers in runs.items()}
        self._labels: dict[str, str | None] = {file: f"In[{number}]" for file, number in (numbers or {}).items()}
        self._labels |= {file: self._joined_labels(numbers) for file, numbers in runs.items()}
        self._intervals: dict[str, TimeIntervals] = {}
        self._stacks = stacks
        # by stack, starting with -1; a dict would be slow for stacks that a file chooses
        self._files: list[list[str] | None] = [None] * (len(stacks.leaf) + 1)

    def _joined_labels(self, numbers: Sequence[int]) -> str:
        labels = list(dict.fromkeys(self._cells[number].label for number in numbers))
        return " or ".join(labels) if len(labels) <= _MAX_LABELS else f"{labels[0]} … {labels[-1]}"

    def runs_of(self, file: str) -> str | None:
        if file not in self._labels:
            self._labels[file] = _label_from_file_name(file)
        return self._labels[file]

    def runs_at(self, file: str, times: NDArray[np.int64]) -> str | None:
        """Return a label for the runs of a cell at the given times, or None if the file is not a cell.

        If one of the times is outside all runs, the label names all runs.
        """
        if len(self._runs.get(file, ())) <= 1:
            return self.runs_of(file)
        active = self._active(file, times)
        return self.runs_of(file) if (active < 0).any() else self._joined_labels(distinct(active).tolist())

    def labels(self, times: NDArray[np.int64], stacks: NDArray[np.int32]) -> list[str]:
        """Return the cell label of each event from its timestamp and stack index, which are -1 if unknown."""
        labels = np.full(len(times), OUTSIDE, object)
        order = np.argsort(stacks, kind="stable")
        edges = np.flatnonzero(np.diff(stacks[order])) + 1
        for rows in np.split(order, edges) if len(order) else ():
            files = self._cell_files(int(stacks[rows[0]]))
            cells = np.full(len(rows), -1, np.int64)
            for file in files:
                if file in self._runs:
                    cells = np.maximum(cells, self._active(file, times[rows]))
            cells = np.where(cells < 0, self._active("", times[rows]), cells)
            labels[rows] = self.runs_of(files[0]) if files else OUTSIDE
            known_rows = np.flatnonzero(cells >= 0)
            labels[rows[known_rows]] = [self._cells[number].label for number in cells[known_rows].tolist()]
        return labels.tolist()

    def _active(self, file: str, times: NDArray[np.int64]) -> NDArray[np.int64]:
        if file not in self._intervals:
            runs = [self._cells[number] for number in self._runs[file].tolist()] if file else self._cells
            self._intervals[file] = TimeIntervals([run.start_us for run in runs], [run.end_us for run in runs])
        active = self._intervals[file].at(times)
        return np.where(active < 0, -1, self._runs[file][active]) if file else active

    def _cell_files(self, stack: int) -> list[str]:
        files = self._files[stack + 1]
        if files is None:
            names = dict.fromkeys(frame.file for frame in reversed(self._stacks.stack(stack)))
            files = self._files[stack + 1] = list(islice(filter(self.runs_of, names), _MAX_FILES))
        return files


def _label_from_file_name(file: str) -> str | None:
    if match := _IPYTHON.fullmatch(file):
        return f"In[{match[1]}]"
    if match := _IPYKERNEL.fullmatch(file):
        return f"cell {match[1]}"
    return None


class TimeIntervals:
    """Closed time intervals, which may overlap.

    Args:
        starts: Start of each interval, in ascending order.
        ends: End of each interval; the maximum of int64 if the interval is open-ended.
        priorities: Priority of each interval. Where intervals overlap, the interval with the highest priority takes
            precedence, or the latest if the priorities are equal or omitted.
    """

    def __init__(self, starts: Sequence[int], ends: Sequence[int], priorities: Sequence[Any] | None = None) -> None:
        after = (end + 1 for end in ends if end < FOREVER)
        self._times = distinct(np.asarray([*starts, *after], np.int64))
        order = range(len(starts)) if priorities is None else sorted(range(len(starts)), key=priorities.__getitem__)
        place = array("q", bytes(8 * len(starts)))  # a dict would be slow in an order that a file chooses
        for number, interval in enumerate(order):
            place[interval] = number
        active: list[tuple[int, int]] = []  # heap with the highest priority first
        top = []
        start_count = 0
        for time in self._times.tolist():
            while start_count < len(starts) and starts[start_count] <= time:
                heapq.heappush(active, (-place[start_count], start_count))
                start_count += 1
            while active and ends[active[0][1]] < time:
                heapq.heappop(active)
            top.append(active[0][1] if active else -1)
        self._top = np.asarray([*top, -1], np.int64)

    def at(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the interval with the highest priority at each time; -1 outside all intervals."""
        return self._top[np.searchsorted(self._times, times, side="right") - 1]
