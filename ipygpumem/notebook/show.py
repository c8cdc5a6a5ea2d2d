"""One display per report: text for terminals and files, small HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.errors import first_line
from ipygpumem.notebook.environment import coloured_terminal
from ipygpumem.render import (
    html_line,
    html_listings,
    html_tables,
    module_tables,
    report_tables,
    text_line,
    text_listings,
    text_tables,
)
from ipygpumem.session.lines import peak_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.ledger.report import Report
    from ipygpumem.render.table import Table

__all__ = ["line_bundle", "show_line", "show_recording", "show_snapshots", "show_table", "show_tables"]


def line_bundle(report: Report, *, colour: bool = False) -> dict[str, str]:
    """A report as a mime bundle."""
    return {"text/plain": text_line(report, colour=colour), "text/html": html_line(report)}


def show_line(shell: Any, report: Report) -> None:
    """Display the short form."""
    _publish(shell, _with_answers(report, line_bundle(report, colour=coloured_terminal(shell))))


def show_tables(shell: Any, tables: list[Table]) -> None:
    """Display full tables."""
    _publish(shell, _tables_bundle(tables))


def show_table(shell: Any, report: Report) -> None:
    """Display the full form, with the lines of code at the peak where they were recorded."""
    # a listing has the lines at the peak, too
    lines = () if report.lines else peak_lines(report)
    _publish(shell, _with_answers(report, _tables_bundle(report_tables(report, lines))))


def show_snapshots(shell: Any, files: Sequence[str]) -> None:
    """Display one snapshot file, or two to compare.

    Raises:
        SnapshotError: A file cannot be read, or is no snapshot.
    """
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.viewer import View
    from ipygpumem.viewer.place import of_shell

    View([Snapshot.load(file) for file in files]).publish(of_shell(shell))


def show_recording(shell: Any, file: str) -> None:
    """Display what a cell has just recorded; if that fails it is a line, and the cell is what it was."""
    try:
        show_snapshots(shell, [file])
    except Exception as error:
        print(f"ipygpumem: no view of {file}: {first_line(error)}")  # noqa: T201 (where the view would be)


def _tables_bundle(tables: list[Table]) -> dict[str, str]:
    return {"text/plain": text_tables(tables), "text/html": html_tables(tables)}


def _with_answers(report: Report, bundle: dict[str, str]) -> dict[str, str]:
    """What was asked beside the figures comes below them."""
    if report.lines:
        bundle["text/plain"] += f"\n\n{text_listings(report.lines)}"
        bundle["text/html"] += html_listings(report.lines)
    if report.modules:
        tables = _tables_bundle(module_tables(report.modules))
        bundle["text/plain"] += f"\n\n{tables['text/plain']}"
        bundle["text/html"] += tables["text/html"]
    return bundle


def _publish(shell: Any, bundle: dict[str, str]) -> None:
    """As IPython's display() would, but in this shell, which need not be the process's first."""
    shell.display_pub.publish(data=bundle, metadata={})
