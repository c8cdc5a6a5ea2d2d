"""By what allocations can be grouped, and what such a group is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.allocations import BEFORE
from ipygpumem.snapshot.model.annotations import innermost
from ipygpumem.snapshot.model.stacks import Numbers
from ipygpumem.snapshot.queries.groups import Group, add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot

    Ints = NDArray[np.int64]
    Keyed = tuple[NDArray[Any], Callable[[int], dict[str, Any]]]

__all__ = ["KEYS", "group_rows", "label_rows"]

UNKNOWN = "(unknown)"
_KIB_BITS = 10
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def group_rows(snapshot: Snapshot, timeline: Timeline, rows: Ints, key: str) -> tuple[Group, ...]:
    """Add up rows of a device's allocations by a key of `KEYS`, the largest group first.

    Raises:
        OptionError: There is no such key.
    """
    codes, describe = _keyed(snapshot, timeline, rows, key)
    sums = add_up(codes, timeline.allocations.size[rows])
    return tuple(Group(bytes=total, count=count, **describe(code)) for code, total, count in sums)


def label_rows(snapshot: Snapshot, timeline: Timeline, rows: Ints, key: str) -> tuple[list[str], Ints]:
    """The labels of the groups by a key of `KEYS`, and for each row the number of its label.

    Raises:
        OptionError: There is no such key.
    """
    codes, describe = _keyed(snapshot, timeline, rows, key)
    unique, which = np.unique(codes, return_inverse=True)
    return [describe(int(code))["label"] for code in unique], which


def _keyed(snapshot: Snapshot, timeline: Timeline, rows: Ints, key: str) -> Keyed:
    if not isinstance(key, str) or key not in KEYS:
        raise OptionError(f"cannot group by {key!r}: choose from {', '.join(KEYS)}")
    return KEYS[key](snapshot, timeline, rows)


_FOREIGN, _EMPTY, _OLD, _NO_STACK = -1, -2, -3, -4
_UNNAMED = {
    _FOREIGN: "(no frame of your own code)",
    _EMPTY: "(no Python on that thread, such as a backward pass)",
    _OLD: "(older than the recording, without a stack)",
    _NO_STACK: "(no stack recorded)",
}


def _user_frames(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Ints:
    """Number of the innermost frame of the user's own code, or why there is none."""
    stacks, allocations = snapshot.stacks, timeline.allocations
    table = np.append(np.where(stacks.leaf < 0, _EMPTY, stacks.user_frame), _NO_STACK).astype(np.int64)
    frames = table[allocations.stack[rows]]
    silent = (allocations.start[rows] == BEFORE) & ((frames == _EMPTY) | (frames == _NO_STACK))
    return np.where(silent, _OLD, frames)


def _by_line(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    def describe(code: int) -> dict[str, Any]:
        if code < 0:
            return {"label": _UNNAMED[code]}
        frame = snapshot.stacks.frames[code]
        label = f"{short(code, frame.file)}:{frame.line} {frame.name}"
        source = snapshot.source_line(frame.file, frame.line)
        return {"label": label, "file": frame.file, "line": frame.line, "name": frame.name, "source": source}

    codes = _user_frames(snapshot, timeline, rows)
    short = _short_files(snapshot, timeline, rows, codes)
    return codes, describe


def _short_files(snapshot: Snapshot, timeline: Timeline, rows: Ints, codes: Ints) -> Callable[[int, str], str]:
    """Names for the files of groups, given by code: the group's own events tell which run of a cell it was."""
    times = _times(timeline, rows)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]

    def short(code: int, file: str) -> str:
        first, last = np.searchsorted(ordered, [code, code + 1])
        return snapshot.short_file(file, times[order[first:last]])

    return short


