"""Copies of snapshots without private data or with aligned time axes."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.snapshot.model.cells import CellLookup
from ipygpumem.snapshot.model.stacks import is_user_file

if TYPE_CHECKING:
    from ipygpumem.snapshot.snapshot import Snapshot

# The part of a library file name that is kept. The leading separator is included because `is_user_file` requires it.
# Below other directories than site-packages, there may be directories of users, which are omitted
_PACKAGE = re.compile(r".*([/\\](?:site|dist)-packages[/\\].*)", re.IGNORECASE | re.DOTALL)
_LIBRARY = re.compile(
    r"([/\\](?:lib[/\\]python3(?:\.\d+t?)?|torch[/\\](?:nn|optim|autograd|utils|distributed|cuda|amp|fx|jit))[/\\])",
    re.IGNORECASE,
)
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$", re.IGNORECASE)
_COMPILED = re.compile(r"torchinductor_|[/\\]\.triton[/\\]", re.IGNORECASE)
_CUT = "…"
_SETTINGS = {
    *("expandable_segments", "garbage_collection_threshold", "graph_capture_record_stream_reuse", "max_split_size"),
    *("pinned_num_register_threads", "pinned_use_cuda_host_register", "pinned_use_host_register"),
    *("release_lock_on_cudamalloc", "release_lock_on_malloc", "max_round_threshold", "max_cached_size"),
}
"""Names of the settings with numbers or booleans as values that PyTorch writes to ``allocator_settings``."""
_CURVE = re.compile(r"(?:device used|outside PyTorch(?: (?:and|\+) other processes)?)(?:, cuda:[0-9]{1,4})?")


def without_private_data(snapshot: Snapshot, *, source: bool = True, paths: bool = True) -> Snapshot:
    """Return a copy of a snapshot without private data, or the snapshot itself if both options are true.

    ``source``: Whether to include the source code of the recorded cells.
    ``paths``: Whether to include the name of the snapshot file, the directories of source files, the name of the
    machine, the version of PyTorch, sampled curves with unusual names, and allocator settings that are strings or that
    PyTorch does not have. Names of functions, source files, installed packages, devices and actions, annotations,
    compile contexts and user metadata remain.
    """
    if source and paths:
        return snapshot
    result = copy.copy(snapshot)
    if not paths:
        files = [frame.file for frame in snapshot.stacks.frames]
        files += [*snapshot.sources, *(cell.filename for cell in snapshot.own.cells), *snapshot.own.execution_counts]
        names = strip_directories(files)
        frames = tuple(replace(frame, file=names[frame.file]) for frame in snapshot.stacks.frames)
        result.stacks = replace(snapshot.stacks, frames=frames)
        result.sources = {names[file]: text for file, text in snapshot.sources.items()}
        cells = tuple(replace(cell, filename=names[cell.filename]) for cell in snapshot.own.cells)
        numbers = {names[file]: number for file, number in snapshot.own.execution_counts.items()}
        curves = {name: curve for name, curve in snapshot.own.curves.items() if _CURVE.fullmatch(name)}
        result.own = replace(snapshot.own, cells=cells, execution_counts=numbers, host=None, torch=None, curves=curves)
        result.cells = CellLookup(cells, result.stacks, numbers)
        result.name = "snapshot"
        result.settings = {
            name: value
            for name, value in snapshot.settings.items()
            if isinstance(value, (int, float)) and name in _SETTINGS
        }
    if not source:
        result.sources = {}
    result.clear_caches()
    return result


def shareable_copies(snapshots: Sequence[Snapshot], *, source: bool = True, paths: bool = True) -> list[Snapshot]:
    copies = [without_private_data(snapshot, source=source, paths=paths) for snapshot in align_start_times(snapshots)]
    if not paths and len(copies) > 1:
        for number, snapshot in enumerate(copies, 1):
            snapshot.name += f" {number}"
    return copies


def align_start_times(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return copies of the snapshots whose time axes start with their first cells.

    If there is only one snapshot, or if a snapshot has no cells, all snapshots are returned unchanged. Their time axes
    then start with their first events.
    """
    starts = [min((cell.start_us for cell in snapshot.own.cells), default=0) for snapshot in snapshots]
    if len(starts) == 1 or 0 in starts:
        return list(snapshots)
    copies = [copy.copy(snapshot) for snapshot in snapshots]
    for snapshot, start in zip(copies, starts, strict=True):
        snapshot.zero_us = start
        snapshot.clear_caches()
    return copies


def strip_directories(files: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    used_names: set[str] = set()
    numbers: dict[str, int] = {}
    for file in files:
        if file in names:
            continue
        name = base = _short(file)
        number = numbers.get(base, 1)
        while name in used_names:
            numbers[base] = number = number + 1
            stem, dot, end = base.rpartition(".")
            name = f"{stem}~{number}{dot}{end}" if dot else f"{base}~{number}"
        used_names.add(name)
        names[file] = name
    return names


def _short(file: str) -> str:
    last = re.split(r"[/\\]", file)[-1]
    if is_user_file(file):
        cell = _CELL.search(file)
        return f"{_CUT}{cell[0]}" if cell else last
    if (package := _PACKAGE.fullmatch(file)) and ".." not in re.split(r"[/\\]", package[1]):
        return f"{_CUT}{package[1]}"
    if _COMPILED.search(file):  # `is_user_file` recognizes generated code by this directory
        return f"{_CUT}/.triton/{last}"
    if library := _LIBRARY.search(file):
        return f"{_CUT}{library[1]}{last}"
    return f"{_CUT}/lib/python3/{last}" if is_user_file(last) else last
