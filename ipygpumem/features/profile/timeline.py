"""Bytes of each category over time, exactly: one row for each change, per device."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.features.profile.categories import CATEGORIES, UNKNOWN, classify, versions_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.features.profile.flow import Flow, Nameless

__all__ = ["CategoryTimeline", "Profile", "profile_of"]

_BEFORE, _CREATED, _CHANGED, _FREED = range(4)
_NONE = -1
_HOST = "cpu"


@dataclass(frozen=True)
class CategoryTimeline:
    """One device's memory.

    Attributes:
        device: ``cpu`` or ``cuda:0``.
        base: int64, shape (categories,): bytes there before the first change, as far as the profile saw them used.
        time: int64, shape (changes,): nanoseconds since 1970.
        source: int8: the category that loses ``size`` bytes; -1 for memory that is new.
        target: int8: the category that gains them; -1 for memory that is freed.
        size: int64, bytes.
        allocated: int64: what the allocator itself counted after each change, with all that was there before the
            profile; -1 where it does not tell. None on the host, whose allocator counts only while it is profiled.
        reserved: As ``allocated``.
        span: First and last nanosecond of the profile.
    """

    device: str
    base: NDArray[np.int64]
    time: NDArray[np.int64]
    source: NDArray[np.int8]
    target: NDArray[np.int8]
    size: NDArray[np.int64]
    allocated: NDArray[np.int64] | None = None
    reserved: NDArray[np.int64] | None = None
    span: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        """How many changes there are."""
        return len(self.time)

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """Bytes of each category, shape (changes + 1, categories): row 0 before the first change."""
        rows = np.zeros((len(self) + 1, len(CATEGORIES)), np.int64)
        rows[0] = self.base
        at = np.arange(1, len(self) + 1)
        for place, sign in ((self.source, -1), (self.target, 1)):
            there = place >= 0
            np.add.at(rows, (at[there], place[there]), sign * self.size[there])
        return np.cumsum(rows, axis=0, out=rows)

    @cached_property
    def total(self) -> NDArray[np.int64]:
        """Bytes of all categories, shape (changes + 1,)."""
        found: NDArray[np.int64] = self.levels.sum(axis=1)
        return found

    @property
    def peak(self) -> tuple[int, int]:
        """The state (row of `levels`) with the most bytes, the first of equals, and these bytes."""
        row = int(self.total.argmax())
        return row, int(self.total[row])

    @property
    def categorised(self) -> bool:
        """Whether anything but ``unknown`` is known."""
        return bool((self.levels[:, :UNKNOWN] != 0).any())

    def when(self, row: int) -> int:
        """Nanoseconds from the profile's beginning to a state."""
        return 0 if row == 0 else max(int(self.time[row - 1]) - self.start, 0)

    @property
    def start(self) -> int:
        """Nanosecond at which the axis of time begins."""
        first = int(self.time[0]) if len(self) else self.span[0]
        return min(first, self.span[0]) if self.span[0] else first

    @property
    def end(self) -> int:
        """Nanosecond at which it ends."""
        return max(int(self.time[-1]) if len(self) else self.start, self.span[1], self.start)


@dataclass(frozen=True)
class Profile:
    """What a profile says of memory, by device; those with the highest peak first, GPUs before the host.

    ``why``: why categories are unknown, where they are.
    """

    timelines: tuple[CategoryTimeline, ...]
    why: str = ""


@dataclass(slots=True)
class _Rows:
    """Changes of one device while they are collected: (time, kind of change, source, target, bytes)."""

    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    before: list[tuple[int, int]] = field(default_factory=list)


def profile_of(flow: Flow, why: str = "") -> Profile:
    """The timelines of a program; ``why`` is why its operators are not known, where they are not."""
    found: dict[str, _Rows] = defaultdict(_Rows)
    _nameless(flow.nameless, found)
    _named(flow, found)
    timelines = [_timeline(device, rows, flow) for device, rows in found.items() if rows.rows or rows.before]
    timelines.sort(key=lambda one: (one.device == _HOST, -one.peak[1], one.device))
    return Profile(tuple(timelines), why)


def _nameless(events: list[Nameless], found: dict[str, _Rows]) -> None:
    """Memory without a tensor: unknown. An address that is allocated twice was freed unseen in between."""
    live: dict[tuple[str, int], int] = {}
    for time, device, address, size in events:
        place = device, address
        if size > 0:
            if place not in live:
                live[place] = size
                found[device].rows.append((time, _CREATED, _NONE, UNKNOWN, size))
        else:
            found[device].rows.append((time, _FREED, UNKNOWN, _NONE, -size))
            if live.pop(place, None) is None:
                found[device].before.append((UNKNOWN, -size))


def _named(flow: Flow, found: dict[str, _Rows]) -> None:
    categories = classify(flow)
    of = categories.of
    versions = versions_of(flow, categories)
    last: dict[int, int] = {}
    for tensor, version in versions:
        last[tensor] = max(version, last.get(tensor, 0))

    def change(tensor: int, time: int, kind: int, source: int, target: int) -> None:
        size = flow.sizes[tensor]
        if size and source != target:
            found[flow.devices[tensor]].rows.append((time, kind, source, target, size))

    for tensor, version in versions:
        size = flow.sizes[tensor]
        if version == 0 and tensor not in flow.allocated and size:
            found[flow.devices[tensor]].before.append((of(tensor, 0), size))
    for node in flow.nodes:
        for tensor in node.born:
            change(tensor, flow.allocated[tensor], _CREATED, _NONE, of(tensor, 0))
        for tensor, version in node.written:
            change(tensor, node.time, _CHANGED, of(tensor, version), of(tensor, version + 1))
        for tensor in node.died:
            change(tensor, flow.freed[tensor], _FREED, of(tensor, last.get(tensor, 0)), _NONE)


def _timeline(device: str, rows: _Rows, flow: Flow) -> CategoryTimeline:
    base = np.zeros(len(CATEGORIES), np.int64)
    for category, size in rows.before:
        base[category] += size
    rows.rows.sort(key=lambda one: one[:2])
    table = np.array(rows.rows, np.int64).reshape(-1, 5)
    time = np.ascontiguousarray(table[:, 0])
    allocated = reserved = None
    levels = flow.levels.get(device)
    if levels and device != _HOST:
        told = np.array(levels, np.int64)
        told = told[np.argsort(told[:, 0], kind="stable")]
        at = np.searchsorted(told[:, 0], time, side="right") - 1
        allocated, reserved = (np.where(at >= 0, told[np.maximum(at, 0), column], -1) for column in (1, 2))
    return CategoryTimeline(
        device,
        base,
        time,
        table[:, 2].astype(np.int8),
        table[:, 3].astype(np.int8),
        np.ascontiguousarray(table[:, 4]),
        allocated,
        reserved,
        flow.span,
    )
