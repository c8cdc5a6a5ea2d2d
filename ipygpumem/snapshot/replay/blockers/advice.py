"""Changes to a program that avoid a failed request or lower the peak of reserved memory, confirmed by replays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import MIB, VISIBLE, many, size
from ipygpumem.snapshot.model.columns import Action, is_in
from ipygpumem.snapshot.replay.run import run

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.replay.recording import Recording

_MAX_LINES, _MAX_OPERATIONS = 5, 200_000
_MIN_VARYING = 100
"""Minimum number of blocks with varying sizes for which padding is considered."""
_PARTS = 8
_WORTHWHILE = 0.05
_LONG_LIVED = 0.9
"""Blocks allocated after this fraction of the events before a request are assumed to be needed by the same step."""


@dataclass(frozen=True, slots=True)
class SuggestedChange(Serializable):
    """Change to the time at which the blocks of a line of code are allocated or freed, or to the sizes of blocks.

    All memory sizes are in bytes.

    Attributes:
        label: Label of the line of code, as in `Group`; empty if sizes are changed.
        allocated_first: Whether the blocks are allocated before all other blocks. Otherwise, they are freed before the
            request.
        bytes: Total requested size of the blocks.
        count: Number of blocks.
        padding: Bytes that are added to the blocks in use at the request if sizes are changed; otherwise None.
        reserved: Peak of reserved memory with the change; None if the change avoids a failed request.
    """

    label: str
    allocated_first: bool
    bytes: int
    count: int
    padding: int | None = None
    reserved: int | None = None

    def sentence(self) -> str:
        effect = "would have been enough"
        if self.reserved is not None:
            effect = f"would have lowered the peak of reserved memory to {self.reserved / MIB:,.0f} MiB"
        if self.padding is not None:
            added = f" (by {size(self.padding)} at the request)" if self.padding >= VISIBLE else ""
            return (
                f"Padding inputs to a few sizes, so that {many(self.count, 'block')} whose sizes vary from step to"
                f" step grow by up to 25%{added}, {effect}."
            )
        blocks = f"{many(self.count, 'block')} of {self.label} ({size(self.bytes)})"
        if self.allocated_first:
            return f"Allocating {blocks} before all others, for example before the loop, {effect}."
        return f"Freeing {blocks} before the request, for example before an evaluation, {effect}."


def changes(
    recording: Recording, event: int, rows_of: Sequence[tuple[str, Sequence[int]]], *, failed: bool
) -> tuple[SuggestedChange, ...]:
    """Return changes to the program that a replay confirms: an earlier allocation, an earlier free, and padding.

    With each change, a request that failed is served. For an allocation that led to the peak of reserved memory, each
    change lowers the peak by at least 5%. If a change helps for several lines of code, the line whose blocks have the
    smallest total size is returned. If no request failed, recordings of more than 200,000 requests are not analyzed.

    Args:
        recording: Recording that a replay reproduces.
        event: Event of the out-of-memory error or of the allocation.
        rows_of: Labels of lines of code, each with the rows of its blocks in use. At most the first five are tried.
        failed: Whether the request failed.
    """
    suggestions: list[SuggestedChange] = []
    if not failed and len(recording.operations) > _MAX_OPERATIONS:
        return ()
    helps = _serves if failed else _lowers_peak
    start, sizes = recording.allocations.start, recording.allocations.size
    lines = [(label, list(rows)) for label, rows in rows_of if start[list(rows)].max() <= _LONG_LIVED * event]
    count = max(1, min(_MAX_LINES, _MAX_OPERATIONS // len(recording.operations)))
    lines = sorted(lines[:count], key=lambda line: int(sizes[line[1]].sum()))
    for first in (True, False):
        for label, rows in lines:
            edited = _allocated_first(recording, rows) if first else _freed_before(recording, event, rows)
            peak = helps(recording, event, edited)
            if peak is not None:
                reserved = None if failed else peak
                suggestions.append(SuggestedChange(label, first, int(sizes[rows].sum()), len(rows), None, reserved))
                break
    varying, padded = _padded(recording)
    count = int(np.count_nonzero(varying))
    peak = helps(padded, event, recording.operations) if count >= _MIN_VARYING else None
    if peak is not None:
        added = int((padded.allocations.size - sizes)[recording.allocations.live(event)].sum())
        reserved = None if failed else peak
        suggestions.append(SuggestedChange("", False, int(sizes[varying].sum()), count, added, reserved))
    return tuple(suggestions)


def _padded(recording: Recording) -> tuple[NDArray[np.bool_], Recording]:
    """Return a mask of the blocks whose sizes vary from step to step, and a recording in which these blocks are padded.

    The recording is divided into parts of equal length. A size that occurs in each part does not vary. All other sizes
    of blocks allocated while recording, and of requests that failed, are rounded up to 4 sizes per power of 2.
    """
    allocations, trace = recording.allocations, recording.trace
    part = np.clip(allocations.start * _PARTS // len(recording.trace), 0, _PARTS - 1)
    unique, inverse = np.unique(allocations.size, return_inverse=True)
    occurs = np.zeros((len(unique), _PARTS), np.bool_)
    occurs[inverse, part] = True
    varying: NDArray[np.bool_] = (allocations.start >= 0) & ~np.all(occurs, axis=1)[inverse]
    padded = copy.copy(recording)
    padded.allocations = replace(allocations, size=np.where(varying, _rounded(allocations.size), allocations.size))
    constant = recording.settings.round(unique[np.all(occurs, axis=1)])
    is_padded = is_in(np.arange(len(trace)), trace.events(Action.OOM)) & ~is_in(trace.size, constant)
    padded.trace = replace(trace, size=np.where(is_padded, _rounded(trace.size), trace.size))
    return varying, padded


def _rounded(sizes: Ints) -> Ints:
    exponents = np.maximum(np.frexp(sizes)[1] - 3, 0)
    rounded: Ints = -(-sizes >> exponents) << exponents
    return rounded


def _serves(recording: Recording, event: int, operations: NDArray[Any]) -> int | None:
    """Return the peak of reserved memory in bytes if a request that failed is served; otherwise None.

    The request must be served both with increasing and with decreasing addresses of new segments. If it failed only
    within a given capacity, the requests that follow must be served as well.
    """
    limit = {"limit": recording.limit[0], "by_fraction": recording.by_fraction}
    options: dict[str, Any] = {**limit, "operations": operations}
    peak = 0
    for order in (False, True):
        result = run(recording, recording.settings, descending=order, **options)
        is_recorded = recording.trace.action[event] == Action.OOM
        if event not in result.served if is_recorded else result.failure is not None:
            return None
        peak = max(peak, result.allocator.peak)
    return peak


def _lowers_peak(recording: Recording, event: int, operations: NDArray[Any]) -> int | None:
    """Return the peak of reserved memory in bytes, or None if it is not at least 5% below the value after ``event``.

    The result is also None if the reserved memory was not recorded.
    """
    reserved = recording.timeline.reserved
    peak = 0
    for order in (False, True):
        peak = max(peak, run(recording, recording.settings, descending=order, operations=operations).allocator.peak)
        if reserved is None or peak > (1 - _WORTHWHILE) * int(reserved.bytes[event + 1]):
            return None
    return peak


def _allocated_first(recording: Recording, rows: Sequence[int]) -> NDArray[Any]:
    moved = np.sort(rows)
    unchanged = recording.operations[~is_in(recording.operations, moved)]
    return np.append(moved[recording.allocations.start[moved] >= 0], unchanged)


def _freed_before(recording: Recording, event: int, rows: Sequence[int]) -> NDArray[Any]:
    frees = ~np.asarray(rows)
    before, after = np.split(recording.operations, [np.searchsorted(recording.events, event)])
    return np.concatenate([before, frees, after[~is_in(after, frees)]])
