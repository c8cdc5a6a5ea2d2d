"""The rows of a file, be it a log of reports or an executed notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import printable
from ipygpumem.features.history.load import LARGEST, opened, parsed, read_reports
from ipygpumem.features.history.model import Entry, moved_entries
from ipygpumem.features.history.notebook_file import notebook_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Rows", "is_notebook", "read_notebook", "read_rows", "short_names"]

_START = 1 << 12


@dataclass(frozen=True, slots=True)
class Rows:
    """What a history is made of.

    Attributes:
        name: Whose it is.
        rows: A row for each measurement and device that moved.
        faults: A sentence for each piece that was broken, and passed over.
        dropped: Older rows, which are no longer there.
    """

    name: str
    rows: Sequence[Entry]
    faults: tuple[str, ...] = ()
    dropped: int = 0


def read_rows(path: str | os.PathLike[str]) -> Rows:
    """The rows of a log or of an executed notebook; lines that are broken are passed over, and told.

    Raises:
        ReportError: The file cannot be read, or is neither; the message begins with its name.
    """
    if is_notebook(path):
        return read_notebook(path)
    faults: list[str] = []
    rows = moved_entries(read_reports(path, faults))
    if faults and not rows:  # not one line: no log at all
        raise ReportError(faults[0])
    return Rows(_name(path), rows, tuple(faults))


def is_notebook(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a notebook, by its name or by how it begins.

    Raises:
        ReportError: It cannot be read.
    """
    if os.fsdecode(path).lower().endswith(".ipynb"):
        return True
    with opened(path) as file:
        start = file.read(_START).split()
    return start[:2] == [b"{", b'"cells":']


def read_notebook(path: str | os.PathLike[str]) -> Rows:
    """The rows that an executed notebook carries.

    Raises:
        ReportError: The file cannot be read, or is no notebook; the message begins with its name.
    """
    faults: list[str] = []
    name = printable(os.fsdecode(path))
    with opened(path) as file:
        text = file.read(LARGEST + 1)
    try:
        data = parsed(text)
        rows = list(notebook_rows(data, faults))
    except ReportError as error:
        raise ReportError(f"{name}: {error}") from None
    return Rows(_name(path), rows, tuple(f"{name}: {fault}" for fault in faults))


def _name(path: str | os.PathLike[str]) -> str:
    return printable(Path(os.fsdecode(path)).name)


def short_names(one: str, other: str) -> tuple[str, str]:
    """Two files by names that tell them apart."""
    names = _name(one), _name(other)
    if names[0] != names[1]:
        return names
    whole = [os.path.abspath(os.path.expanduser(path)) for path in (one, other)]  # noqa: PTH100, PTH111 (Path raises for a user who is not there)
    if whole[0] == whole[1]:
        return names
    parents = [printable(Path(path).parent.name) for path in whole]
    return f"{parents[0]}/{names[0]}", f"{parents[1]}/{names[1]}"
