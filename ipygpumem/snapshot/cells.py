"""Which notebook cell an event belongs to: by time and by the file names in its stack."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ipygpumem.snapshot.own import Cell
    from ipygpumem.snapshot.tables import StackTable

__all__ = ["OUTSIDE", "Cells"]

OUTSIDE = "(no cell)"
_LOOK_BACK = 16  # cells that began before a time and may still run: nested or touching ones are few
_IPYTHON = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_IPYKERNEL = re.compile(r".*[/\\]ipykernel_\d+[/\\](\d+)\.py")


class Cells:
    """Finds the cell of an event.

    The cell that ran at that time is the one; where several did (nested, or touching in the same microsecond) the one
    whose file is in the stack. A file name alone is not enough, as a cell that runs again has the same one; it serves
    for blocks without a time, and where the file has no record of cells.
    """

    def __init__(self, cells: tuple[Cell, ...], stacks: StackTable) -> None:
        self._cells = cells
        self._starts = [cell.start_us for cell in cells]
        self._runs: dict[str, dict[str, None]] = {}  # file name -> labels, in the order of time
        for cell in cells:
            if cell.filename:
                self._runs.setdefault(cell.filename, {})[cell.label] = None
        self._stacks = stacks
        self._files: dict[int, list[str]] = {}

    def runs_of(self, file: str) -> str | None:
        """The label of the cell that a file name stands for, of several runs joined with "or"; None for other files."""
        if file in self._runs:
            return " or ".join(self._runs[file])
        return _from_file(file)

    def labels(self, times: NDArray[np.int64], stacks: NDArray[np.int32]) -> list[str]:
        """The label of the cell for each event, given by time (-1: unknown) and stack (-1: unknown)."""
        known: dict[tuple[int, int], str] = {}
        labels = []
        for pair in zip(times.tolist(), stacks.tolist(), strict=True):
            label = known.get(pair)
            if label is None:
                label = known[pair] = self._label(*pair)
            labels.append(label)
        return labels

    def _label(self, time: int, stack: int) -> str:
        files = self._stack_files(stack)
        running = self._running(time)
        if running:
            named = [cell for cell in running if cell.filename in files]
            return (named or running)[0].label
        return next(filter(None, map(self.runs_of, files)), OUTSIDE)

    def _running(self, time: int) -> Sequence[Cell]:
        """Cells that ran at a time, the youngest first."""
        if time < 0:
            return ()
        place = bisect_right(self._starts, time)
        recent = reversed(self._cells[max(place - _LOOK_BACK, 0) : place])
        return [cell for cell in recent if cell.end_us >= time]

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
