"""One display per report: text for terminals and files, small HTML for notebooks."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import SnapshotError, first_line
from ipygpumem.display.html import html_line, html_tables
from ipygpumem.display.line import text_line
from ipygpumem.display.table import report_tables, text_tables
from ipygpumem.features.history.output_metadata import MIME, summary
from ipygpumem.features.history.table import Page, history_tables
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.features.lines.table import html_listings, text_listings
from ipygpumem.features.modules.table import module_tables
from ipygpumem.features.outside.table import with_outside
from ipygpumem.features.processes.table import with_change_rows
from ipygpumem.features.profile.table import category_tables
from ipygpumem.jupyter.terminal import coloured_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.display.table import Table
    from ipygpumem.features.history.model import ReportRow
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.lines.model import PeakLines
    from ipygpumem.features.profile.model import CategoryPeak
    from ipygpumem.features.profile.timeline import Profile
    from ipygpumem.features.ranks.collect import Ranks

__all__ = [
    "line_bundle",
    "show_levels",
    "show_line",
    "show_object",
    "show_profile",
    "show_ranks",
    "show_recording",
    "show_snapshots",
    "show_table",
    "show_tables",
]

_NEW = 5
"""New holders that a cell's table names."""


def line_bundle(report: Report, *, colour: bool = False) -> dict[str, str]:
    """A report as a mime bundle."""
    return {"text/plain": text_line(report, colour=colour), "text/html": html_line(report)}


def show_line(shell: Any, report: Report, place: str | None = None) -> None:
    """Display the short form; ``place`` is the id of a display that it takes the place of."""
    bundle = line_bundle(report, colour=coloured_terminal(shell))
    _publish(shell, _with_answers(report, bundle), report, place)


def show_levels(shell: Any, rows: Sequence[ReportRow], title: str) -> None:
    """Display the history of a session as a picture, with its table for those who see text only."""
    from ipygpumem.features.history.picture import history_picture

    text = text_tables(history_tables(rows, Page(), title=title))
    still = history_picture(rows, title)
    data = {"text/plain": text, "image/png": base64.b64encode(still.png).decode()}
    shell.display_pub.publish(data=data, metadata={"image/png": {"width": still.width, "height": still.height}})


def show_ranks(shell: Any, found: Ranks) -> None:
    """Display the level of each rank over time, with the tables for those who see text only.

    Raises:
        OptionError: None has a recording with times.
    """
    from ipygpumem.features.ranks.picture import ranks_picture

    still = ranks_picture(found.members, found.what)
    data = {"text/plain": str(found), "image/png": base64.b64encode(still.png).decode()}
    shell.display_pub.publish(data=data, metadata={"image/png": {"width": still.width, "height": still.height}})


def show_tables(shell: Any, tables: list[Table], report: Report | None = None) -> None:
    """Display full tables; with a report, they carry its figures."""
    _publish(shell, _tables_bundle(tables), report)


def show_object(shell: Any, found: Any) -> None:
    """Display something that has a text and an HTML of its own."""
    _publish(shell, {"text/plain": str(found), "text/html": found._repr_html_()})


def show_table(shell: Any, report: Report, new: Holders | None = None, place: str | None = None) -> None:
    """Display the full form, with the lines of code at the peak where they were recorded, and who holds what is new.

    ``place`` is as for `show_line`.
    """
    # a listing has the lines at the peak, too
    lines = () if report.lines else _saved_peak_lines(report)
    tables = with_outside(with_change_rows(report_tables(report, lines), report), report)
    tables = [*tables[:-1], *_new(new), *tables[-1:]]  # what is to be said of the cell stands last
    _publish(shell, _with_answers(report, _tables_bundle(tables)), report, place)


def _saved_peak_lines(report: Report) -> tuple[PeakLines, ...]:
    recording = report.recording
    if recording is None or recording.path is None or recording.dropped or recording.error:
        return ()
    from ipygpumem.features.lines.peak import peak_lines
    from ipygpumem.snapshot import Snapshot

    try:
        return peak_lines(Snapshot.load(recording.path), report)
    except SnapshotError:  # the file was replaced in the meantime
        return ()


def _new(holders: Holders | None) -> list[Table]:
    return [] if holders is None or not holders.holders else holders_tables(holders, most=_NEW, parts=2)


def show_snapshots(shell: Any, files: Sequence[str]) -> None:
    """Display one snapshot file, or several side by side.

    Raises:
        SnapshotError: A file cannot be read, or is no snapshot.
    """
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.viewer import View
    from ipygpumem.viewer.display_target import shell_target

    View([Snapshot.load(file) for file in files]).publish(shell_target(shell))


def show_recording(shell: Any, file: str) -> None:
    """Display what a cell has just recorded; if that fails it is a line, and the cell is what it was."""
    try:
        show_snapshots(shell, [file])
    except Exception as error:
        print(f"ipygpumem: no view of {file}: {first_line(error)}")  # noqa: T201 (where the view would be)


def show_profile(shell: Any, profile: Profile, name: str, peaks: Sequence[CategoryPeak]) -> None:
    """Display memory by category as a picture, with a table for those who see text only."""
    from ipygpumem.features.profile.picture import profile_picture

    data, metadata = {"text/plain": text_tables(category_tables(peaks))}, {}
    try:
        still = profile_picture(profile, name)
    except Exception as error:
        print(f"ipygpumem: no picture of {name}: {first_line(error)}")  # noqa: T201 (where it would be)
    else:
        data["image/png"] = base64.b64encode(still.png).decode()
        metadata["image/png"] = {"width": still.width, "height": still.height}
    shell.display_pub.publish(data=data, metadata=metadata)


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


def _publish(shell: Any, bundle: dict[str, str], report: Report | None = None, place: str | None = None) -> None:
    """As IPython's display() would, but in this shell, which need not be the process's first.

    A report's figures go along as metadata: an executed notebook carries them. ``place``: the id of a display that is
    updated instead.
    """
    options: dict[str, Any] = {} if place is None else {"transient": {"display_id": place}, "update": True}
    shell.display_pub.publish(data=bundle, metadata={} if report is None else {MIME: summary(report)}, **options)
