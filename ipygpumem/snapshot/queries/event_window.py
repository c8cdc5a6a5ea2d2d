"""What happened between two events: churn, leak candidates, calls of cudaMalloc, growth per step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.export.text import clip
from ipygpumem.snapshot.model.allocations import BEFORE
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.queries.group_keys import KEYS, label_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot

    Ints = NDArray[np.int64]

__all__ = ["SHORT_LIVED", "Churn", "DeviceCalls", "Step", "churn", "device_calls", "growth", "leaks", "short_lived"]

_MICROSECONDS = 1e6
_NAMED = 5

SHORT_LIVED = np.dtype(
    [("row", "i8"), ("address", "i8"), ("size", "i8"), ("start", "i8"), ("end", "i8"), ("microseconds", "i8")]
)
"""Columns of short-lived allocations; ``row`` counts in ``timeline.allocations``, ``start`` and ``end`` are events."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Allocations made in a window, added up by something they have in common.

    Attributes:
        label: What they have in common.
        count: Allocations.
        bytes: Requested bytes.
        byte_seconds: Bytes times the seconds that they lived inside the window; None without times.
        median_us: The lifetime in the middle of all that ended inside the window; None if none did, or without times.
    """

    label: str
    count: int
    bytes: int
    byte_seconds: float | None
    median_us: int | None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeviceCalls:
    """Memory taken from the driver and given back in a window.

    Attributes:
        mallocs: Calls of cudaMalloc, one per segment.
        malloc_bytes: Their bytes.
        frees: Calls of cudaFree.
        free_bytes: Their bytes.
        maps: Ranges mapped into expandable segments.
        map_bytes: Their bytes.
        unmaps: Ranges unmapped.
        unmap_bytes: Their bytes.
        retries: Segments that were given back right before a new one was taken or memory ran out: cached memory was
            in the way, and the call was tried again. A program's own ``empty_cache`` looks the same, so this is the
            most that there can have been.
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

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """One repetition of an annotated region.

    Attributes:
        name: The region's name.
        repetition: Counted from 0.
        first: The last event before it.
        last: The last event inside it.
        before: Requested bytes alive before it.
        after: Requested bytes alive after it.
        peak: The highest between.
    """

    name: str
    repetition: int
    first: int
    last: int
    before: int
    after: int
    peak: int

    @property
    def growth(self) -> int:
        """Bytes that it left behind."""
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "growth": self.growth}


def _made(timeline: Timeline, first: int, last: int) -> Ints:
    """Rows of the allocations made after event ``first`` up to ``last``."""
    start = timeline.allocations.start
    return np.flatnonzero((start > first) & (start <= last) & (start != BEFORE))


def _lifetimes(timeline: Timeline, rows: Ints, last: int) -> Ints:
    """Microseconds from the allocation to its end, at most to event ``last``."""
    allocations, time = timeline.allocations, timeline.trace.time
    return time[np.minimum(allocations.end[rows], last)] - time[allocations.start[rows]]


def churn(snapshot: Snapshot, timeline: Timeline, first: int, last: int, key: str) -> tuple[Churn, ...]:
    """Allocations made after event ``first`` up to ``last``, by a key, the most bytes first."""
    rows = _made(timeline, first, last)
    if not len(rows) and key in KEYS:
        return ()
    labels, which = label_rows(snapshot, timeline, rows, key)
    allocations = timeline.allocations
    lifetime = _lifetimes(timeline, rows, last)
    ended = allocations.end[rows] <= last
    timed = timeline.trace.timed
    found = []
    order = np.argsort(which, kind="stable")
    for label, mine in zip(
        labels, np.split(order, np.searchsorted(which[order], np.arange(1, len(labels)))), strict=True
    ):
        done = lifetime[mine][ended[mine]]
        sizes = allocations.size[rows[mine]]
        found.append(
            Churn(
                label=label,
                count=len(mine),
                bytes=int(sizes.sum()),
                byte_seconds=float((sizes * (lifetime[mine] / _MICROSECONDS)).sum()) if timed else None,
                median_us=int(np.median(done)) if timed and len(done) else None,
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.label)))


def short_lived(timeline: Timeline, first: int, last: int, at_least: int, at_most_us: int) -> NDArray[Any]:
    """Allocations of ``at_least`` bytes that lived and ended within the window in ``at_most_us``, the largest first."""
    rows = _made(timeline, first, last)
    allocations = timeline.allocations
    if len(rows) and not timeline.trace.timed:
        raise OptionError("the events have no times, so nobody knows what was short-lived")
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
    rows = _made(timeline, first, last)
    return rows[timeline.allocations.end[rows] > last]


def device_calls(timeline: Timeline, first: int, last: int) -> DeviceCalls:
    """Calls to the driver after event ``first`` up to ``last``."""
    action = timeline.trace.action[first + 1 : last + 1]
    size = timeline.trace.size[first + 1 : last + 1]
    facts = {}
    for name, code in (
        ("malloc", Action.SEGMENT_ALLOC),
        ("free", Action.SEGMENT_FREE),
        ("map", Action.MAP),
        ("unmap", Action.UNMAP),
    ):
        mine = action == code
        facts[f"{name}s"] = int(np.count_nonzero(mine))
        facts[f"{name}_bytes"] = int(size[mine].sum())
    returns = np.isin(action[:-1], (Action.SEGMENT_FREE, Action.UNMAP))
    again = np.isin(action[1:], (Action.SEGMENT_ALLOC, Action.MAP, Action.OOM))
    ooms = int(np.count_nonzero(action == Action.OOM))
    return DeviceCalls(**facts, retries=int(np.count_nonzero(returns & again)), ooms=ooms)


def growth(snapshot: Snapshot, timeline: Timeline, name: str) -> tuple[Step, ...]:
    """What each repetition of an annotated region left behind."""
    time, curve = timeline.trace.time, timeline.requested.bytes
    regions = [a for a in snapshot.annotations(timeline.device) if a.name == name]
    if not regions:
        known = ", ".join(sorted({clip(a.name) for a in snapshot.annotations(timeline.device)})[:_NAMED])
        raise OptionError(f"no region {name!r} on device {timeline.device}" + (f": there is {known}" if known else ""))
    steps: list[Step] = []
    for region in regions:
        if region.start_us is None or region.end_us is None or not timeline.trace.timed:
            continue
        first = int(np.searchsorted(time, region.start_us, side="left")) - 1
        last = int(np.searchsorted(time, region.end_us, side="right")) - 1
        # the curve has one point more than there are events: the one of event -1 comes first
        part = curve[first + 1 : last + 2]
        steps.append(Step(name, len(steps), first, last, int(part[0]), int(part[-1]), int(part.max())))
    return tuple(steps)
