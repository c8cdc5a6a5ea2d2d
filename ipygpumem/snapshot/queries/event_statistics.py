"""Statistics of a range of events: churn, possible leaks, CUDA calls and the growth in annotated regions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.text import clip
from ipygpumem.snapshot.model.columns import Action, Trace
from ipygpumem.snapshot.model.timeline import Ints, Timeline
from ipygpumem.snapshot.queries.groups import label_rows
from ipygpumem.snapshot.snapshot_data import SnapshotData

_MAX_SUGGESTIONS = 5

SHORT_LIVED = np.dtype(
    [("row", "i8"), ("address", "i8"), ("size", "i8"), ("start", "i8"), ("end", "i8"), ("microseconds", "i8")]
)
"""Columns of short-lived allocations. ``row`` is the row in ``timeline.allocations``, ``size`` the requested size in
bytes, ``start`` and ``end`` are events, and ``microseconds`` is the lifetime.
"""


@dataclass(frozen=True, slots=True)
class Churn(Serializable):
    """Totals for a group of allocations in a range of events.

    Attributes:
        label: Label of the group.
        count: Number of allocations.
        bytes: Total requested size in bytes.
        byte_seconds: Sum of size in bytes times lifetime in seconds within the range; None if the events have no
            timestamps.
        median_us: Median lifetime in microseconds of the allocations freed in the range; None if unknown.
    """

    label: str
    count: int
    bytes: int
    byte_seconds: float | None
    median_us: int | None


@dataclass(frozen=True, slots=True)
class CudaCallCounts(Serializable):
    """Numbers of CUDA calls in a range of events, and the total sizes that they allocated, freed, mapped and unmapped.

    Attributes:
        mallocs, malloc_bytes: Number and total size in bytes of the segments allocated with cudaMalloc.
        frees, free_bytes: Number and total size in bytes of the segments freed with cudaFree.
        maps, map_bytes: Number and total size in bytes of the ranges mapped in expandable segments.
        unmaps, unmap_bytes: Number and total size in bytes of the ranges unmapped in expandable segments.
        ooms: Number of out-of-memory errors.
        retries: Number of times that segments were released right before new memory was allocated or mapped, or right
            before an out-of-memory error. This is an estimate of the allocator's retries: ``torch.cuda.empty_cache``
            also releases segments, and a retry may find no segments to release.
    """

    mallocs: int
    malloc_bytes: int
    frees: int
    free_bytes: int
    maps: int
    map_bytes: int
    unmaps: int
    unmap_bytes: int
    retries: int
    ooms: int


@dataclass(frozen=True, slots=True)
class RegionRepetition(Serializable):
    """One repetition of an annotated region.

    Attributes:
        name: Name of the region.
        repetition: Number of earlier repetitions.
        first, last: Last event before the region, and last event in the region.
        before, after: Requested bytes before the region and at its end.
        peak: Maximum of the requested bytes in the region.
    """

    name: str
    repetition: int
    first: int
    last: int
    before: int
    after: int
    peak: int

    written_properties = ("growth",)

    @property
    def growth(self) -> int:
        return self.after - self.before


def events_in_span(name: str, trace: Trace, start_us: int, end_us: int) -> tuple[int, int]:
    if start_us > end_us:
        raise OptionError(f"the time span ends before it starts: start {start_us}, end {end_us}")
    if not trace.has_times:
        raise OptionError(f"the events of {name} have no timestamps: use event indices instead")
    first, last = np.searchsorted(trace.time, [start_us, end_us + 1]) - 1
    return int(first), int(last)


def _allocated(timeline: Timeline, first: int, last: int) -> Ints:
    start = timeline.allocations.start
    return np.flatnonzero((start > first) & (start <= last))


def _lifetimes(timeline: Timeline, rows: Ints, last: int) -> Ints:
    """Return lifetimes in microseconds. Lifetimes that extend beyond event ``last`` end there."""
    allocations, time = timeline.allocations, timeline.trace.time
    return time[np.minimum(allocations.end[rows], last)] - time[allocations.start[rows]]


def churn(snapshot: SnapshotData, timeline: Timeline, first: int, last: int, key: str) -> tuple[Churn, ...]:
    rows = _allocated(timeline, first, last)
    labels, group = label_rows(snapshot, timeline, rows, key)
    if not len(rows):
        return ()
    order = np.argsort(group, kind="stable")
    members = np.split(rows[order], np.searchsorted(group[order], np.arange(1, len(labels))))
    sums = [_churn(timeline, label, group_rows, last) for label, group_rows in zip(labels, members, strict=True)]
    return tuple(sorted(sums, key=lambda churn: (-churn.bytes, churn.label)))


def _churn(timeline: Timeline, label: str, rows: Ints, last: int) -> Churn:
    allocations = timeline.allocations
    sizes = allocations.size[rows]
    byte_seconds = median = None
    if timeline.trace.has_times:
        lifetimes = _lifetimes(timeline, rows, last)
        ended = lifetimes[allocations.end[rows] <= last]
        byte_seconds = float((sizes * (lifetimes / 1e6)).sum())
        median = int(np.median(ended)) if len(ended) else None
    return Churn(label, len(rows), int(sizes.sum()), byte_seconds, median)


def short_lived(timeline: Timeline, first: int, last: int, at_least: int, at_most_us: int) -> NDArray[Any]:
    rows = _allocated(timeline, first, last)
    allocations = timeline.allocations
    if len(rows) and not timeline.trace.has_times:
        raise OptionError("the events of this snapshot have no timestamps, so lifetimes are unknown")
    rows = rows[(allocations.end[rows] <= last) & (allocations.size[rows] >= at_least)]
    lifetime = _lifetimes(timeline, rows, last)
    rows, lifetime = rows[lifetime <= at_most_us], lifetime[lifetime <= at_most_us]
    table = np.zeros(len(rows), SHORT_LIVED)
    table["row"] = rows
    for name in ("address", "size", "start", "end"):
        table[name] = getattr(allocations, name)[rows]
    table["microseconds"] = lifetime
    return table[np.lexsort((table["start"], -table["size"]))]


def leaks(timeline: Timeline, first: int, last: int) -> Ints:
    rows = _allocated(timeline, first, last)
    return rows[timeline.allocations.end[rows] > last]


def device_calls(timeline: Timeline, first: int, last: int) -> CudaCallCounts:
    action = timeline.trace.action[first + 1 : last + 1]
    size = timeline.trace.size[first + 1 : last + 1]
    totals = {}
    codes = {"malloc": Action.SEGMENT_ALLOC, "free": Action.SEGMENT_FREE, "map": Action.MAP, "unmap": Action.UNMAP}
    for name, code in codes.items():
        totals[f"{name}s"] = int(np.count_nonzero(action == code))
        totals[f"{name}_bytes"] = int(size[action == code].sum())
    released = np.isin(action[:-1], (Action.SEGMENT_FREE, Action.UNMAP))
    requested = np.isin(action[1:], (Action.SEGMENT_ALLOC, Action.MAP, Action.OOM))
    ooms = int(np.count_nonzero(action == Action.OOM))
    return CudaCallCounts(**totals, retries=int(np.count_nonzero(released & requested)), ooms=ooms)


def growth(snapshot: SnapshotData, timeline: Timeline, name: str) -> tuple[RegionRepetition, ...]:
    time, curve = timeline.trace.time, timeline.requested.bytes
    annotations = snapshot.annotations(timeline.device)
    regions = [region for region in annotations if region.name == name]
    if not regions:
        names = ", ".join(map(repr, sorted({clip(region.name) for region in annotations})[:_MAX_SUGGESTIONS]))
        hint = f": choose from {names}" if names else ": the device has no annotated regions"
        raise OptionError(f"no annotated region {name!r} on device {timeline.device}{hint}")
    bounds = [
        (region.start_us, region.end_us)
        for region in regions
        if region.start_us is not None and region.end_us is not None
    ]
    if not timeline.trace.has_times or not bounds:
        return ()
    start_us, end_us = np.asarray(bounds).T
    first = np.searchsorted(time, start_us, side="left") - 1
    last = np.searchsorted(time, end_us, side="right") - 1
    # row 0 of the curve is event -1
    columns = first, last, curve[first + 1], curve[last + 1], _maxima(curve, first + 1, last + 1)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(RegionRepetition(name, number, *row) for number, row in enumerate(rows))


def _maxima(values: Ints, first: Ints, last: Ints) -> Ints:
    """Return the maximum of ``values`` in each range of rows, from ``first`` to ``last`` inclusive."""
    result = np.zeros(len(first), np.int64)
    exponent = np.frexp((last - first + 1).astype(np.float64))[1] - 1
    for level in range(int(exponent.max(initial=-1)) + 1):  # element i is the maximum of 2**level values from row i
        if level:
            values = np.maximum(values[: -(1 << level - 1)], values[1 << level - 1 :])
        rows = np.flatnonzero(exponent == level)
        result[rows] = np.maximum(values[first[rows]], values[last[rows] + 1 - (1 << level)])
    return result
