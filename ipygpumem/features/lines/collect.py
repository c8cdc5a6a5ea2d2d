"""From a recording to source code: what each line did.

An event belongs to every line of its Python stack, so that a line has what it called. PyTorch's backward threads have
no such stack: their events belong to the line that waited for them. Nothing is traced while the code runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.features.lines.model import DeviceLines, LineUse, SourceLine, SourceListing
from ipygpumem.features.lines.source import SourceRegion, SourceTexts, enclosing_functions
from ipygpumem.features.lines.threads import THREAD, outermost_files
from ipygpumem.measurement.snapshot_events import Places
from ipygpumem.snapshot.model.stacks import Numbers
from ipygpumem.snapshot.model.trace import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ipygpumem.core.report import DeviceReport
    from ipygpumem.measurement.backward_passes import Pass
    from ipygpumem.measurement.recorder import Recorder
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.snapshot.model.timeline import Timeline

    Ints = NDArray[np.int64]

__all__ = ["LineSelection", "device_lines"]


_TIMED = ("<timed exec>", "<timed eval>")


@dataclass(frozen=True, slots=True)
class LineSelection:
    """What is to be listed.

    Attributes:
        regions: The cell first, then the functions that were asked for.
        everywhere: Whether functions of other cells that ran are listed, too.
        numbers: In numbers by cell file, as far as they are known.
    """

    regions: tuple[SourceRegion, ...]
    everywhere: bool
    numbers: Mapping[str, int]


def device_lines(
    snapshot: Snapshot,
    report: DeviceReport,
    *,
    recorder: Recorder,
    passes: Sequence[Pass],
    scope: LineSelection,
    texts: SourceTexts,
) -> DeviceLines | None:
    """One device's lines; None for a device of which nothing was recorded.

    Raises:
        RecordingError: Marks and events do not fit.
    """
    index = int(report.name.rpartition(":")[2])
    if index >= len(snapshot.timelines):
        return None
    timeline = snapshot.timelines[index]
    files = {region.file for region in scope.regions} | (set(texts.cells) if scope.everywhere else set())
    uses = _Uses(snapshot, timeline, files, _timed(scope, texts))
    if passes:
        uses.add_backward(passes, Places(timeline, recorder))
    regions = list(scope.regions)
    if scope.everywhere:
        regions += _others(uses.lines(), regions, texts)
    shown = {(region.file, number) for region in regions for number in range(region.first, region.last + 1)}
    listings = tuple(_listing(region, uses, texts, scope.numbers) for region in regions)
    return _with_counters(report, timeline, tuple(one for one in listings if one.lines), uses.elsewhere(shown))


def _timed(scope: LineSelection, texts: SourceTexts) -> dict[str, tuple[str, int]]:
    """Under ``%%time`` a cell's code has another file, whose lines count from the one below that magic."""
    if not scope.regions or scope.regions[0].name:
        return {}
    cell = scope.regions[0].file
    for place, line in enumerate(texts.lines(cell), 1):
        if line.startswith("%%time"):
            return dict.fromkeys(_TIMED, (cell, place))
        if line.strip() and not line.startswith("%%"):
            break
    return {}


def _others(ran: Iterable[tuple[str, int]], listed: list[SourceRegion], texts: SourceTexts) -> list[SourceRegion]:
    """Functions of the notebook that ran and are not listed yet, in the order of their cells.

    Of a cell whose own lines ran (another magic or the code ran it) everything.
    """
    whole = {region.file for region in listed if not region.name}
    by_file: dict[str, list[int]] = {}
    for file, line in ran:
        if file in texts.cells and file not in whole:
            by_file.setdefault(file, []).append(line)
    found: list[SourceRegion] = []
    for file in texts.cells:
        lines = by_file.get(file, ())
        functions = enclosing_functions(file, lines, texts)
        if all(any(one.first <= line <= one.last for one in functions) for line in lines):
            found += functions
        else:
            found.append(SourceRegion(file, 1, len(texts.lines(file))))
    return [one for one in found if one not in listed]


