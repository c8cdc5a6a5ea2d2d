"""The figures in an executed notebook: without a kernel, without PyTorch, whatever the file may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.code_label import first_code
from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import printable
from ipygpumem.features.history.output_metadata import MIME, entries_from_summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipygpumem.features.history.model import Entry

__all__ = ["notebook_rows"]

_FORMAT = 4


def notebook_rows(data: Any, faults: list[str]) -> Iterator[Entry]:
    """The rows that the outputs of a notebook carry, in its order.

    Args:
        data: The notebook as plain data.
        faults: Gets a sentence for each output whose figures are broken.

    Raises:
        ReportError: It is no notebook of format 4.
    """
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or data.get("nbformat") != _FORMAT:
        raise ReportError("not a notebook of format 4")
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict):
            faults.append(f"cell {number} is none")
            continue
        for figures in _carried(cell):
            try:
                yield from _rows(cell, figures)
            except ReportError as error:
                faults.append(f"cell {number}: {error}")


def _carried(cell: dict[str, Any]) -> Iterator[Any]:
    """What our outputs of a cell carry."""
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        metadata = output.get("metadata") if isinstance(output, dict) else None
        if isinstance(metadata, dict) and MIME in metadata:
            yield metadata[MIME]


def _rows(cell: dict[str, Any], figures: Any) -> Iterator[Entry]:
    source, name = cell.get("source"), cell.get("id")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    code = first_code(source) if isinstance(source, str) else ""
    cell_id = printable(name) if isinstance(name, str) else None
    rows = entries_from_summary(figures, cell_id=cell_id, code=code)
    rows.sort(key=lambda row: (len(row.device), row.device))
    yield from [row for row in rows if row.moved] or rows[:1]
