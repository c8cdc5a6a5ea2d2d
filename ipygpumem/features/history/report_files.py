"""Rows from the files that a session leaves: a log of reports, or an executed notebook. Needs no kernel or PyTorch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import printable
from ipygpumem.features.history.load import MAX_JSON_BYTES, open_regular_file, parse_json, read_reports
from ipygpumem.features.history.model import ReportRow, changed_rows
from ipygpumem.features.history.output_metadata import MIME, rows_from_summary
from ipygpumem.measurement.build_report import code_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ReportRows", "is_notebook", "read_notebook", "read_rows", "short_names"]

_PEEK_BYTES = 1 << 12
_NOTEBOOK_FORMAT = 4


@dataclass(frozen=True, slots=True)
class ReportRows:
    """The rows of one session, a message for each skipped part of its file, and the number of discarded reports."""

    name: str
    rows: Sequence[ReportRow]
    faults: tuple[str, ...] = ()
    dropped: int = 0


def read_rows(path: str | os.PathLike[str]) -> ReportRows:
    """Read a log or an executed notebook. Invalid lines are skipped and listed in ``faults``."""
    if is_notebook(path):
        return read_notebook(path)
    faults: list[str] = []
    rows = changed_rows(read_reports(path, faults))
    if faults and not rows:
        raise ReportError(faults[0])
    return ReportRows(_file_name(path), rows, tuple(faults))


def is_notebook(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a notebook, judged by its extension or its first bytes."""
    if os.fsdecode(path).lower().endswith(".ipynb"):
        return True
    with open_regular_file(path) as file:
        start = file.read(_PEEK_BYTES).split()
    return start[:2] == [b"{", b'"cells":']


def read_notebook(path: str | os.PathLike[str]) -> ReportRows:
    """Read the figures in the output metadata of an executed notebook."""
    faults: list[str] = []
    name = printable(os.fsdecode(path))
    with open_regular_file(path) as file:
        text = file.read(MAX_JSON_BYTES + 1)
    try:
        rows = list(_notebook_rows(parse_json(text), faults))
    except ReportError as error:
        raise ReportError(f"{name}: {error}") from None
    return ReportRows(_file_name(path), rows, tuple(f"{name}: {fault}" for fault in faults))


def _notebook_rows(data: Any, faults: list[str]) -> Iterator[ReportRow]:
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or data.get("nbformat") != _NOTEBOOK_FORMAT:
        raise ReportError("not a notebook of format 4")
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict):
            faults.append(f"cell {number} is not an object")
            continue
        for summary in _summaries(cell):
            try:
                yield from _cell_rows(cell, summary)
            except ReportError as error:
                faults.append(f"cell {number}: {error}")


def _summaries(cell: dict[str, Any]) -> Iterator[Any]:
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        metadata = output.get("metadata") if isinstance(output, dict) else None
        if isinstance(metadata, dict) and MIME in metadata:
            yield metadata[MIME]


def _cell_rows(cell: dict[str, Any], summary: Any) -> Iterator[ReportRow]:
    source, cell_id = cell.get("source"), cell.get("id")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    rows = rows_from_summary(
        summary,
        cell_id=cell_id if isinstance(cell_id, str) else None,
        code=code_label(source) if isinstance(source, str) else "",
    )
    rows.sort(key=lambda row: (len(row.device), row.device))
    yield from [row for row in rows if row.changed] or rows[:1]


def _file_name(path: str | os.PathLike[str]) -> str:
    return printable(Path(os.fsdecode(path)).name)


def short_names(first: str, second: str) -> tuple[str, str]:
    """File names of two paths, with their folders if the names are the same."""
    names = _file_name(first), _file_name(second)
    if names[0] != names[1]:
        return names
    paths = [os.path.abspath(os.path.expanduser(path)) for path in (first, second)]  # noqa: PTH100, PTH111 (Path raises for an unknown user)
    if paths[0] == paths[1]:
        return names
    folders = [printable(Path(path).parent.name) for path in paths]
    return f"{folders[0]}/{names[0]}", f"{folders[1]}/{names[1]}"
