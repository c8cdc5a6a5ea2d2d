"""Timelines of memory usage by category, with a row for each change on a device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ipygpumem.features.profile.categories import CATEGORIES, UNKNOWN, DataFlow, UnmatchedEvent, all_versions, classify

_ALLOCATED, _WRITTEN, _FREED = range(3)
"""Order of changes with the same timestamp."""
_NONE = -1
_HOST = "cpu"


@dataclass(frozen=True)
class CategoryTimeline:
    """The memory usage of one device by category over time.

    Attributes:
        device: Device name, such as ``"cuda:0"`` or ``"cpu"``.
        base: Initial size of each category in bytes, excluding memory that was neither used nor freed in the profile.
        time: Timestamp of each change in nanoseconds since the Unix epoch.
        source: Index of the category that shrinks with each change; -1 for allocations.
        target: Index of the category that grows with each change; -1 for frees.
        size: Size of each change in bytes.
        allocated: The allocator's counter of allocated bytes after each change, including memory that was allocated
            before the profile; -1 if unknown. None if the profile contains no counters, and always None on the host.
        reserved: The allocator's counter of reserved bytes after each change; -1 or None as for ``allocated``.
        start, end: Bounds of the time axis in nanoseconds since the Unix epoch.
    """

    device: str
    base: NDArray[np.int64]
    time: NDArray[np.int64]
    source: NDArray[np.int8]
    target: NDArray[np.int8]
    size: NDArray[np.int64]
    allocated: NDArray[np.int64] | None = None
    reserved: NDArray[np.int64] | None = None
    start: int = 0
    end: int = 0

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def usage(self) -> NDArray[np.int64]:
        """Size of each category in bytes, initially (row 0) and after each change."""
        rows = np.zeros((len(self) + 1, len(CATEGORIES)), np.int64)
        rows[0] = self.base
        numbers = np.arange(1, len(self) + 1)
        for categories, sign in ((self.source, -1), (self.target, 1)):
            valid = categories >= 0
            np.add.at(rows, (numbers[valid], categories[valid]), sign * self.size[valid])
        return np.cumsum(rows, axis=0, out=rows)

    @cached_property
    def total(self) -> NDArray[np.int64]:
        return np.asarray(self.usage.sum(axis=1))

    @property
    def peak(self) -> tuple[int, int]:
        """Index of the first row of `usage` with the highest total, and this total in bytes."""
        row = int(self.total.argmax())
        return row, int(self.total[row])

    def elapsed(self, row: int) -> int:
        """Return the time in nanoseconds from the start of the time axis to a row of `usage`."""
        return 0 if row == 0 else max(int(self.time[row - 1]) - self.start, 0)


@dataclass(eq=False)
class _DeviceChanges:
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # time, order, source, target, size
    base: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(CATEGORIES), np.int64))


def build_timelines(flow: DataFlow) -> tuple[CategoryTimeline, ...]:
    """Return a timeline for each device: the GPUs in descending order of their peaks, followed by the host."""
    devices: defaultdict[str, _DeviceChanges] = defaultdict(_DeviceChanges)
    _add_unmatched(flow.unmatched, devices)
    _add_tensors(flow, devices)
    timelines = [_timeline(device, changes, flow) for device, changes in devices.items()]
    timelines.sort(key=lambda timeline: (timeline.device == _HOST, -timeline.peak[1], timeline.device))
    return tuple(timelines)


def _add_unmatched(events: list[UnmatchedEvent], devices: defaultdict[str, _DeviceChanges]) -> None:
    live: set[tuple[str, int]] = set()  # a repeated allocation at an address is ignored if no free precedes it
    for time, device, address, size in events:
        block = device, address
        if size <= 0:
            devices[device].rows.append((time, _FREED, UNKNOWN, _NONE, -size))
            if block not in live:
                devices[device].base[UNKNOWN] -= size
            live.discard(block)
        elif block not in live:
            live.add(block)
            devices[device].rows.append((time, _ALLOCATED, _NONE, UNKNOWN, size))


def _add_tensors(flow: DataFlow, devices: defaultdict[str, _DeviceChanges]) -> None:
    categories = classify(flow)
    category_of = categories.category_of
    versions = all_versions(flow, categories)
    last_version: dict[int, int] = {}
    for tensor, version in versions:
        last_version[tensor] = max(version, last_version.get(tensor, 0))
        size = flow.sizes[tensor]
        if version == 0 and tensor not in flow.allocation_times and size:
            devices[flow.devices[tensor]].base[category_of(tensor, 0)] += size

    def add(tensor: int, time: int, order: int, source: int, target: int) -> None:
        size = flow.sizes[tensor]
        if size and source != target:
            devices[flow.devices[tensor]].rows.append((time, order, source, target, size))

    for node in flow.nodes:
        for tensor in node.allocated:
            add(tensor, flow.allocation_times[tensor], _ALLOCATED, _NONE, category_of(tensor, 0))
        for tensor, version in node.written:
            add(tensor, node.time, _WRITTEN, category_of(tensor, version), category_of(tensor, version + 1))
        for tensor in node.freed:
            add(tensor, flow.free_times[tensor], _FREED, category_of(tensor, last_version.get(tensor, 0)), _NONE)


def _timeline(device: str, changes: _DeviceChanges, flow: DataFlow) -> CategoryTimeline:
    table = np.array(sorted(changes.rows, key=lambda row: row[:2]), np.int64).reshape(-1, 5)
    time = np.ascontiguousarray(table[:, 0])
    timestamps = [*filter(None, flow.span), *time[:1].tolist(), *time[-1:].tolist()]
    allocated = reserved = None
    if device != _HOST and flow.counters.get(device):
        counters = np.array(sorted(flow.counters[device], key=lambda entry: entry[0]), np.int64)
        latest = np.searchsorted(counters[:, 0], time, side="right") - 1
        allocated, reserved = (np.where(latest >= 0, counters[np.maximum(latest, 0), column], -1) for column in (1, 2))
    return CategoryTimeline(
        device,
        changes.base,
        time,
        table[:, 2].astype(np.int8),
        table[:, 3].astype(np.int8),
        np.ascontiguousarray(table[:, 4]),
        allocated,
        reserved,
        min(timestamps, default=0),
        max(timestamps, default=0),
    )
