"""Notebook cells and annotated regions: what a file says about them, and to which of them an event belongs."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.to_dict import PlainData
from ipygpumem.snapshot.model.unique_values import distinct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.stacks import StackTable

OUTSIDE = "(no cell)"
_MAX_LABELS = 3
_FOREVER = (1 << 63) - 1
_IPYTHON = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_IPYKERNEL = re.compile(r".*[/\\]ipykernel_\d+[/\\](\d+)\.py")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a notebook cell, in microseconds since 1970.

    Attributes:
        number: The n of In[n], or None for code without a number.
        filename: The file name in the frames of code that the cell defines; empty if unknown.
        success: Whether it finished without an exception; None if unknown.
    """

    number: int | None
    filename: str
    start_us: int
    end_us: int
    success: bool | None

    @property
    def label(self) -> str:
        """``"In[3]"``, or the file name of a cell without a number."""
        return (self.filename or "(a cell)") if self.number is None else f"In[{self.number}]"


@dataclass(frozen=True, slots=True)
class RecorderMetadata:
    """The ``ipygpumem`` key of a file; defaults for a file without one.

    Attributes:
        version: Version of ipygpumem that wrote the file, or None if another program did.
        host: Name of the machine.
        cells: Runs of cells, ordered by start.
        numbers: The n of In[n] of cells that ran before the recording, by file name.
        dropped: For each device, the number of allocations that the ring buffer dropped; None if unknown.
        device_names, device_totals: Name and bytes of each device, by index.
        readings: Byte counts ``before`` and ``after``, as written.
        curves: Further curves by name, as written: device, time_us, bytes.
    """

    version: str | None = None
    torch: str | None = None
    host: str | None = None
    cells: tuple[Cell, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    dropped: tuple[int | None, ...] = ()
    device_names: dict[int, str] = field(default_factory=dict)
    device_totals: dict[int, int] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)

    def dropped_of(self, device: int) -> int | None:
        """The number of allocations of a device that the ring buffer dropped; None if unknown."""
        return self.dropped[device] if device < len(self.dropped) else None


