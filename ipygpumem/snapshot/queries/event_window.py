"""What happened between two events: churn, possible leaks, calls of cudaMalloc, growth per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.to_dict import PlainData
from ipygpumem.snapshot.export.text import clip
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.queries.groups import check_key, label_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot

    Ints = NDArray[np.int64]

__all__ = ["SHORT_LIVED", "Churn", "DeviceCalls", "Step", "churn", "device_calls", "growth", "leaks", "short_lived"]

_MICROSECONDS = 1e6
_MAX_SUGGESTIONS = 5

SHORT_LIVED = np.dtype(
    [("row", "i8"), ("address", "i8"), ("size", "i8"), ("start", "i8"), ("end", "i8"), ("microseconds", "i8")]
)
"""Columns of short-lived allocations: ``row`` in ``timeline.allocations``, ``start`` and ``end`` are events."""


@dataclass(frozen=True, slots=True)
class Churn(PlainData):
    """Allocations made in a window, added up by a common property.

    Attributes:
        label: The property.
        count: Number of allocations.
        bytes: Requested bytes.
        byte_seconds: Bytes times the seconds that they were alive in the window; None without times.
        median_us: Median lifetime of those that ended in the window; None if none did, or without times.
    """

    label: str
    count: int
    bytes: int
    byte_seconds: float | None
    median_us: int | None


@dataclass(frozen=True, slots=True)
class DeviceCalls(PlainData):
    """Memory requested from the driver and released in a window.

    Attributes:
        mallocs: Calls of cudaMalloc, one per segment.
        malloc_bytes: Their bytes.
        frees: Calls of cudaFree.
        free_bytes: Their bytes.
        maps: Ranges mapped into expandable segments.
        map_bytes: Their bytes.
        unmaps: Ranges unmapped.
        unmap_bytes: Their bytes.
        retries: Segments released right before a new one was allocated or memory ran out: the allocator released its
            cache and tried again. A program's own ``empty_cache`` looks the same, so this is an upper bound.
        ooms: Out-of-memory events.
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
class Step(PlainData):
    """One repetition of an annotated region.

    Attributes:
        name: The region's name.
        repetition: Its number, starting at 0.
        first: The last event before it.
        last: The last event inside it.
        before: Requested bytes alive before it.
        after: Requested bytes alive after it.
        peak: The maximum in between.
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
        """The bytes that it left allocated."""
        return self.after - self.before


def _allocated(timeline: Timeline, first: int, last: int) -> Ints:
    """Rows of the allocations made after event ``first`` up to ``last``."""
    start = timeline.allocations.start
    return np.flatnonzero((start > first) & (start <= last))


def _lifetimes(timeline: Timeline, rows: Ints, last: int) -> Ints:
    """Microseconds from the allocation to its end, or to event ``last`` if that is earlier."""
    allocations, time = timeline.allocations, timeline.trace.time
    return time[np.minimum(allocations.end[rows], last)] - time[allocations.start[rows]]


def churn(snapshot: Snapshot, timeline: Timeline, first: int, last: int, key: str) -> tuple[Churn, ...]:
    """Allocations made after event ``first`` up to ``last``, grouped by a key, the most bytes first."""
    check_key(key)
    rows = _allocated(timeline, first, last)
    if not len(rows):
        return ()
    labels, group = label_rows(snapshot, timeline, rows, key)
    allocations = timeline.allocations
    lifetime = _lifetimes(timeline, rows, last)
    ended = allocations.end[rows] <= last
    timed = timeline.trace.timed
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.searchsorted(group[order], np.arange(1, len(labels))))
    sums = []
    for label, places in zip(labels, members, strict=True):
        lifetimes = lifetime[places][ended[places]]
        sizes = allocations.size[rows[places]]
        sums.append(
            Churn(
                label=label,
                count=len(places),
                bytes=int(sizes.sum()),
                byte_seconds=float((sizes * (lifetime[places] / _MICROSECONDS)).sum()) if timed else None,
                median_us=int(np.median(lifetimes)) if timed and len(lifetimes) else None,
            )
        )
    return tuple(sorted(sums, key=lambda churn: (-churn.bytes, churn.label)))


def short_lived(timeline: Timeline, first: int, last: int, at_least: int, at_most_us: int) -> NDArray[Any]:
    """Allocations of ``at_least`` bytes that lived and ended within the window in ``at_most_us``, the largest first."""
    rows = _allocated(timeline, first, last)
    allocations = timeline.allocations
    if len(rows) and not timeline.trace.timed:
        raise OptionError("the events of this snapshot have no times, so lifetimes are unknown")
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
    """Rows of the allocations made after event ``first`` that are alive after event ``last``."""
    rows = _allocated(timeline, first, last)
    return rows[timeline.allocations.end[rows] > last]


def device_calls(timeline: Timeline, first: int, last: int) -> DeviceCalls:
    """Calls to the driver after event ``first`` up to ``last``."""
    action = timeline.trace.action[first + 1 : last + 1]
    size = timeline.trace.size[first + 1 : last + 1]
    totals = {}
    for name, code in (
        ("malloc", Action.SEGMENT_ALLOC),
        ("free", Action.SEGMENT_FREE),
        ("map", Action.MAP),
        ("unmap", Action.UNMAP),
    ):
        selected = action == code
        totals[f"{name}s"] = int(np.count_nonzero(selected))
        totals[f"{name}_bytes"] = int(size[selected].sum())
    released = np.isin(action[:-1], (Action.SEGMENT_FREE, Action.UNMAP))
    requested = np.isin(action[1:], (Action.SEGMENT_ALLOC, Action.MAP, Action.OOM))
    ooms = int(np.count_nonzero(action == Action.OOM))
    return DeviceCalls(**totals, retries=int(np.count_nonzero(released & requested)), ooms=ooms)


def growth(snapshot: Snapshot, timeline: Timeline, name: str) -> tuple[Step, ...]:
    """What each repetition of an annotated region left allocated."""
    time, curve = timeline.trace.time, timeline.requested.bytes
    annotations = snapshot.annotations(timeline.device)
    regions = [region for region in annotations if region.name == name]
    if not regions:
        names = ", ".join(sorted({clip(region.name) for region in annotations})[:_MAX_SUGGESTIONS])
        hint = f": choose from {names}" if names else ": it has none"
        raise OptionError(f"no annotated region {name!r} on device {timeline.device}{hint}")
    steps: list[Step] = []
    for region in regions:
        if region.start_us is None or region.end_us is None or not timeline.trace.timed:
            continue
        first = int(np.searchsorted(time, region.start_us, side="left")) - 1
        last = int(np.searchsorted(time, region.end_us, side="right")) - 1
        # index 0 of the curve is event -1
        part = curve[first + 1 : last + 2]
        steps.append(Step(name, len(steps), first, last, int(part[0]), int(part[-1]), int(part.max())))
    return tuple(steps)
