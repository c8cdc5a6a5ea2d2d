"""From a recording and a watched model to the tree of its modules: each allocation gets a kind and an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.features.lines.stack_roots import THREAD_FILE, outermost_files
from ipygpumem.features.modules.model import MEMORY_KINDS, KindBytes, ModuleRow, ModuleTree, StepPhase
from ipygpumem.measurement.snapshot_events import Places

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ipygpumem.core.report import DeviceReport
    from ipygpumem.features.modules.model import MemoryKind
    from ipygpumem.features.modules.storages import ModuleFacts
    from ipygpumem.features.modules.tracker import ModuleCall, ModuleTracker
    from ipygpumem.measurement.recorder import Recorder
    from ipygpumem.snapshot import Snapshot

    Ints = NDArray[np.int64]

__all__ = ["module_tree"]

_CODE: dict[MemoryKind, int] = {kind: code for code, kind in enumerate(MEMORY_KINDS)}
_FORWARD = len(MEMORY_KINDS)
"""Made in a forward; its end decides between activation and temporary."""
_OWNED: tuple[MemoryKind, ...] = ("parameters", "buffers", "gradients", "optimizer state")
_OTHERS = _CODE["not the model's"]
_DDP = "DistributedDataParallel"
_WRAPPERS = {
    _DDP: "its own buffers for gradients are told as not the model's",
    "FullyShardedDataParallel": "its modules' parameters lie together, and count for the wrapped module as a whole",
}


def module_tree(
    snapshot: Snapshot, report: DeviceReport, recorder: Recorder, watch: ModuleTracker
) -> ModuleTree | None:
    """One device's tree; None for a device of which nothing was recorded.

    Raises:
        RecordingError: Marks and events do not fit.
    """
    index = int(report.name.rpartition(":")[2])
    if index >= len(snapshot.timelines):
        return None
    timeline = snapshot.timelines[index]
    kinds = _Kinds(snapshot, index, Places(timeline, recorder), watch)
    peak_event, peak = timeline.requested.peak()
    end_event = len(timeline.trace) - 1
    at_peak, at_end = kinds.alive(peak_event), kinds.alive(end_event)
    parts = tuple(
        KindBytes(kind, kinds.total(at_peak & (kinds.kind == code)), kinds.total(at_end & (kinds.kind == code)))
        for kind, code in _CODE.items()
    )
    high = report.high.counters if report.high is not None and report.high.exact else None
    active, allocated = report.after.active or 0, report.after.allocated or 0
    return ModuleTree(
        device=report.name,
        phases=_phases(watch, index),
        parts=parts,
        rows=tuple(_rows(watch, kinds, at_peak)),
        rounding=(None if high is None else high.active - peak, active - int(timeline.requested.bytes[-1])),
        pending=(None if high is None else high.allocated - high.active, allocated - active),
        allocated=(None if high is None else high.allocated, allocated),
        notes=_notes(watch),
    )


def _phases(watch: ModuleTracker, index: int) -> tuple[StepPhase, ...]:
    found = []
    for name in ("forward", "backward", "optimizer", "other"):
        total = watch.phases.totals.get(name)
        if total is None or index not in total.devices:
            continue
        sums = total.devices[index]
        found.append(StepPhase(name, total.times, total.seconds, sums.change, sums.after, sums.peak))
    return tuple(found)


def _notes(watch: ModuleTracker) -> tuple[str, ...]:
    notes = []
    if watch.lost:
        notes.append(watch.lost)
    if watch.raised:
        notes.append(
            "a step of the optimizer raised: what followed it counts as the optimizer's, until the next forward,"
            " backward or step"
        )
    if not watch.calls:
        notes.append("no module of the model was called: what compiled functions or copies of it did is not told apart")
    return tuple(notes)


class _Kinds:
    """What each allocation of a device was for, and which module's.

    Attributes:
        kind: For each allocation its place in `MEMORY_KINDS`.
        owner: For each allocation the number of a module; -1 for none.
    """

    def __init__(self, snapshot: Snapshot, index: int, places: Places, watch: ModuleTracker) -> None:
        self._timeline = timeline = snapshot.timelines[index]
        self._places = places
        self._watch = watch
        self._count = len(timeline.trace)
        allocations = timeline.allocations
        made = allocations.start >= 0
        kind, owner, outer = self._events(outermost_files(snapshot)[timeline.trace.stack])
        start = allocations.start[made]
        self.kind = np.full(len(allocations), _OTHERS, np.int64)
        self.owner = np.full(len(allocations), -1, np.int64)
        self.kind[made], self.owner[made] = kind[start], owner[start]
        lives_on = np.zeros(len(allocations), np.bool_)
        lives_on[made] = allocations.end[made] > outer[start]
        forward = self.kind == _FORWARD
        self.kind[forward & lives_on] = _CODE["activations"]
        wrappers = [number for number, module in enumerate(watch.modules) if module.type == _DDP]
        buckets = forward & lives_on & np.isin(self.owner, wrappers)
        self.kind[buckets], self.owner[buckets] = _OTHERS, -1
        self.kind[forward & ~lives_on] = _CODE["forward, temporary"]
        self._claim(f"cuda:{index}")

    def _events(self, roots: NDArray[Any]) -> tuple[Ints, Ints, Ints]:
        """For each event the kind and owner of what is allocated then, and the end of the outermost call around it."""
        kind = np.full(self._count, _OTHERS, np.int64)
        owner = np.full(self._count, -1, np.int64)
        outer = np.full(self._count, self._count, np.int64)
        calls = self._watch.calls
        threaded = np.asarray([root is not None and root.endswith(THREAD_FILE) for root in roots], np.bool_)
        own_threads = any(call.root.endswith(THREAD_FILE) for call in calls)
        for name, begin, end in self._watch.spans:
            first, last = self._places.event(begin) + 1, self._places.event(end) + 1
            kind[first:last] = _CODE["backward" if name == "backward" else "optimizer"]
            if not own_threads:
                kind[first:last][threaded[first:last]] = _CODE["other threads"]
        sweep = _Sweep(kind, owner, outer, roots)
        at = self._places.events([call.at for call in calls]) + 1
        for call, first, last in zip(calls, at.tolist(), [*at[1:].tolist(), self._count], strict=False):
            sweep.step(call, first, last)
        sweep.close()
        return kind, owner, outer

    def _claim(self, device: str) -> None:
        """Parameters, buffers, gradients and optimizer state are known by their addresses."""
        allocations = self._timeline.allocations
        order = np.lexsort((allocations.start, allocations.address))
        known, rank = np.unique(allocations.address[order], return_inverse=True)
        if not len(known):
            return
        step = self._count + 2
        sorted_places = rank * step + allocations.start[order] + 1
        owners: dict[int, tuple[int, int]] = {}
        for scan in self._watch.scans:
            here = [one for one in scan.found if one.device == device]
            if not here:
                continue
            address = np.asarray([one.address for one in here], np.int64)
            event = self._places.event(scan.at)
            place = np.minimum(np.searchsorted(known, address), len(known) - 1)
            row = order[np.searchsorted(sorted_places, place * step + event + 1, side="right") - 1]
            good = (allocations.address[row] == address) & (allocations.end[row] > event)
            for one, mine in zip(here, np.where(good, row, -1).tolist(), strict=True):
                if mine < 0:
                    continue
                code = _CODE[one.kind]  # type: ignore[index]
                before = owners.get(mine)
                if before is None or code < before[0]:
                    owners[mine] = (code, one.module)
                elif code == before[0] and one.module != before[1]:
                    owners[mine] = (code, self._common(before[1], one.module))
        for mine, (code, module) in owners.items():
            self.kind[mine], self.owner[mine] = code, module

    def _common(self, one: int, other: int) -> int:
        """The innermost module that has both."""
        modules = self._watch.modules
        above = {one}
        while modules[one].parent >= 0:
            one = modules[one].parent
            above.add(one)
        while other not in above:
            other = modules[other].parent
        return other

    def alive(self, event: int) -> NDArray[np.bool_]:
        """Whether each allocation lives right after an event."""
        allocations = self._timeline.allocations
        return (allocations.start <= event) & (allocations.end > event)

    def total(self, rows: NDArray[np.bool_]) -> int:
        """Requested bytes of some allocations."""
        return int(self._timeline.allocations.size[rows].sum())

    def by_module(self, rows: NDArray[np.bool_]) -> list[int]:
        """Requested bytes of some allocations, for each module without its children."""
        sums = np.zeros(len(self._watch.modules), np.int64)
        mine = rows & (self.owner >= 0)
        np.add.at(sums, self.owner[mine], self._timeline.allocations.size[mine])
        return [int(one) for one in sums]

    def most(self, rows: NDArray[np.bool_]) -> tuple[int, int]:
        """The first event after which some allocations together are most, and their bytes then."""
        chosen = np.flatnonzero(rows)
        if not len(chosen):
            return -1, 0
        allocations = self._timeline.allocations
        events = np.concatenate([allocations.start[chosen], allocations.end[chosen]])
        size = allocations.size[chosen]
        change = np.concatenate([size, -size])
        at, place = np.unique(events, return_inverse=True)
        steps = np.zeros(len(at), np.int64)
        np.add.at(steps, place, change)
        level = np.cumsum(steps)
        top = int(np.argmax(level))
        return int(at[top]), int(level[top])


class _Sweep:
    """Goes through the calls in their order, and writes who was running into the events between them."""

    def __init__(self, kind: Ints, owner: Ints, outer: Ints, roots: NDArray[Any]) -> None:
        self._kind, self._owner, self._outer, self._roots = kind, owner, outer, roots
        self._open: dict[int, list[ModuleCall]] = {}
        self._inside: dict[int, list[tuple[int, int]]] = {}

    def step(self, call: ModuleCall, first: int, last: int) -> None:
        """A call begins or ends; then come the events from ``first`` to before ``last``."""
        stack = self._open.setdefault(call.thread, [])
        if call.enter:
            stack.append(call)
        elif stack:
            stack.pop()
            if not stack:
                self._returned(call.thread, first - 1)
        if last <= first:
            return
        running = [stack for stack in self._open.values() if stack]
        if running:
            self._assign(running, first, last)

    def close(self) -> None:
        """What never returned kept nothing beyond."""
        for thread in list(self._inside):
            self._returned(thread, len(self._kind))

    def _returned(self, thread: int, event: int) -> None:
        for first, last in self._inside.pop(thread, ()):
            mine = self._owner[first:last] >= 0
            self._outer[first:last][mine] = event

    def _assign(self, running: list[list[ModuleCall]], first: int, last: int) -> None:
        roots = self._roots[first:last]
        again = any("backward" in stack[-1].phases for stack in running)
        if not again:  # by itself a forward runs in one thread; in a backward pass PyTorch's own are at work beside it
            self._kind[first:last] = _CODE["other threads"]
        names = [stack[-1].root for stack in running]
        for stack in running:
            top = stack[-1]
            if names.count(top.root) > 1:
                continue  # two threads that look alike: nobody can tell whose it was
            mine = np.flatnonzero(roots == top.root) + first
            self._kind[mine] = _CODE["recomputed"] if "backward" in top.phases else _FORWARD
            self._owner[mine] = top.module
            self._inside.setdefault(top.thread, []).append((first, last))


def _rows(watch: ModuleTracker, kinds: _Kinds, at_peak: NDArray[np.bool_]) -> Iterable[ModuleRow]:
    modules = watch.modules
    count = len(modules)
    columns: dict[str, list[int]] = {}
    for name in (*_OWNED, "activations"):
        rows = kinds.kind == _CODE[name]
        columns[name] = _inclusive(watch, kinds.by_module(rows & kinds.alive(kinds.most(rows)[0])))
    own = kinds.by_module(at_peak)
    peak = _inclusive(watch, list(own))
    temporary = np.isin(kinds.kind, (_CODE["forward, temporary"], _CODE["recomputed"]))
    calls, again = [0] * count, [0] * count
    for call in watch.calls:
        if call.enter:
            (again if "backward" in call.phases else calls)[call.module] += 1
    depth: list[int] = []
    for number, module in enumerate(modules):
        depth.append(depth[module.parent] + 1 if module.parent >= 0 else 0)
        last = number + 1
        while last < count and modules[last].parent >= number:
            last += 1
        inside = module.compiled == "inside"
        within = temporary & (kinds.owner >= number) & (kinds.owner < last)
        yield ModuleRow(
            path=module.path,
            type=module.type,
            depth=depth[number],
            calls=calls[number],
            parameters=columns["parameters"][number],
            buffers=columns["buffers"][number],
            gradients=columns["gradients"][number],
            optimizer=columns["optimizer state"][number],
            activations=None if inside else columns["activations"][number],
            temporary=None if inside else kinds.most(within)[1],
            peak=None if inside else peak[number],
            own=None if inside else own[number],
            note=_note(module, again[number]),
        )


def _note(module: ModuleFacts, again: int) -> str:
    parts = [_WRAPPERS[module.type]] if module.type in _WRAPPERS else []
    compiled = module.compiled
    if compiled == "compiled":
        parts.append("compiled: its parts are not told apart")
    elif compiled == "inside":
        parts.append("in compiled code")
    if again:
        parts.append(f"computed again in backward, {again:,} times" if again > 1 else "computed again in backward")
    return "; ".join(parts)


def _inclusive(watch: ModuleTracker, own: list[int]) -> list[int]:
    """Each module with everything inside it: children have higher numbers than their parents."""
    for number in range(len(own) - 1, 0, -1):
        own[watch.modules[number].parent] += own[number]
    return own
