"""The events of one device, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
"""Names of the numbers in the ``action`` column. ``other`` is any action that PyTorch up to 2.15 does not write."""


HOST = -1
"""The device of events of pinned host memory."""


class Action:
    """Numbers in the ``action`` column."""

    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP, OOM, SNAPSHOT, ANNOTATE, OTHER = (
        range(len(ACTIONS))
    )


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Columns with one row per event, oldest first. An event is identified by its row.

    Attributes:
        device: The device's index.
        action: uint8, index into `ACTIONS`.
        address: int64; 0 if the event has none.
        size: int64, bytes. For alloc and free events the *requested* bytes.
        stream: int64, the raw stream handle; 0 is the default stream.
        time: int64, microseconds since 1970; -1 in files of torch 2.1, which recorded no time.
        stack: int32, index into the stack table; -1 if no stack was recorded.
        context: int32, index into the texts: compile context; -1 if there is none.
        metadata: int32, index into the texts: user metadata; -1 if there is none.
        pool: int32, index into the pools; -1 if not recorded (before torch 2.12).
        device_free: Free bytes of the device at each oom event.
        out_of_order: Number of events that came after a later one in the file. They were sorted by time.
        untimed: Number of events without a time. If only some have none, the times of the others are not used either.
        trouble: Why the events could not be read; empty if they were.
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
        """The time of an event in microseconds since 1970; None for -1 (before the first event) and without times."""
        return int(self.time[event]) if 0 <= event < len(self) and self.timed else None

    def events(self, *actions: int) -> NDArray[np.int64]:
        """The events with one of these actions."""
        return np.flatnonzero(np.isin(self.action, actions))
