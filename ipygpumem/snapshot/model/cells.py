"""Which notebook cell an event belongs to: by time and by the file names in its stack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.model.intervals import Spans
from ipygpumem.snapshot.model.unique_values import distinct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.recorder_metadata import Cell
    from ipygpumem.snapshot.model.stacks import StackTable

__all__ = ["OUTSIDE", "Cells"]

OUTSIDE = "(no cell)"
_NAMED = 3  # runs of a cell that are named one by one
_IPYTHON = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_IPYKERNEL = re.compile(r".*[/\\]ipykernel_\d+[/\\](\d+)\.py")


class Cells:
    """Finds the cell of an event.

    The cell that ran at that time is the one; where several did (nested, or touching in the same microsecond) the
    youngest whose file is in the stack. A file name alone is not enough, as a cell that runs again has the same one; it
    serves for blocks without a time, and where the file has no record of cells.
    """

    def __init__(self, cells: tuple[Cell, ...], stacks: StackTable, numbers: Mapping[str, int] | None = None) -> None:
        self._cells = cells
        runs: dict[str, list[int]] = {}  # file name -> its cells, in the order of time
        for number, cell in enumerate(cells):
            if cell.filename:
                runs.setdefault(cell.filename, []).append(number)
        self._runs = {file: np.asarray(numbers) for file, numbers in runs.items()}
        self._names = {file: f"In[{number}]" for file, number in (numbers or {}).items()}
        self._names |= {file: self._joined(numbers) for file, numbers in runs.items()}
        self._spans: dict[str, Spans] = {}
        self._stacks = stacks
        self._files: dict[int, list[str]] = {}

    def _joined(self, numbers: Sequence[int]) -> str:
        """Several runs in words that stay short."""
        labels = list(dict.fromkeys(self._cells[number].label for number in numbers))
        return " or ".join(labels) if len(labels) <= _NAMED else f"{labels[0]} … {labels[-1]}"

    def runs_of(self, file: str) -> str | None:
        """The label of the cell that a file name stands for, of several runs all; None for other files."""
        return self._names.get(file) or _from_file(file)

    def runs_at(self, file: str, times: NDArray[np.int64]) -> str | None:
        """As `runs_of`, but only the runs that were under way at these times, if there is one for each."""
        if len(self._runs.get(file, ())) <= 1:
            return self.runs_of(file)
        found = self._running(file, times)
        return self.runs_of(file) if (found < 0).any() else self._joined(distinct(found).tolist())

    def labels(self, times: NDArray[np.int64], stacks: NDArray[np.int32]) -> list[str]:
        """The label of the cell for each event, given by time (-1: unknown) and stack (-1: unknown)."""
        labels = np.full(len(times), OUTSIDE, object)
        order = np.argsort(stacks, kind="stable")
        edges = np.flatnonzero(np.diff(stacks[order])) + 1
        for rows in np.split(order, edges) if len(order) else ():
            files = self._stack_files(int(stacks[rows[0]]))
            found = np.full(len(rows), -1, np.int64)
            for file in files:
                if file in self._runs:
                    found = np.maximum(found, self._running(file, times[rows]))
            found = np.where(found < 0, self._running("", times[rows]), found)
            labels[rows] = next(filter(None, map(self.runs_of, files)), OUTSIDE)
            for number in distinct(found[found >= 0]).tolist():
                labels[rows[found == number]] = self._cells[number].label
        return labels.tolist()

    def _running(self, file: str, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The youngest run of a file (of all, for the empty name) at each time; -1 where there was none."""
        numbers = self._runs[file] if file else np.arange(len(self._cells))
        if file not in self._spans:
            chosen = [self._cells[number] for number in numbers.tolist()]
            self._spans[file] = Spans([cell.start_us for cell in chosen], [cell.end_us for cell in chosen])
        return np.append(numbers, -1)[self._spans[file].at(times)]

    def _stack_files(self, stack: int) -> list[str]:
        """Files in a stack, the outermost first: the cell that ran, then what it called."""
        if stack not in self._files:
            frames = self._stacks.stack(stack)
            self._files[stack] = list(dict.fromkeys(frame.file for frame in reversed(frames)))
        return self._files[stack]


def _from_file(file: str) -> str | None:
    """A label for the file name that IPython gives to a cell."""
    if match := _IPYTHON.fullmatch(file):
        return f"In[{match[1]}]"
    if match := _IPYKERNEL.fullmatch(file):
        return f"cell {match[1]}"
    return None
