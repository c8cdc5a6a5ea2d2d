"""Changes to a program with which a failed request would have succeeded, each confirmed by a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.serialization import PlainData
from ipygpumem.core.units import many, size
from ipygpumem.snapshot.replay.run import run

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.recording import Recording

_MAX_LINES, _MAX_OPERATIONS = 5, 200_000
_LONG_LIVED = 0.9
"""Blocks that were allocated after this share of the events are assumed to be needed by the failed step."""


@dataclass(frozen=True, slots=True)
class SuggestedChange(PlainData):
    """A change to the time at which the blocks of a line of code are allocated or freed.

    Attributes:
        label: The line, as in `Group`.
        first: Whether the blocks are allocated before all others. Otherwise, they are freed before the failed request.
        bytes: Total requested size of the blocks.
        count: Number of blocks.
    """

    label: str
    first: bool
    bytes: int
    count: int

    def sentence(self) -> str:
        """Return a sentence that describes the change."""
        blocks = f"{many(self.count, 'block')} of {self.label} ({size(self.bytes)})"
        if self.first:
            return f"Allocating {blocks} before all others, for example before the loop, would have been enough."
        return f"Freeing {blocks} before the request, for example before an evaluation, would have been enough."


def changes(
    recording: Recording, event: int, rows_of: Sequence[tuple[str, Sequence[int]]]
) -> tuple[SuggestedChange, ...]:
    """For each value of ``first``, return the smallest change with which the failed request succeeds, if there is one.

    Args:
        recording: A recording that is reproduced by its replay.
        event: The out-of-memory error.
        rows_of: Lines of code with their blocks in use, the most promising first.
    """
    found = []
    start, sizes = recording.allocations.start, recording.allocations.size
    lines = [(label, list(rows)) for label, rows in rows_of if start[list(rows)].max() <= _LONG_LIVED * event]
    count = max(1, min(_MAX_LINES, _MAX_OPERATIONS // len(recording.operations)))
    lines = sorted(lines[:count], key=lambda line: int(sizes[line[1]].sum()))
    for first in (True, False):
        for label, rows in lines:
            edited = _allocated_first(recording, rows) if first else _freed_before(recording, event, rows)
            if _serves(recording, event, edited):
                found.append(SuggestedChange(label, first, int(sizes[rows].sum()), len(rows)))
                break
    return tuple(found)


def _serves(recording: Recording, event: int, operations: list[int]) -> bool:
    """Return whether the request of an out-of-memory error is served, regardless of the addresses of new segments."""
    options: dict[str, Any] = {"limit": recording.limit[0], "operations": operations}
    runs = (run(recording, recording.settings, descending=order, **options) for order in (False, True))
    return all(event in result.served for result in runs)


def _allocated_first(recording: Recording, rows: Sequence[int]) -> list[int]:
    """Return the requests, with the allocations of some blocks moved to the start."""
    moved = set(rows)
    earlier = sorted(row for row in rows if recording.allocations.start[row] >= 0)
    return earlier + [operation for operation in recording.operations if operation not in moved]


def _freed_before(recording: Recording, event: int, rows: Sequence[int]) -> list[int]:
    """Return the requests, with the frees of some blocks moved to directly before a failed request."""
    frees = {~row for row in rows}
    place = recording.events.index(event)
    operations = recording.operations
    after = [operation for operation in operations[place:] if operation not in frees]
    return [*operations[:place], *frees, *after]
