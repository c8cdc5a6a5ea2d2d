"""Grouping of allocations by a common property, such as the line of code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.annotations import allocation_metadata, innermost_regions
from ipygpumem.snapshot.model.columns import IndexByValue, distinct
from ipygpumem.snapshot.model.stacks import Frame
from ipygpumem.snapshot.model.timeline import BEFORE, Ints, Timeline
from ipygpumem.snapshot.snapshot_data import SnapshotData

Grouping = tuple[NDArray[Any], Callable[[int], dict[str, Any]]]
"""Integer group ID of each row, and a function that returns the attributes of the `Group` with a given ID."""

UNKNOWN = "(unknown)"
_MAX_NAME = 1000  # maximum length of the names of a file and a function in the label of a stack
_KIB_BITS = 10
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NO_USER_FRAME, _EMPTY, _OLD, _NO_STACK = -1, -2, -3, -4
_WITHOUT_FRAME = {
    _NO_USER_FRAME: "(no frame of your own code)",
    _EMPTY: "(no Python frames on the thread, as in a backward pass)",
    _OLD: "(older than the recording, without a stack)",
    _NO_STACK: "(no stack recorded)",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Allocations with a common property. Values that are unknown or do not apply are None.

    Attributes:
        label: Text that describes the property.
        bytes, count: Total size in bytes, and number of the allocations.
        file: Source file when grouping by line, function, file or allocation.
        line: Line number when grouping by line or allocation.
        name: Name of the function when grouping by line, function or allocation.
        source: Source code of the line when grouping by line or allocation, if the snapshot contains it.
        frames: Call stack when grouping by stack, innermost frame first.
    """

    label: str
    bytes: int
    count: int
    file: str | None = None
    line: int | None = None
    name: str | None = None
    source: str | None = None
    frames: tuple[Frame, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serializable data, with ``frames`` as strings."""
        names = ("label", "file", "line", "name", "source", "bytes", "count")
        frames = {"frames": [str(frame) for frame in self.frames]} if self.frames else {}
        return {name: getattr(self, name) for name in names} | frames


def add_up(ids: NDArray[Any], sizes: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return the ID, total size and count of each group, ordered by decreasing size and then by ID."""
    unique, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    totals = np.zeros(len(unique), np.int64)
    np.add.at(totals, inverse, sizes)
    order = np.lexsort((unique, -totals))
    return [(int(unique[row]), int(totals[row]), int(counts[row])) for row in order]


def group_rows(
    snapshot: SnapshotData, timeline: Timeline, rows: Ints, key: str, sizes: Ints | None = None
) -> tuple[Group, ...]:
    """Return the groups, largest first. ``sizes`` replaces the requested sizes of the allocations."""
    ids, describe = _grouping(snapshot, timeline, rows, key)
    sums = add_up(ids, timeline.allocations.size[rows] if sizes is None else sizes)
    return tuple(Group(bytes=total, count=count, **describe(group)) for group, total, count in sums)


def merge_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Add up the groups with equal labels. Return all groups, largest group first."""
    merged: dict[str, Group] = {}
    for group in groups:
        previous_group = merged.get(group.label)
        count, nbytes = (previous_group.count, previous_group.bytes) if previous_group else (0, 0)
        merged[group.label] = replace(group, bytes=group.bytes + nbytes, count=group.count + count)
    return tuple(sorted(merged.values(), key=lambda group: -group.bytes))


def label_rows(snapshot: SnapshotData, timeline: Timeline, rows: Ints, key: str) -> tuple[list[str], Ints]:
    """Return a tuple of the group labels for a key of `KEYS` and, for each row, the index of its label."""
    ids, describe = _grouping(snapshot, timeline, rows, key)
    unique = distinct(ids)  # faster than np.unique with return_inverse
    return [describe(int(group))["label"] for group in unique], np.searchsorted(unique, ids)


def _grouping(snapshot: SnapshotData, timeline: Timeline, rows: Ints, key: str) -> Grouping:
    if not isinstance(key, str) or key not in KEYS:
        raise OptionError(f"cannot group by {key!r}: choose from {', '.join(map(repr, KEYS))}")
    return KEYS[key](snapshot, timeline, rows)


def _user_frames(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Ints:
    """For each row, return the index of the innermost user frame, or a key of `_WITHOUT_FRAME` if there is none."""
    stacks, allocations = snapshot.stacks, timeline.allocations
    stack = allocations.stack[rows]
    frames = np.full(len(rows), _NO_STACK, np.int64)
    rows_with_stack = np.flatnonzero(stack >= 0)  # only these stacks are converted because there may be many devices
    stack = stack[rows_with_stack]
    frames[rows_with_stack] = np.where(stacks.leaf[stack] < 0, _EMPTY, stacks.user_frame[stack])
    is_older = (allocations.start[rows] == BEFORE) & ((frames == _EMPTY) | (frames == _NO_STACK))
    return np.where(is_older, _OLD, frames)


def _short_names(snapshot: SnapshotData, timeline: Timeline, rows: Ints, ids: Ints) -> Callable[[int, str], str]:
    times = _times(timeline, rows)
    order = np.argsort(ids, kind="stable")
    ordered_ids = ids[order]

    def short(group: int, file: str) -> str:
        first, last = np.searchsorted(ordered_ids, [group, group + 1])
        return snapshot.short_file(file, times[order[first:last]])

    return short


def _or_without_frame(ids: Ints, describe: Callable[[int], dict[str, Any]]) -> Grouping:
    return ids, lambda group: describe(group) if group >= 0 else {"label": _WITHOUT_FRAME[group]}


def _by_line(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    ids = _user_frames(snapshot, timeline, rows)
    short = _short_names(snapshot, timeline, rows, ids)

    def describe(group: int) -> dict[str, Any]:
        frame = snapshot.stacks.frames[group]
        label = f"{short(group, frame.file)}:{frame.line} {frame.name}"
        source = snapshot.source_line(frame.file, frame.line)
        return {"label": label, "file": frame.file, "line": frame.line, "name": frame.name, "source": source}

    return _or_without_frame(ids, describe)


def _by_function(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    ids, functions = _by_frame(snapshot, timeline, rows, lambda frame: (frame.file, frame.name))
    short = _short_names(snapshot, timeline, rows, ids)

    def describe(group: int) -> dict[str, Any]:
        file, name = functions[group]
        return {"label": f"{short(group, file)} {name}", "file": file, "name": name}

    return _or_without_frame(ids, describe)


def _by_file(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    ids, files = _by_frame(snapshot, timeline, rows, lambda frame: frame.file)
    return _or_without_frame(ids, lambda group: {"label": files[group], "file": files[group]})


def _by_frame(
    snapshot: SnapshotData, timeline: Timeline, rows: Ints, key: Callable[[Frame], Any]
) -> tuple[Ints, list[Any]]:
    numbers = IndexByValue()
    unique, inverse = np.unique(_user_frames(snapshot, timeline, rows), return_inverse=True)
    frames = snapshot.stacks.frames
    ids = [frame if frame < 0 else numbers[key(frames[frame])] for frame in unique.tolist()]
    return np.asarray(ids, np.int64)[inverse], list(numbers)


def _by_stack(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    frames = _user_frames(snapshot, timeline, rows)
    ids = np.where(frames < _NO_USER_FRAME, frames, timeline.allocations.stack[rows])
    short = _short_names(snapshot, timeline, rows, ids)

    def describe(group: int) -> dict[str, Any]:
        stack = snapshot.stacks.stack(group)
        user_frame = int(snapshot.stacks.user_frame[group])
        frame = snapshot.stacks.frames[user_frame] if user_frame >= 0 else stack[0]
        file = short(group, frame.file)[-_MAX_NAME:]  # many stacks can share a long name
        return {"label": f"{file}:{frame.line} {frame.name[:_MAX_NAME]}", "frames": stack}

    return _or_without_frame(ids, describe)


def _by_label(labels: Iterable[str]) -> Grouping:
    numbers = IndexByValue()
    ids = np.asarray([numbers[label] for label in labels], np.int64)
    return _named(ids, list(numbers), "", str)


def _named(ids: NDArray[Any], values: Sequence[Any], unknown: str, name: Callable[[Any], str]) -> Grouping:
    return ids, lambda group: {"label": name(values[group]) if group >= 0 else unknown}


def _times(timeline: Timeline, rows: Ints) -> Ints:
    return np.append(timeline.trace.time, -1)[timeline.allocations.start[rows]]


def _by_cell(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    return _by_label(snapshot.cells.labels(_times(timeline, rows), timeline.allocations.stack[rows]))


def _by_pool(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    pools = np.append(timeline.trace.pool, -1)[timeline.allocations.start[rows]].astype(np.int64)
    unknown = np.flatnonzero(pools < 0)
    pools[unknown] = snapshot.history(timeline.device).pools(rows[unknown])
    return _named(pools, snapshot.pools, UNKNOWN, lambda pool: f"private pool {pool}" if any(pool) else "default pool")


def _by_stream(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    allocations = timeline.allocations
    segment = np.append(snapshot.blocks.segment, -1)[allocations.block[rows]]
    streams = np.where(
        allocations.start[rows] != BEFORE,
        np.append(timeline.trace.stream, 0)[allocations.start[rows]],
        np.append(snapshot.segments.stream, -1)[segment],
    )

    names = {-1: UNKNOWN, 0: "default stream"}
    return streams, lambda stream: {"label": names.get(stream) or f"stream {stream:#x}"}


def _by_annotation(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    annotations = snapshot.annotations(timeline.device)
    regions = innermost_regions(annotations, _times(timeline, rows)).tolist()
    return _by_label(annotations[region].name if region >= 0 else "(outside all regions)" for region in regions)


def _by_context(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    texts = np.append(timeline.trace.context, -1)[timeline.allocations.start[rows]]
    return _named(texts, snapshot.texts, "(none)", lambda text: text or "(none)")


def _by_metadata(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    numbers, labels = allocation_metadata(timeline, rows, snapshot.texts)
    return _named(numbers, labels, "(none)", lambda label: label or "(none)")


def _by_size(_: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    bits = np.ceil(np.log2(np.maximum(timeline.allocations.size[rows], 1))).astype(np.int64)
    return bits, lambda bit: {"label": f"up to {1 << bit % _KIB_BITS} {_SIZE_UNITS[bit // _KIB_BITS]}"}


def _by_allocation(snapshot: SnapshotData, timeline: Timeline, rows: Ints) -> Grouping:
    ids, describe_line = _by_line(snapshot, timeline, rows)
    # lists instead of dicts, which would be slow for rows and frames that a file chooses
    lines, line = np.unique(ids, return_inverse=True)
    descriptions: list[dict[str, Any] | None] = [None] * len(lines)
    line_of = np.zeros(len(timeline.allocations), np.int64)
    line_of[rows] = line

    def describe(row: int) -> dict[str, Any]:
        number = line_of[row]
        description = descriptions[number] = descriptions[number] or describe_line(int(lines[number]))
        return {**description, "label": timeline.allocations.name(row)}

    return rows, describe


KEYS: dict[str, Callable[[SnapshotData, Timeline, Ints], Grouping]] = {
    "line": _by_line,
    "function": _by_function,
    "file": _by_file,
    "cell": _by_cell,
    "stack": _by_stack,
    "pool": _by_pool,
    "stream": _by_stream,
    "annotation": _by_annotation,
    "context": _by_context,
    "metadata": _by_metadata,
    "size": _by_size,
    "allocation": _by_allocation,
}
"""Groupings by name. ``context`` is the compile context of the allocation, and ``metadata`` its user metadata and the
texts that were attached to it later (``annotate`` events)."""
