"""A snapshot as it may be given away: without the text of the code, without the folders of its files."""

from __future__ import annotations

import copy
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.reading import DeviceReading
from ipygpumem.snapshot.model.cells import Cells
from ipygpumem.snapshot.model.stacks import is_user_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["on_one_clock", "shared", "stripped"]

# From here on a library's file name tells nothing of whose machine it lay on. The separator in front stays, by which
# library code is known.
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
_CURVE = re.compile(r"(?:device used|outside PyTorch(?: and other processes)?)(?:, cuda:\d{1,4})?")


def shared(snapshot: Snapshot, *, source: bool = True, paths: bool = True) -> Snapshot:
    """The snapshot without what is not to be given away; itself, where all is.

    Args:
        snapshot: The snapshot; it stays as it is.
        source: Whether the text of the recorded cells goes with it.
        paths: Whether file names keep their folders. What people wrote themselves (the text of the code, annotations,
            metadata) is not searched for paths.
    """
    if source and paths:
        return snapshot
    given = copy.copy(snapshot)
    if not paths:
        files = [frame.file for frame in snapshot.stacks.frames]
        files += [*snapshot.sources, *(cell.filename for cell in snapshot.own.cells), *snapshot.own.numbers]
        names = stripped(files)
        frames = tuple(replace(frame, file=names[frame.file]) for frame in snapshot.stacks.frames)
        given.stacks = replace(snapshot.stacks, frames=frames)
        given.sources = {names[file]: text for file, text in snapshot.sources.items()}
        cells = tuple(replace(cell, filename=names[cell.filename]) for cell in snapshot.own.cells)
        numbers = {names[file]: number for file, number in snapshot.own.numbers.items()}
        readings, curves = _readings(snapshot.own.readings), _curves(snapshot.own.curves)
        given.own = replace(snapshot.own, cells=cells, numbers=numbers, host=None, readings=readings, curves=curves)
        given.cells = Cells(cells, given.stacks, numbers)
    if not source:
        given.sources = {}
    given.forget()
    return given


def on_one_clock(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Snapshots that are shown beside each other, times counting from the begin of each one's measurement.

    That is where the runs are the same, whatever the clocks of their machines say. Where one of them does not tell when
    its measurement began, all count from their first events.
    """
    begins = [min((cell.start_us for cell in one.own.cells), default=0) for one in snapshots]
    if len(begins) == 1 or 0 in begins:
        return list(snapshots)
    copies = [copy.copy(one) for one in snapshots]
    for one, begin in zip(copies, begins, strict=True):
        one.zero_us = begin
        one.forget()
    return copies


def _readings(readings: dict[str, Any]) -> dict[str, Any]:
    """Counters that we know, as numbers: what else a file has under these keys may be anything."""
    return {
        when: {
            device: {name: value for name, value in _items(counters) if name in _COUNTERS and _number(value)}
            for device, counters in _items(readings.get(when))
            if _DEVICE.fullmatch(device)
        }
        for when in ("before", "after")
        if when in readings
    }


def _curves(curves: dict[str, Any]) -> dict[str, Any]:
    """Curves whose names are ours, with numbers only."""
    found = {}
    for name, curve in curves.items():
        known = dict(_items(curve))
        lists = {key: known[key] for key in ("time_us", "bytes") if isinstance(known.get(key), list)}
        whole = all(_number(value) for values in lists.values() for value in values)
        if _CURVE.fullmatch(name) and _number(known.get("device")) and whole:
            found[name] = {"device": known["device"], **lists}
    return found


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(key, held) for key, held in value.items() if isinstance(key, str)] if isinstance(value, dict) else []


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def stripped(files: list[str]) -> dict[str, str]:
    """Names without folders. Different files keep different names, libraries their place inside the library."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for file in files:
        if file in names:
            continue
        name = base = _short(file)
        number = 1
        while name in taken:
            number += 1
            stem, dot, end = base.rpartition(".")
            name = f"{stem}~{number}{dot}{end}" if dot else f"{base}~{number}"
        taken.add(name)
        names[file] = name
    return names


def _short(file: str) -> str:
    public = _CELL.search(file) if is_user_file(file) else _PUBLIC.search(file)
    last = re.split(r"[/\\]", file)[-1]
    if public is not None:
        return f"{_CUT}{public[0]}"
    if _COMPILED.search(file):  # by which it is known that nobody wrote it
        return f"{_CUT}/.triton/{last}"
    return last if is_user_file(file) or not is_user_file(last) else f"{_CUT}/lib/python3/{last}"