def _listing(region: SourceRegion, uses: _Uses, texts: SourceTexts, numbers: Mapping[str, int]) -> SourceListing:
    lines = texts.lines(region.file)[region.first - 1 : region.last]
    number = numbers.get(region.file)
    cell = None if region.file not in texts.cells else "a cell" if number is None else f"In [{number}]"
    where = cell or "/".join(region.file.replace("\\", "/").split("/")[-2:])
    return SourceListing(
        f"{region.name}, {where}" if region.name else where,
        tuple(
            SourceLine(place, text, uses.of({(region.file, place)})) for place, text in enumerate(lines, region.first)
        ),
    )


def _with_counters(
    report: DeviceReport, timeline: Timeline, listings: tuple[SourceListing, ...], elsewhere: LineUse | None
) -> DeviceLines:
    after, curve = report.after, timeline.requested
    peak = curve.peak()[1]
    high = report.high.counters if report.high is not None and report.high.exact else None
    requested = int(curve.bytes[-1])
    active, allocated = after.active or 0, after.allocated or 0
    return DeviceLines(
        device=report.name,
        listings=listings,
        before=int(curve.bytes[0]),
        elsewhere=elsewhere,
        end_requested=requested,
        end_rounding=active - requested,
        end_pending=allocated - active,
        end_allocated=allocated,
        peak_requested=peak,
        peak_rounding=None if high is None else high.active - peak,
        peak_pending=None if high is None else high.allocated - high.active,
        peak_allocated=None if high is None else high.allocated,
    )


