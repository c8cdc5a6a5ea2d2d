"""The memo of a pickle: what later opcodes may refer to. Of what lies in lanes it reads an entry when it is asked for.

Read again, such an entry is what it would have been without lanes. So an event may stand in two lists, in a tuple, or
be the place where a text begins that everything else refers to.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.snapshot.reader.batches import Lanes

__all__ = ["HELD", "Memo", "Run", "Window"]

HELD = object()
"""Stands in the memo for an object that lies in a lane and was not read so far."""


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of a list, read as lanes ``first`` to ``stop`` (excluded), and the memo index of what they make first."""

    lanes: Lanes
    first: int
    stop: int
    memo: int

    def __len__(self) -> int:
        return self.stop - self.first

    def base(self, lane: int) -> int:
        """The memo index of the first object that an entry makes."""
        return self.memo + int(self.lanes.before[lane] - self.lanes.before[self.first])


class Memo(list[Any]):
    """All objects of a pickle that have a memo index.

    Attributes:
        runs: What was read as lanes, in the order of the file.
        frozen: The id of every list and dict in lanes that was read. Nothing may be put into one later, which would
            not show in the columns.
    """

    def __init__(self, read: Callable[[int, int, Window], dict[str, Any]]) -> None:
        super().__init__()
        self._read = read
        self._entries: dict[int, dict[str, Any]] = {}
        self._firsts: list[int] = []
        self.runs: list[Run] = []
        self.frozen: set[int] = set()

    def take(self, lanes: Lanes, first: int, stop: int) -> Run:
        """Entries are read as lanes: their objects get their indices."""
        run = Run(lanes, first, stop, len(self))
        self.runs.append(run)
        self._firsts.append(run.memo)
        self.extend(repeat(HELD, int(lanes.memos[first:stop].sum())))
        return run

    def recall(self, index: int) -> Any:
        """The object with this index, wherever it lies.

        Raises:
            SnapshotFormatError: The entry that makes it is broken.
        """
        if self[index] is HELD:
            self._fill(*self._place(index))
        return self[index]

    def entries(self, run: Run) -> list[dict[str, Any]]:
        """All entries of a run, as dicts.

        Raises:
            SnapshotFormatError: One of them is broken.
        """
        return [self._fill(run, lane) for lane in range(run.first, run.stop)]

    def _place(self, index: int) -> tuple[Run, int]:
        """The run and lane that make an object."""
        # runs that make nothing have the same index as what follows: the last one is meant
        run = self.runs[bisect_right(self._firsts, index) - 1]
        offset = index - run.memo + run.lanes.before[run.first]
        return run, int(np.searchsorted(run.lanes.before, offset, side="right")) - 1

    def _fill(self, run: Run, lane: int) -> dict[str, Any]:
        """Read an entry, and before it each other that it refers to: a chain of them may be as long as the file."""
        pending = [(run, lane)]
        while pending:
            run, lane = pending[-1]
            missing = self._entry(run, lane)
            if missing:
                pending.extend(map(self._place, missing))
            else:
                pending.pop()
        return self._entries[int(run.lanes.start[lane])]

    def _entry(self, run: Run, lane: int) -> list[int]:
        """Read one entry, if all that it refers to is there; else tell the indices of what is not."""
        start = int(run.lanes.start[lane])
        if start in self._entries:
            return []
        base = run.base(lane)
        window = Window(self, base)
        entry = self._read(start, int(run.lanes.end[lane]), window)
        if not window.missing:
            self._entries[start] = entry
            self[base : base + len(window.made)] = window.made
            self.frozen.update(id(value) for value in (entry, *window.made) if type(value) in {dict, list})
        return window.missing


class Window:
    """The memo as the reader of one entry sees it: as it was when the entry came.

    Attributes:
        made: What the entry puts into it.
        missing: Indices of what the entry refers to that was not read so far.
        frozen: None, as the entry itself is in the making.
    """

    frozen: frozenset[int] = frozenset()

    def __init__(self, memo: Memo, base: int) -> None:
        self._memo = memo
        self._base = base
        self.made: list[Any] = []
        self.missing: list[int] = []

    def __len__(self) -> int:
        return self._base + len(self.made)

    def __getitem__(self, index: int) -> Any:
        return self._memo[index] if index < self._base else self.made[index - self._base]

    def append(self, value: Any) -> None:
        """Give an object its index."""
        self.made.append(value)

    def recall(self, index: int) -> None:
        """Note that something is missing."""
        self.missing.append(index)
