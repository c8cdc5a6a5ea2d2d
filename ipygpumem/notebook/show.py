"""One display per report: text for terminals and files, small HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.notebook.environment import coloured_terminal
from ipygpumem.render import html_line, html_tables, report_tables, text_line, text_tables
from ipygpumem.session.lines import peak_lines

if TYPE_CHECKING:
    from ipygpumem.ledger.report import Report
    from ipygpumem.render.table import Table

__all__ = ["line_bundle", "show_line", "show_table", "show_tables"]


def line_bundle(report: Report, *, colour: bool = False) -> dict[str, str]:
    """A report as a mime bundle."""
    return {"text/plain": text_line(report, colour=colour), "text/html": html_line(report)}


def show_line(shell: Any, report: Report) -> None:
    """Display the short form."""
    _publish(shell, line_bundle(report, colour=coloured_terminal(shell)))


def show_tables(shell: Any, tables: list[Table]) -> None:
    """Display full tables."""
    _publish(shell, {"text/plain": text_tables(tables), "text/html": html_tables(tables)})


def show_table(shell: Any, report: Report) -> None:
    """Display the full form, with the lines of code at the peak where they were recorded."""
    show_tables(shell, report_tables(report, peak_lines(report)))


def _publish(shell: Any, bundle: dict[str, str]) -> None:
    """As IPython's display() would, but in this shell, which need not be the process's first."""
    shell.display_pub.publish(data=bundle, metadata={})