class CellLookup:
    """Finds the cell of an event.

    It is the cell that ran at the time of the event. If several did (nested, or adjacent in the same microsecond), it
    is the latest one whose file is in the stack. File names alone are not enough, as every run of a cell has the same
    one; they are used for blocks without a time and for files without a list of cells.
    """

    def __init__(self, cells: tuple[Cell, ...], stacks: StackTable, numbers: Mapping[str, int] | None = None) -> None:
        self._cells = cells
        runs: dict[str, list[int]] = {}  # by file name, ordered by time
        for number, cell in enumerate(cells):
            if cell.filename:
                runs.setdefault(cell.filename, []).append(number)
        self._runs = {file: np.asarray(numbers) for file, numbers in runs.items()}
        self._labels = {file: f"In[{number}]" for file, number in (numbers or {}).items()}
        self._labels |= {file: self._joined_labels(numbers) for file, numbers in runs.items()}
        self._intervals: dict[str, Intervals] = {}
        self._stacks = stacks
        self._files: dict[int, list[str]] = {}

    def _joined_labels(self, numbers: Sequence[int]) -> str:
        labels = list(dict.fromkeys(self._cells[number].label for number in numbers))
        return " or ".join(labels) if len(labels) <= _MAX_LABELS else f"{labels[0]} … {labels[-1]}"

    def runs_of(self, file: str) -> str | None:
        """The label of the cell with this file name, with all its runs; None for other files."""
        return self._labels.get(file) or _label_from_file_name(file)

    def runs_at(self, file: str, times: NDArray[np.int64]) -> str | None:
        """As `runs_of`, but only the runs that were active at these times, if one was active at each."""
        if len(self._runs.get(file, ())) <= 1:
            return self.runs_of(file)
        active = self._active(file, times)
        return self.runs_of(file) if (active < 0).any() else self._joined_labels(distinct(active).tolist())

    def labels(self, times: NDArray[np.int64], stacks: NDArray[np.int32]) -> list[str]:
        """The label of the cell for each event, given by time and stack (-1 if unknown)."""
        labels = np.full(len(times), OUTSIDE, object)
        order = np.argsort(stacks, kind="stable")
        edges = np.flatnonzero(np.diff(stacks[order])) + 1
        for rows in np.split(order, edges) if len(order) else ():
            files = self._stack_files(int(stacks[rows[0]]))
            cells = np.full(len(rows), -1, np.int64)
            for file in files:
                if file in self._runs:
                    cells = np.maximum(cells, self._active(file, times[rows]))
            cells = np.where(cells < 0, self._active("", times[rows]), cells)
            labels[rows] = next(filter(None, map(self.runs_of, files)), OUTSIDE)
            for number in distinct(cells[cells >= 0]).tolist():
                labels[rows[cells == number]] = self._cells[number].label
        return labels.tolist()

    def _active(self, file: str, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The latest run of a file (of all files if empty) at each time; -1 if there was none."""
        numbers = self._runs[file] if file else np.arange(len(self._cells))
        if file not in self._intervals:
            runs = [self._cells[number] for number in numbers.tolist()]
            self._intervals[file] = Intervals([run.start_us for run in runs], [run.end_us for run in runs])
        return np.append(numbers, -1)[self._intervals[file].at(times)]

    def _stack_files(self, stack: int) -> list[str]:
        """The files in a stack, outermost first: the cell that ran, then what it called."""
        if stack not in self._files:
            frames = self._stacks.stack(stack)
            self._files[stack] = list(dict.fromkeys(frame.file for frame in reversed(frames)))
        return self._files[stack]


def _label_from_file_name(file: str) -> str | None:
    """The label for the file name that IPython gives to a cell."""
    if match := _IPYTHON.fullmatch(file):
        return f"In[{match[1]}]"
    if match := _IPYKERNEL.fullmatch(file):
        return f"cell {match[1]}"
    return None


class Intervals:
    """Closed intervals from ``starts`` to ``ends``, in microseconds.

    Args:
        starts: In ascending order.
        ends: The maximum of int64 for an interval without an end.
        ranks: Of overlapping intervals the one with the higher rank is on top, of equal ranks the later one. By default
            the later one.
    """

    def __init__(self, starts: Sequence[int], ends: Sequence[int], ranks: Sequence[Any] | None = None) -> None:
        after = (end + 1 for end in ends if end < _FOREVER)
        self._times = distinct(np.asarray([*starts, *after], np.int64))
        order = range(len(starts)) if ranks is None else sorted(range(len(starts)), key=ranks.__getitem__)
        rank = {interval: number for number, interval in enumerate(order)}
        active: list[tuple[int, int]] = []  # heap with the top interval first
        top = []
        started = 0
        for time in self._times.tolist():
            while started < len(starts) and starts[started] <= time:
                heapq.heappush(active, (-rank[started], started))
                started += 1
            while active and ends[active[0][1]] < time:
                heapq.heappop(active)
            top.append(active[0][1] if active else -1)
        self._top = np.asarray([*top, -1], np.int64)

    def at(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each time the number of the interval on top; -1 outside of all."""
        return self._top[np.searchsorted(self._times, times, side="right") - 1]


@dataclass(frozen=True, slots=True)
class Annotation(PlainData):
    """One region, from ``start_us`` to ``end_us`` in microseconds since 1970; None if that was not recorded.

    Attributes:
        name: Its name, ``Optimizer.step#AdamW.step``.
        device: The current device; -1 if there was none.
        depth: Number of enclosing regions.
        ambiguous: It overlaps another region without being nested in it. Files do not name threads: either several were
            active, or an entry is missing, and START and END of the same name may be paired incorrectly.
    """

    name: str
    device: int
    start_us: int | None
    end_us: int | None
    depth: int
    ambiguous: bool


def innermost(annotations: tuple[Annotation, ...], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each time the number of the innermost region, the later one of two at the same depth; -1 if there is none."""
    if not annotations or not len(times):
        return np.full(len(times), -1, np.int64)
    starts = [-1 if region.start_us is None else region.start_us for region in annotations]
    ends = [_FOREVER if region.end_us is None else region.end_us for region in annotations]
    ranks = [(region.depth, start) for region, start in zip(annotations, starts, strict=True)]
    # unknown times are -1, too: a region that started before the recording does not contain them
    return np.where(times < 0, -1, Intervals(starts, ends, ranks).at(times))
