"""Strings that ``torch.cuda.memory._annotate_tensor`` (PyTorch 2.14 or later) attached to allocations."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.timeline import Ints, Timeline
from ipygpumem.snapshot.model.unique_values import IndexByValue

_MAX_TEXTS, _MAX_LENGTH = 5, 200  # of a label that consists of several texts


def annotate_events(timeline: Timeline) -> dict[int, list[int]]:
    """Return a dict from rows in ``timeline.allocations`` to the ``annotate`` events of these allocations."""
    trace, allocations = timeline.trace, timeline.allocations
    events = trace.events(Action.ANNOTATE)
    if not len(events) or not len(allocations):
        return {}
    count = len(allocations)
    order = np.lexsort(
        (np.concatenate([allocations.start, events]), np.concatenate([allocations.address, trace.address[events]]))
    )
    latest = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), 0))
    annotations = np.flatnonzero(order >= count)
    rows, events = order[latest[annotations]], events[order[annotations] - count]
    rows = np.minimum(rows, count - 1)  # an annotation before the first allocation
    matching = (allocations.address[rows] == trace.address[events]) & (allocations.start[rows] < events)
    matching &= allocations.end[rows] > events
    result: dict[int, list[int]] = {}
    for row, event in sorted(zip(rows[matching].tolist(), events[matching].tolist(), strict=True)):
        result.setdefault(row, []).append(event)
    return result


def allocation_metadata(timeline: Timeline, rows: Ints, texts: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the labels of allocations, as indices in a list of labels; -1 for an allocation without user metadata.

    A label consists of the user metadata in the event of the allocation and the strings that were attached later.
    """
    metadata = timeline.trace.metadata
    numbers = np.append(metadata, -1)[timeline.allocations.start[rows]].astype(np.int64)
    events_of = annotate_events(timeline)
    labels = IndexByValue()
    for place, row in enumerate(rows.tolist() if events_of else ()):
        if row in events_of:
            attached = [int(numbers[place]), *metadata[events_of[row]].tolist()]
            parts = list(dict.fromkeys(number for number in attached if number >= 0 and texts[number]))
            key = array("i", parts[:_MAX_TEXTS]).tobytes()
            numbers[place] = len(texts) + labels[key] if len(parts) > 1 else (parts or [-1])[0]
    parts_of = (np.frombuffer(key, np.int32).tolist() for key in labels)
    combined = ["; ".join(texts[number][:_MAX_LENGTH] for number in parts) for parts in parts_of]
    return numbers, [*texts, *combined]
