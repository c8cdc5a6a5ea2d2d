"""What the extension displays: text for terminals and files, small HTML for notebooks."""

from __future__ import annotations

import base64
import os
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line
from ipygpumem.core.tables import tables_bundle, text_tables
from ipygpumem.features.history.output_metadata import output_metadata
from ipygpumem.features.profile.table import category_tables
from ipygpumem.features.report.bundle import full_bundle, requested_bundle
from ipygpumem.features.report.line import line_bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.core.tables import Table
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.profile.model import CategoryPeak
    from ipygpumem.features.profile.timeline import Profile

__all__ = [
    "is_terminal",
    "show_full",
    "show_line",
    "show_object",
    "show_picture",
    "show_profile",
    "show_recording",
    "show_requested",
    "show_snapshots",
    "show_tables",
    "uses_color",
]


def is_terminal(shell: Any) -> bool:
    """Whether this is IPython in a terminal, which shows only text."""
    return any(kind.__name__ == "TerminalInteractiveShell" for kind in type(shell).__mro__)


def uses_color(shell: Any) -> bool:
    """Whether text goes to a terminal with colors."""
    if not is_terminal(shell) or str(getattr(shell, "colors", "")).lower() == "nocolor":
        return False
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(sys.stdout, "isatty", lambda: False)())


def show_line(shell: Any, report: Report, display_id: str | None = None) -> None:
    """Display the short form of a report; ``display_id`` is that of a display to replace."""
    color = uses_color(shell)
    metadata = output_metadata(report)
    _publish(shell, line_bundle(report, color=color), metadata, display_id)


def show_requested(shell: Any, report: Report, display_id: str | None = None) -> None:
    """Display the requested sections of a report, followed by its short form."""
    _publish(shell, requested_bundle(report, color=uses_color(shell)), output_metadata(report), display_id)


def show_full(shell: Any, report: Report, new_holders: Holders | None = None, display_id: str | None = None) -> None:
    """Display the requested sections of a report, followed by the full breakdown and the holders of new memory."""
    _publish(shell, full_bundle(report, new_holders), output_metadata(report), display_id)


def show_tables(shell: Any, tables: list[Table], report: Report | None = None) -> None:
    """Display tables; with a report, the output's metadata has its figures."""
    _publish(shell, tables_bundle(tables), None if report is None else output_metadata(report))


def show_object(shell: Any, value: Any) -> None:
    """Display an object that has a text form and an HTML form."""
    _publish(shell, {"text/plain": str(value), "text/html": value._repr_html_()})


def show_picture(shell: Any, picture: Any, text: str) -> None:
    """Display a PNG picture, with a text for front ends that show no pictures."""
    data = {"text/plain": text, "image/png": base64.b64encode(picture.png).decode()}
    metadata = {"image/png": {"width": picture.width, "height": picture.height}}
    shell.display_pub.publish(data=data, metadata=metadata)


def show_snapshots(shell: Any, files: Sequence[str]) -> None:
    """Display one snapshot file, or several side by side.

    Raises:
        SnapshotError: A file cannot be read, or is not a snapshot.
    """
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.viewer import View
    from ipygpumem.viewer.display_target import shell_target

    View([Snapshot.load(file) for file in files]).publish(shell_target(shell))


def show_recording(shell: Any, file: str) -> None:
    """Display the recording of a cell. A failure is printed, and does not change the outcome of the cell."""
    try:
        show_snapshots(shell, [file])
    except Exception as error:
        print(f"ipygpumem: {file} cannot be shown: {first_line(error)}")  # noqa: T201 (where the view would be)


def show_profile(shell: Any, profile: Profile, name: str, peaks: Sequence[CategoryPeak]) -> None:
    """Display memory by category as a picture, with a table for front ends that show no pictures."""
    from ipygpumem.features.profile.picture import profile_picture

    text = text_tables(category_tables(peaks))
    try:
        picture = profile_picture(profile, name)
    except Exception as error:
        print(f"ipygpumem: no picture of {name}: {first_line(error)}")  # noqa: T201 (where it would be)
        shell.display_pub.publish(data={"text/plain": text}, metadata={})
    else:
        show_picture(shell, picture, text)


def _publish(
    shell: Any, bundle: dict[str, str], metadata: dict[str, Any] | None = None, display_id: str | None = None
) -> None:
    """Display in this shell, which need not be the one that IPython's own ``display()`` uses."""
    options: dict[str, Any] = {} if display_id is None else {"transient": {"display_id": display_id}, "update": True}
    shell.display_pub.publish(data=bundle, metadata=metadata or {}, **options)
