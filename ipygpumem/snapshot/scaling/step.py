"""Recording of one run of a step."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.stacks import Frame
from ipygpumem.snapshot.model.timeline import BEFORE, Ints
from ipygpumem.snapshot.queries.groups import label_rows
from ipygpumem.snapshot.snapshot_data import SnapshotData, check_event

_TOP_LEVEL = ("<module>", "<cell line")
"""Prefixes of the function names of top-level code: of modules, and of notebook cells in some versions of IPython."""
_MAX_NESTED = 3
"""Maximum number of other workspaces that are allocated and freed while a workspace exists."""
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_BACKWARD_FUNCTIONS = {"backward", "_engine_run_backward", "unpack_hook", "recompute_fn"}
_OPTIMIZER_FUNCTION = re.compile(r"[/\\]torch[/\\]optim[/\\].*:\d+ (step|wrapper)$")


class StepRecording:
    """Recording of one run of a step: the events of one device after event ``first``, up to event ``last``.

    Args:
        snapshot: Snapshot that contains the recording.
        device: Device index; by default the device with the highest peak.
        first: Last event before the step; by default, the step starts with the first event.
        last: Last event of the step; by default the last event.
        ids: For each allocation of the timeline, a number that identifies it in successive recordings as long as it
            exists; by default its address.

    Attributes:
        rows: Rows of the allocations of the step in ``timeline.allocations``, ordered by event.
        sizes: Requested sizes of these allocations in bytes.
        threads: Number of threads that the device can run at the same time; None if it is unknown.
        start: Requested bytes of all allocations that exist before the step.
        own_peak: Maximum of the requested bytes of the allocations in ``rows`` that exist at the same time.
    """

    def __init__(
        self,
        snapshot: SnapshotData,
        device: int | None = None,
        first: int = BEFORE,
        last: int | None = None,
        ids: Ints | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.timeline = snapshot.timeline(device)
        self.device = self.timeline.device
        self.first = check_event(first, self.timeline)
        self.last = check_event(len(self.timeline.trace) - 1 if last is None else last, self.timeline)
        allocations = self.timeline.allocations
        self.ids: Ints = allocations.address if ids is None else ids
        rows = np.flatnonzero((allocations.start > self.first) & (allocations.start <= self.last))
        self.rows: Ints = rows[np.argsort(allocations.start[rows])]
        self.sizes: Ints = allocations.size[self.rows]
        self.threads = snapshot.own.device_threads.get(self.device)
        self.start = int(self.timeline.requested.bytes[self.first + 1])
        self._live_at_own_peak, self.own_peak = self.peak_with(self.sizes)

    @property
    def peak(self) -> int:
        """Maximum of the requested bytes on the device during the step."""
        return int(self.timeline.requested.bytes[self.first + 1 : self.last + 2].max())

    @property
    def frees_segments(self) -> bool:
        """Whether cached segments, except expandable segments, were freed during the step."""
        return bool(np.any(self.timeline.trace.action[self.first + 1 : self.last + 1] == Action.SEGMENT_FREE))

    def peak_with(self, sizes: Ints) -> tuple[Ints, int]:
        """Return the indices in ``rows`` of the allocations that exist at the peak, and their total size in bytes.

        ``sizes`` contains the size in bytes of each allocation in ``rows``.
        """
        start, end = self._intervals
        change = np.zeros(self.last - self.first + 2, np.int64)
        np.add.at(change, start - self.first, sizes)
        np.subtract.at(change, end - self.first, sizes)
        levels = np.cumsum(change)[:-1]
        event = self.first + int(np.argmax(levels))
        return np.flatnonzero((start <= event) & (end > event)), int(levels.max())

    @cached_property
    def _intervals(self) -> tuple[Ints, Ints]:
        """First event of each allocation in ``rows``, and the event after its last event in the step."""
        allocations = self.timeline.allocations
        return allocations.start[self.rows], np.minimum(allocations.end[self.rows], self.last + 1)

    @cached_property
    def is_workspace(self) -> NDArray[np.bool_]:
        """Mask of the allocations in ``rows`` that were freed soon after they were made, as workspaces of cuDNN are.

        Between the allocation and the free, at most three other allocations were made and freed, with the same call
        stack. A reduction, for example, uses a buffer and semaphores.
        """
        columns = ("start", "end", "stack")
        start, end, stack = (getattr(self.timeline.allocations, name)[self.rows].tolist() for name in columns)
        result = np.zeros(len(start), np.bool_)
        later: list[int] = []  # allocations after the current one, each of which is freed after all before it
        for row in range(len(start) - 1, -1, -1):
            while later and end[later[-1]] <= end[row]:
                later.pop()
            next_allocation = later[-1] if later else len(start)
            is_nested = next_allocation == len(start) or start[next_allocation] > end[row]
            if end[row] <= self.last and is_nested:
                inside = stack[row + 1 : bisect_left(start, end[row])]
                result[row] = len(inside) <= _MAX_NESTED and inside.count(stack[row]) == len(inside)
            later.append(row)
        return result

    def live_at_own_peak(self) -> Ints:
        """Return the indices in ``rows`` of the allocations that add up to ``own_peak``."""
        return self._live_at_own_peak

    def keys(self, numbers: dict[tuple[Frame, ...], int]) -> Ints:
        """Return the number of each allocation's call stack. New call stacks are added to ``numbers``.

        The file names of top-level code are ignored, because those of cells differ between recordings.
        """
        unique, inverse = np.unique(self.timeline.allocations.stack[self.rows], return_inverse=True)
        stacks = map(self.snapshot.stacks.stack, unique.tolist())
        keys = (
            tuple(replace(frame, file="") if frame.name.startswith(_TOP_LEVEL) else frame for frame in stack)
            for stack in stacks
        )
        return np.asarray([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)[inverse]

    def lines(self, indices: Ints) -> list[str]:
        """For each of the given indices in ``rows``, return the label of the line of code of the allocation."""
        labels, label = label_rows(self.snapshot, self.timeline, self.rows[indices], "line")
        return [labels[number] for number in label.tolist()]

    def main_line(self, indices: Ints, amounts: NDArray[Any]) -> str:
        """Return the label of the line of code whose allocations have the largest sum of ``amounts``.

        ``amounts`` contains a nonnegative number for each of ``indices``, which are indices in ``rows``.
        """
        labels, label = label_rows(self.snapshot, self.timeline, self.rows[indices], "line")
        return labels[int(np.argmax(np.bincount(label, amounts)))]

    def line_before(self, index: int) -> str:
        """Return the label of the last line of user code that allocated memory, up to an index in ``rows``.

        If there is none, return the label of the allocation at this index.
        """
        stacks = self.timeline.allocations.stack[self.rows[: index + 1]]
        user_frames = np.append(self.snapshot.stacks.user_frame, -1)[stacks]
        with_line = np.flatnonzero(user_frames >= 0)
        return self.lines(with_line[-1:] if len(with_line) else np.asarray([index]))[0]

    @cached_property
    def phases(self) -> list[str]:
        """Phase of the step in which each allocation in ``rows`` was made."""
        stacks = self.timeline.allocations.stack[self.rows]
        unique, inverse = np.unique(stacks, return_inverse=True)
        phases = [_phase(self.snapshot.stacks.stack(stack)) for stack in unique.tolist()]
        return [phases[number] for number in inverse.tolist()]


def _phase(stack: tuple[Frame, ...]) -> str:
    """Return the phase of a call stack. Without frames, it is assumed to be that of a thread of the backward pass."""
    if any(_OPTIMIZER_FUNCTION.search(str(frame)) for frame in stack):
        return OPTIMIZER
    backward = any(frame.name in _BACKWARD_FUNCTIONS or "autograd::Engine" in frame.name for frame in stack)
    return BACKWARD if backward or not stack else FORWARD
