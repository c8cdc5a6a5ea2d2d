"""Allocator events, segments and blocks as columns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass

ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("oom", "snapshot", "annotate", "other"),
)
"""Names of the values of the ``action`` column. ``other`` represents actions of PyTorch versions later than 2.15."""

HOST = -1  # device index of events for pinned host memory

STATES = ("inactive", "active_allocated", "active_pending_free")  # names of the values of the ``state`` column


class Action:
    """Values of the ``action`` column."""

    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP, OOM, SNAPSHOT, ANNOTATE, OTHER = (
        range(len(ACTIONS))
    )


class EventValues:
    """Mapping from events to integers. A dict would be slow for events that a file chooses.

    Args:
        events: Distinct events in any order.
        values: Value for each event.
    """

    def __init__(self, events: Sequence[int] = (), values: Sequence[int] = ()) -> None:
        order = np.argsort(np.asarray(events, np.int64))
        self._events, self._values = np.asarray(events, np.int64)[order], np.asarray(values, np.int64)[order]

    def get(self, event: int) -> int | None:
        place = int(np.searchsorted(self._events, event))
        return int(self._values[place]) if place < len(self._events) and self._events[place] == event else None

    def to_dict(self) -> dict[str, int]:
        return dict(zip(map(str, self._events.tolist()), self._values.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Events of one device as columns, oldest first. Events are identified by their row index.

    Attributes:
        device: Device index; `HOST` for pinned host memory.
        action: uint8, index into `ACTIONS`.
        address: int64; 0 if the event has none.
        size: int64, size in bytes; the *requested* size for alloc and free events.
        stream: int64, the raw stream handle; 0 is the default stream.
        time: int64, microseconds since the Unix epoch; -1 for all events if one has no timestamp, as in PyTorch 2.1.
        stack: int32, index into the stack table; -1 if no stack was recorded.
        context: int32, index of the compile context in the string table; -1 if there is none.
        metadata: int32, index of the user metadata in the string table; -1 if there is none.
        pool: int32, index into the pools; -1 if not recorded (before PyTorch 2.12).
        device_free: Free device memory in bytes at the oom events for which the file contains it.
        out_of_order: Number of events that follow an event with a later timestamp in the file. Rows are sorted by time.
        untimed: Number of events without a timestamp. If there are any, no timestamps are used.
        error: Message of the error that prevented reading the events; empty if they were read.
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
    device_free: EventValues
    out_of_order: int
    untimed: int
    error: str = ""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def has_times(self) -> bool:
        return len(self) > 0 and bool(self.time[0] >= 0)

    def time_of(self, event: int) -> int | None:
        return int(self.time[event]) if 0 <= event < len(self) and self.has_times else None

    def events(self, *actions: int) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.action, actions))


class BlockState:
    """Values of the ``state`` column."""

    INACTIVE, ALLOCATED, PENDING = range(len(STATES))


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Segments of all devices as columns, ordered by device and address.

    Attributes:
        device, address: int64, device index and address of the first byte.
        size: int64, size in bytes.
        stream: int64, the raw stream handle.
        pool: int32, index into the pools; -1 if not recorded.
        small: bool, whether the segment belongs to the small pool.
        expandable: bool, whether the row is a mapped range of an expandable segment.
        stack: int32, index into the stack table; -1 if no stack was recorded.
    """

    device: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    pool: NDArray[np.int32]
    small: NDArray[np.bool_]
    expandable: NDArray[np.bool_]
    stack: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks of all devices as columns, ordered by device and address.

    Attributes:
        device, address: int64, device index and address of the first byte.
        size: int64, rounded size in bytes.
        segment: int64, row in `Segments`.
        requested: int64, requested size in bytes; 0 for a free block, for which the file contains an outdated size.
        requested_known: bool, whether the file contains the requested size; if not, ``requested`` is the rounded size.
        state: uint8, index into `STATES`.
        stack: int32, index into the stack table; -1 if no stack was recorded.
    """

    device: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    segment: NDArray[np.int64]
    requested: NDArray[np.int64]
    requested_known: NDArray[np.bool_]
    state: NDArray[np.uint8]
    stack: NDArray[np.int32]

    @property
    def active(self) -> NDArray[np.bool_]:
        """Mask of the blocks in use: allocated, or freed but still in use by another stream."""
        return np.not_equal(self.state, BlockState.INACTIVE)


class IndexByValue(dict[Any, int]):
    """Dict that assigns consecutive indices to keys in the order of their first use."""

    def __missing__(self, key: Hashable) -> int:
        index = self[key] = len(self)
        return index


def stable_order(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that sort integers stably, usually in less time than `numpy.argsort`."""
    bits = len(values).bit_length()
    if not len(values) or int(values.max()) - int(values.min()) >= 1 << (63 - bits):
        order: NDArray[np.int64] = np.argsort(values, kind="stable")
        return order
    keys: NDArray[np.int64] = ((values - values.min()) << bits) | np.arange(len(values))
    keys.sort()  # faster than sorting indices
    return keys & ((1 << bits) - 1)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values in ascending order, without hashing, which malicious files could make slow."""
    sorted_values = np.sort(values)
    different = np.append(True, sorted_values[1:] != sorted_values[:-1])[: len(sorted_values)]
    result: NDArray[Any] = sorted_values[different]
    return result


def is_in(values: NDArray[Any], table: NDArray[Any]) -> NDArray[np.bool_]:
    if not len(table):
        return np.zeros(len(values), np.bool_)
    sorted_table = np.sort(table)
    result: NDArray[np.bool_] = (
        sorted_table[np.minimum(np.searchsorted(sorted_table, values), len(sorted_table) - 1)] == values
    )
    return result
