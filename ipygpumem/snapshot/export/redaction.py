"""Copies of snapshots without private data or with aligned time axes."""

from __future__ import annotations

import copy
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.reading import DeviceReading
from ipygpumem.snapshot.model.cells import CellLookup
from ipygpumem.snapshot.model.stacks import is_user_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.snapshot import Snapshot

# The part of a library file name that is the same on all machines. The leading separator is included because
# `is_user_file` requires it.
_PUBLIC = re.compile(
    r"""[/\\](?:site-packages|dist-packages)[/\\].*
    | [/\\]lib[/\\]python3(?:\.\d+t?)?[/\\].*
    | [/\\]torch[/\\].*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$", re.IGNORECASE)
_COMPILED = re.compile(r"torchinductor_|[/\\]\.triton[/\\]", re.IGNORECASE)
_CUT = "…"
_DEVICE = re.compile(r"(?:cuda:)?\d{1,4}")
_COUNTERS = frozenset(field.name for field in fields(DeviceReading))
_CURVE = re.compile(r"(?:device used|outside PyTorch(?: (?:and|\+) other processes)?)(?:, cuda:\d{1,4})?")


def shareable(snapshot: Snapshot, *, source: bool = True, paths: bool = True) -> Snapshot:
    """Return a copy of a snapshot without private data, or the snapshot itself if there is nothing to remove.

    Args:
        snapshot: The snapshot. It is not modified.
        source: Whether to include the source code of the recorded cells.
        paths: Whether file names include their directories. Paths in source code, annotations and metadata remain.
    """
    if source and paths:
        return snapshot
    result = copy.copy(snapshot)
    if not paths:
        files = [frame.file for frame in snapshot.stacks.frames]
        files += [*snapshot.sources, *(cell.filename for cell in snapshot.own.cells), *snapshot.own.numbers]
        names = strip_directories(files)
        frames = tuple(replace(frame, file=names[frame.file]) for frame in snapshot.stacks.frames)
        result.stacks = replace(snapshot.stacks, frames=frames)
        result.sources = {names[file]: text for file, text in snapshot.sources.items()}
        cells = tuple(replace(cell, filename=names[cell.filename]) for cell in snapshot.own.cells)
        numbers = {names[file]: number for file, number in snapshot.own.numbers.items()}
        readings, curves = _readings(snapshot.own.readings), _curves(snapshot.own.curves)
        result.own = replace(snapshot.own, cells=cells, numbers=numbers, host=None, readings=readings, curves=curves)
        result.cells = CellLookup(cells, result.stacks, numbers)
    if not source:
        result.sources = {}
    result.clear_caches()
    return result


def align_start_times(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return copies of snapshots to display side by side, with time axes that start when the measurement starts.

    This aligns measurements even if the clocks of their machines differ. If the start of a measurement is
    unknown, all time axes start with the first event.
    """
    starts = [min((cell.start_us for cell in snapshot.own.cells), default=0) for snapshot in snapshots]
    if len(starts) == 1 or 0 in starts:
        return list(snapshots)
    copies = [copy.copy(snapshot) for snapshot in snapshots]
    for snapshot, start in zip(copies, starts, strict=True):
        snapshot.zero_us = start
        snapshot.clear_caches()
    return copies


def _readings(readings: dict[str, Any]) -> dict[str, Any]:
    return {
        when: {
            device: {name: value for name, value in _items(counters) if name in _COUNTERS and _is_number(value)}
            for device, counters in _items(readings.get(when))
            if _DEVICE.fullmatch(device)
        }
        for when in ("before", "after")
        if when in readings
    }


def _curves(curves: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for name, curve in curves.items():
        columns = dict(_items(curve))
        lists = {key: columns[key] for key in ("time_us", "bytes") if isinstance(columns.get(key), list)}
        numeric = all(_is_number(value) for values in lists.values() for value in values)
        if _CURVE.fullmatch(name) and _is_number(columns.get("device")) and numeric:
            result[name] = {"device": columns["device"], **lists}
    return result


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(key, item) for key, item in value.items() if isinstance(key, str)] if isinstance(value, dict) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def strip_directories(files: list[str]) -> dict[str, str]:
    """Return a short, unique name for each file. Names of library files include the path within the library."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for file in files:
        if file in names:
            continue
        name = base = _short(file)
        number = 1
        while name in used:
            number += 1
            stem, dot, end = base.rpartition(".")
            name = f"{stem}~{number}{dot}{end}" if dot else f"{base}~{number}"
        used.add(name)
        names[file] = name
    return names


def _short(file: str) -> str:
    public = _CELL.search(file) if is_user_file(file) else _PUBLIC.search(file)
    last = re.split(r"[/\\]", file)[-1]
    if public is not None:
        return f"{_CUT}{public[0]}"
    if _COMPILED.search(file):  # `is_user_file` recognizes generated code by this directory
        return f"{_CUT}/.triton/{last}"
    return last if is_user_file(file) or not is_user_file(last) else f"{_CUT}/lib/python3/{last}"
