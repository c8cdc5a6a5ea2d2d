"""A snapshot as it may be given away: without the text of the code, without the folders of its files."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.snapshot.cells import Cells
from ipygpumem.snapshot.tables import is_user_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["on_one_clock", "shared", "stripped"]

# From here on a file's name tells nothing of whose machine it lay on. The separator in front stays, by which library
# code is known.
_PUBLIC = re.compile(
    r"""[/\\](?:site-packages|dist-packages)[/\\].*
    | [/\\]lib[/\\]python3(?:\.\d+t?)?[/\\].*
    | [/\\]torch[/\\].*
    | [/\\]ipykernel_\d+[/\\]\d+\.py$""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_COMPILED = re.compile(r"torchinductor_|[/\\]\.triton[/\\]", re.IGNORECASE)
_CUT = "…"


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
        given.own = replace(snapshot.own, cells=cells, numbers=numbers, host=None)
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
    public = _PUBLIC.search(file)
    last = re.split(r"[/\\]", file)[-1]
    if public is not None:
        return f"{_CUT}{public[0]}"
    if _COMPILED.search(file):  # by which it is known that nobody wrote it
        return f"{_CUT}/.triton/{last}"
    return last if is_user_file(file) or not is_user_file(last) else f"{_CUT}/lib/python3/{last}"
