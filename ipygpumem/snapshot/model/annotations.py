"""Annotated regions and their assignment to events, and strings that the program attached to allocations."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.serialization import Serializable
from ipygpumem.snapshot.model.cells import FOREVER, TimeIntervals
from ipygpumem.snapshot.model.columns import Action, IndexByValue
from ipygpumem.snapshot.model.timeline import Ints, Timeline

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Annotation(Serializable):
    """Annotated region.

    Attributes:
        name: Name such as ``Optimizer.step#AdamW.step``.
        device: Index of the device that was current when the region was recorded; -1 if there was none.
        start_us, end_us: Bounds in microseconds since the Unix epoch; None if they were not recorded.
        depth: Number of enclosing regions.
        ambiguous: Whether the region overlaps another region without being nested in it. Its bounds may then be wrong,
            because START or END entries may be missing and files do not identify the thread of an entry.
    """

    name: str
    device: int
    start_us: int | None
    end_us: int | None
    depth: int
    ambiguous: bool


@dataclass(frozen=True, slots=True, eq=False)
class AnnotationTable:
    """Annotated regions as columns, ordered by start.

    Attributes:
        names: Distinct names of the regions.
        columns: One column for each field of `Annotation`. The first contains indices into ``names``. Unknown times
            are -1.
    """

    names: tuple[str, ...]
    columns: tuple[NDArray[Any], ...]

    def values(self, rows: Any = slice(None)) -> Iterator[list[Any]]:
        """Yield the columns as lists, with None for unknown times."""
        for field, column in zip(fields(Annotation), self.columns, strict=True):
            values = column[rows].tolist()
            yield [None if value < 0 else value for value in values] if field.name.endswith("_us") else values

    def regions(self, device: int | None = None) -> tuple[Annotation, ...]:
        names, *columns = self.values(slice(None) if device is None else self.columns[1] == device)
        return tuple(map(Annotation, map(self.names.__getitem__, names), *columns))


def pair_entries(
    names: tuple[str, ...],
    name: NDArray[np.int32],
    device: NDArray[np.int64],
    time: NDArray[np.int64],
    starts: NDArray[np.bool_],
) -> AnnotationTable:
    """Match START entries with END entries, and return the regions between them.

    The arrays have one element per entry, in any order: the index of the name in ``names``, the device index, the time
    in microseconds since the Unix epoch, and whether the entry is a START entry. An unmatched entry is a region with
    one unknown bound.
    """
    order = np.argsort(time, kind="stable")
    name, device, time, starts = name[order], device[order], time[order], starts[order]
    count = len(order)
    order = np.lexsort((device, name))
    kind = np.zeros(count, np.int32)
    kind[order[1:]] = np.cumsum((np.diff(name[order]) != 0) | (np.diff(device[order]) != 0))
    del order
    latest = array("i", [_UNKNOWN]) * (count + 1)  # open region by kind
    around = array("i", [_UNKNOWN]) * count  # open region of the same kind around a region
    end, depth = array("i", [_UNKNOWN]) * count, array("i", [0]) * count
    ambiguous, is_open = bytearray(count), bytearray(count)
    opened = array("i")  # regions by start; a closed region is removed when no open region follows
    level = 0
    for row, (is_start, same) in enumerate(zip(starts.data, kind.data, strict=True)):
        region = latest[same]
        if is_start:
            around[row], latest[same], is_open[row], depth[row] = region, row, 1, level
            opened.append(row)
            level += 1
        elif region < 0:
            end[row], ambiguous[row] = row, level > 0
        else:
            while not is_open[opened[-1]]:
                opened.pop()
            level -= 1
            # ambiguous unless the same regions are open around the region as at its start, and none are open inside it
            ambiguous[region] = region != opened[-1] or level != depth[region]
            end[region], latest[same], is_open[region] = row, around[region], 0
    del kind, latest, around, opened
    ends, depths, is_ambiguous = np.asarray(end), np.asarray(depth), np.array(ambiguous, np.bool_)
    without_end = np.flatnonzero(is_open)
    is_ambiguous[without_end] = depths[without_end] != np.arange(len(without_end))
    start_us, end_us = np.where(starts, time, _UNKNOWN), np.append(time, _UNKNOWN)[ends]
    rows = np.flatnonzero(starts | (ends >= 0))
    rows = rows[np.lexsort((depths[rows], start_us[rows]))]
    columns = (name, device, start_us, end_us, depths, is_ambiguous)
    return AnnotationTable(names, tuple(column[rows] for column in columns))


def innermost_regions(annotations: tuple[Annotation, ...], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the innermost region at each time, the latest if there are several; -1 if there is none."""
    if not annotations or not len(times):
        return np.full(len(times), -1, np.int64)
    starts = [-1 if region.start_us is None else region.start_us for region in annotations]
    ends = [FOREVER if region.end_us is None else region.end_us for region in annotations]
    priorities = [(region.depth, start) for region, start in zip(annotations, starts, strict=True)]
    # unknown times are also -1, but a region that started before the recording does not contain them
    return np.where(times < 0, -1, TimeIntervals(starts, ends, priorities).at(times))


_MAX_TEXTS, _MAX_LENGTH = 5, 200  # limits for a label that combines several texts


def annotate_events(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of annotated allocations and the events of ``torch.cuda.memory._annotate_tensor`` (PyTorch 2.14).

    The arrays contain a row of ``timeline.allocations`` and an event per annotation, ordered by row and then by event.
    """
    trace, allocations = timeline.trace, timeline.allocations
    events = trace.events(Action.ANNOTATE)
    if not len(events) or not len(allocations):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    count = len(allocations)
    addresses = np.concatenate([allocations.address, trace.address[events]])
    order = np.lexsort((np.concatenate([allocations.start, events]), addresses))
    latest = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), 0))
    annotations = np.flatnonzero(order >= count)
    rows, events = order[latest[annotations]], events[order[annotations] - count]
    rows = np.minimum(rows, count - 1)  # an annotation before the first allocation
    matching = (allocations.address[rows] == trace.address[events]) & (allocations.start[rows] < events)
    matching &= allocations.end[rows] > events
    rows, events = rows[matching], events[matching]
    order = np.lexsort((events, rows))
    return rows[order], events[order]


def allocation_metadata(timeline: Timeline, rows: Ints, texts: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the index of each allocation's label, or -1 if it has no user metadata, and the list of labels."""
    metadata = timeline.trace.metadata
    numbers = np.append(metadata, -1)[timeline.allocations.start[rows]].astype(np.int64)
    annotated, events = annotate_events(timeline)
    first, last = np.searchsorted(annotated, rows), np.searchsorted(annotated, rows, side="right")
    labels = IndexByValue()
    for place in np.flatnonzero(first < last).tolist():
        parts: list[int] = []
        for number in (numbers[place], *metadata[events[first[place] : last[place]]]):
            if number >= 0 and texts[number] and number not in parts and len(parts) < _MAX_TEXTS:
                parts.append(int(number))
        key = array("i", parts).tobytes()
        numbers[place] = len(texts) + labels[key] if len(parts) > 1 else (parts or [-1])[0]
    parts_of = (np.frombuffer(key, np.int32).tolist() for key in labels)
    combined = ["; ".join(texts[number][:_MAX_LENGTH] for number in parts) for parts in parts_of]
    return numbers, [*texts, *combined]