class _Uses:
    """What the lines of some files did. Events with the same set of such lines are added up first."""

    def __init__(
        self, snapshot: Snapshot, timeline: Timeline, files: set[str], aliases: Mapping[str, tuple[str, int]]
    ) -> None:
        self._snapshot = snapshot
        self._timeline = timeline
        self._files = files
        self._aliases = aliases
        self._keys = Numbers()
        self._sets = Numbers()
        self._sets.number(())
        trace = timeline.trace
        table = np.append(self._of_stacks(), 0)  # the last one is that of an event without a stack
        self._events = trace.events(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        self._set = table[trace.stack[self._events]]
        self._sums: dict[int, LineUse] | None = None
        self._lasts: dict[int, int] = {}

    def _of_stacks(self) -> Ints:
        """The number of the set of lines of each stack."""
        stacks = self._snapshot.stacks
        wanted = np.full(len(stacks.frames) + 1, -1, np.int64)
        for number, frame in enumerate(stacks.frames):
            file, shift = self._aliases.get(frame.file, (frame.file, 0))
            if file in self._files and frame.line:
                wanted[number] = self._keys.number((file, frame.line + shift))
        key = wanted[stacks.node_frame].tolist()
        sets: list[tuple[int, ...]] = []
        for mine, parent in zip(key, stacks.node_parent.tolist(), strict=True):  # a parent comes before its children
            above = sets[parent] if parent >= 0 else ()
            sets.append(above if mine < 0 or mine in above else (*above, mine))
        numbers = [self._sets.number(tuple(sorted(one))) for one in sets]
        leaf = stacks.leaf
        return np.where(leaf < 0, 0, np.asarray([*numbers, 0], np.int64)[leaf])

    def add_backward(self, passes: Sequence[Pass], places: Places) -> None:
        """Give what PyTorch's own threads did during a backward pass to the lines that waited for it."""
        names = list(self._sets)
        foreign = outermost_files(self._snapshot)
        for one in passes:
            stack = ((*self._aliases.get(file, (file, 0)), line) for file, line in one.stack)
            lines = {self._keys.number((file, line + shift)) for file, shift, line in stack if file in self._files}
            first, last = np.searchsorted(self._events, [places.event(one.begin), places.event(one.end)], side="right")
            inside = np.arange(first, last)
            root = foreign[self._timeline.trace.stack[self._events[inside]]]
            mine = inside[[name is None or (name != one.root and not name.endswith(THREAD)) for name in root]]
            for number in np.unique(self._set[mine]).tolist():
                both = self._sets.number(tuple(sorted({*names[number], *lines})))
                names.extend(list(self._sets)[len(names) :])
                self._set[mine[self._set[mine] == number]] = both

    def lines(self) -> list[tuple[str, int]]:
        """Every line of these files that an event passed; blocks from before have stacks, too."""
        sets, keys = list(self._sets), list(self._keys)
        used = {key for number in np.unique(self._set).tolist() for key in sets[number]}
        return [keys[key] for key in sorted(used)]

    def of(self, places: set[tuple[str, int]]) -> LineUse | None:
        """What these lines did together; None for nothing."""
        keys = {self._keys[place] for place in places if place in self._keys}
        return self._joined(number for lines, number in self._sets.items() if not keys.isdisjoint(lines))

    def elsewhere(self, shown: set[tuple[str, int]]) -> LineUse | None:
        """What happened in none of these lines."""
        keys = {number for place, number in self._keys.items() if place in shown}
        return self._joined(number for lines, number in self._sets.items() if keys.isdisjoint(lines))

    def _joined(self, numbers: Iterable[int]) -> LineUse | None:
        if self._sums is None:
            self._sums, self._lasts = self._add_up()
        sums, lasts = self._sums, self._lasts
        mine = [number for number in numbers if number in sums]
        if not mine:
            return None
        parts = [sums[number] for number in mine]
        peaks = [part.peak for part in parts if part.peak is not None]
        return LineUse(
            after=sums[max(mine, key=lasts.__getitem__)].after,
            peak=max(peaks) if peaks and any(part.allocations for part in parts) else None,
            allocated=sum(part.allocated for part in parts),
            allocations=sum(part.allocations for part in parts),
            freed=sum(part.freed for part in parts),
            frees=sum(part.frees for part in parts),
            kept=sum(part.kept for part in parts),
        )

    def _add_up(self) -> tuple[dict[int, LineUse], dict[int, int]]:
        """The sums of each set, and its last event. Here every set has a peak: a line that does not allocate drops it.

        The highest level while a line ran is that before or after one of its events.
        """
        events, sets = self._events, self._set
        trace, level = self._timeline.trace, self._timeline.requested.bytes
        count = len(self._sets)
        action, size = trace.action[events], trace.size[events]
        peak = np.full(count, -1, np.int64)
        np.maximum.at(peak, sets, np.maximum(level[events], level[events + 1]))
        last = np.full(count, -1, np.int64)
        np.maximum.at(last, sets, events)
        made, freed = action == Action.ALLOC, action == Action.FREE_REQUESTED

        def total(mask: NDArray[np.bool_], weights: Ints) -> list[int]:
            sums = np.zeros(count, np.int64)
            np.add.at(sums, sets[mask], weights[mask])
            return [int(one) for one in sums]

        ones = np.ones(len(events), np.int64)
        columns = (total(made, size), total(made, ones), total(freed, size), total(freed, ones), self._kept(count))
        used = np.flatnonzero(last >= 0).tolist()
        sums = {
            number: LineUse(int(level[last[number] + 1]), int(peak[number]), *(column[number] for column in columns))
            for number in used
        }
        return sums, {number: int(last[number]) for number in used}

    def _kept(self, count: int) -> list[int]:
        """Bytes that each set allocated and that are there at the end."""
        allocations = self._timeline.allocations
        alive = np.flatnonzero((allocations.end == len(self._timeline.trace)) & (allocations.start >= 0))
        place = np.searchsorted(self._events, allocations.start[alive])
        kept = np.zeros(count, np.int64)
        np.add.at(kept, self._set[place], allocations.size[alive])
        return [int(one) for one in kept]