def _by_function(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    functions = Numbers()
    table = [functions.number((frame.file, frame.name)) for frame in snapshot.stacks.frames]
    names = list(functions)

    def describe(code: int) -> dict[str, Any]:
        if code < 0:
            return {"label": _UNNAMED[code]}
        file, name = names[code]
        return {"label": f"{short(code, file)} {name}", "file": file, "name": name}

    codes = _look_up(table, _user_frames(snapshot, timeline, rows))
    short = _short_files(snapshot, timeline, rows, codes)
    return codes, describe


def _by_file(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    files = Numbers()
    table = [files.number(frame.file) for frame in snapshot.stacks.frames]
    names = list(files)

    def describe(code: int) -> dict[str, Any]:
        return {"label": names[code], "file": names[code]} if code >= 0 else {"label": _UNNAMED[code]}

    return _look_up(table, _user_frames(snapshot, timeline, rows)), describe


def _look_up(table: list[int], numbers: Ints) -> Ints:
    """Values of a table; negative numbers stand for themselves."""
    return np.where(numbers < 0, numbers, np.asarray([*table, 0], np.int64)[np.maximum(numbers, 0)])


def _by_stack(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    unnamed = _user_frames(snapshot, timeline, rows)
    codes = np.where(unnamed < _FOREIGN, unnamed, timeline.allocations.stack[rows])
    short = _short_files(snapshot, timeline, rows, codes)

    def describe(code: int) -> dict[str, Any]:
        if code < 0:
            return {"label": _UNNAMED[code]}
        frames = snapshot.stacks.stack(code)
        own = int(snapshot.stacks.user_frame[code])
        first = snapshot.stacks.frames[own] if own >= 0 else frames[0]
        return {"label": f"{short(code, first.file)}:{first.line} {first.name}", "frames": frames}

    return codes, describe


def _labelled(labels: Iterable[str]) -> Keyed:
    """Groups of equal labels."""
    numbers = Numbers()
    codes = np.asarray([numbers.number(label) for label in labels], np.int64)
    names = list(numbers)
    return codes, lambda code: {"label": names[code]}


def _times(timeline: Timeline, rows: Ints) -> Ints:
    return np.append(timeline.trace.time, -1)[timeline.allocations.start[rows]]


def _by_cell(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    return _labelled(snapshot.cells.labels(_times(timeline, rows), timeline.allocations.stack[rows]))


def _by_pool(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    allocations, trace = timeline.allocations, timeline.trace
    pools = np.append(trace.pool, -1)[allocations.start[rows]].astype(np.int64)
    untold = np.flatnonzero(pools < 0)
    pools[untold] = snapshot.pools_at(timeline.device, rows[untold])

    def describe(code: int) -> dict[str, Any]:
        if code < 0:
            return {"label": UNKNOWN}
        pool = snapshot.pools[code]
        return {"label": "default pool" if pool == (0, 0) else f"private pool {pool}"}

    return pools, describe


def _by_stream(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    allocations = timeline.allocations
    segment = np.append(snapshot.blocks.segment, -1)[allocations.block[rows]]
    known = allocations.start[rows] != BEFORE
    streams = np.where(
        known,
        np.append(timeline.trace.stream, 0)[allocations.start[rows]],
        np.append(snapshot.segments.stream, -1)[segment],
    )

    def describe(code: int) -> dict[str, Any]:
        return {"label": UNKNOWN if code == -1 else "default stream" if code == 0 else f"stream {code:#x}"}

    return streams, describe


def _by_annotation(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    names = snapshot.annotations(timeline.device)
    regions = innermost(names, _times(timeline, rows))
    return _labelled(names[region].name if region >= 0 else "(outside of all)" for region in regions.tolist())


def _by_text(column: str) -> Callable[[Snapshot, Timeline, Ints], Keyed]:
    def codes(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
        texts = np.append(getattr(timeline.trace, column), -1)[timeline.allocations.start[rows]]
        return texts, lambda code: {"label": (snapshot.texts[code] if code >= 0 else "") or "(none)"}

    return codes


def _by_size(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    del snapshot
    bits = np.ceil(np.log2(np.maximum(timeline.allocations.size[rows], 1))).astype(np.int64)

    def describe(code: int) -> dict[str, Any]:
        return {"label": f"up to {1 << code % _KIB_BITS} {_SIZE_UNITS[code // _KIB_BITS]}"}

    return bits, describe


def _by_allocation(snapshot: Snapshot, timeline: Timeline, rows: Ints) -> Keyed:
    def describe(code: int) -> dict[str, Any]:
        line = _by_line(snapshot, timeline, np.asarray([code]))
        return {**line[1](int(line[0][0])), "label": timeline.allocations.name(code)}

    return rows, describe


KEYS: dict[str, Callable[[Snapshot, Timeline, Ints], Keyed]] = {
    "line": _by_line,
    "function": _by_function,
    "file": _by_file,
    "cell": _by_cell,
    "stack": _by_stack,
    "pool": _by_pool,
    "stream": _by_stream,
    "annotation": _by_annotation,
    "context": _by_text("context"),
    "metadata": _by_text("metadata"),
    "size": _by_size,
    "allocation": _by_allocation,
}
"""The groupings by name. ``context`` is the compile context, ``metadata`` what the user set as memory metadata."""
