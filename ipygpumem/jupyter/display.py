"""Methods that display results in an IPython shell: as text in a terminal and as HTML in a notebook."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipygpumem.core.errors import first_line
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, tables_bundle, text_tables
from ipygpumem.core.text import printable
from ipygpumem.features.history.model import output_metadata
from ipygpumem.features.profile.model import ProfileSummary
from ipygpumem.features.profile.table import category_tables
from ipygpumem.features.profile.timeline import CategoryTimeline
from ipygpumem.features.report.short_report import short_bundle
from ipygpumem.jupyter.method_patch import replace_method


def is_terminal(shell: Any) -> bool:
    """Return whether the shell is IPython in a terminal, which displays only text."""
    return any(kind.__name__ == "TerminalInteractiveShell" for kind in type(shell).__mro__)


def uses_color(shell: Any) -> bool:
    """Return whether the shell writes to a terminal that supports colors."""
    if not is_terminal(shell) or str(getattr(shell, "colors", "")).lower() == "nocolor":
        return False
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(sys.stdout, "isatty", lambda: False)())


def _flush_streams(publisher: Any) -> None:
    """Flush stdout and stderr like ipykernel, but wait once instead of twice for the thread that sends their text."""
    sender = getattr(getattr(publisher, "pub_socket", None), "io_thread", None)
    senders = [getattr(stream, "pub_thread", None) for stream in (sys.stdout, sys.stderr)]
    if sender is not None and senders == [sender, sender]:
        sender.schedule(sys.stdout.flush)  # before the flush of stderr
    else:
        sys.stdout.flush()
    sys.stderr.flush()


class DisplayMixin:
    """Mixin with methods that display results in a shell.

    Attributes:
        shell: The shell, which may differ from the one that ``IPython.display`` uses.
    """

    shell: Any

    def print(self, *lines: str) -> None:
        """Print lines of text."""
        if lines:
            print(*(printable(line) for text in lines for line in text.split("\n")), sep="\n")  # noqa: T201 (its purpose)

    def publish(
        self, bundle: dict[str, str], metadata: dict[str, Any] | None = None, display_id: str | None = None
    ) -> None:
        """Display a MIME bundle as a new output, or as the new content of the output with the ID ``display_id``."""
        update: dict[str, Any] = {} if display_id is None else {"transient": {"display_id": display_id}, "update": True}
        publisher = self.shell.display_pub
        with contextlib.ExitStack() as restored:
            if hasattr(publisher, "_flush_streams"):  # in a kernel
                restored.callback(replace_method(publisher, "_flush_streams", lambda: _flush_streams(publisher)))
            publisher.publish(data=bundle, metadata=metadata or {}, **update)

    def show_line(self, report: Report, display_id: str | None = None) -> None:
        """Display a report as a single line."""
        bundle = short_bundle(report, color=uses_color(self.shell))
        self.publish(bundle, output_metadata(report), display_id)

    def show_tables(self, tables: list[Table]) -> None:
        """Display tables."""
        self.publish(tables_bundle(tables))

    def show_object(self, value: Any) -> None:
        """Display an object that has the methods ``__str__`` and ``_repr_html_``."""
        self.publish({"text/plain": str(value), "text/html": value._repr_html_()})

    def show_image(self, image: Any, text: str) -> None:
        """Display a PNG image. Front ends that do not show images display the text instead."""
        bundle = {"text/plain": text, "image/png": base64.b64encode(image.png).decode()}
        self.publish(bundle, {"image/png": {"width": image.width, "height": image.height}})

    def show_snapshots(self, files: Sequence[str], settings: str | None = None) -> None:
        """Display snapshot files side by side, optionally also with other allocator settings."""
        from ipygpumem.snapshot import Snapshot
        from ipygpumem.viewer.display_target import shell_target
        from ipygpumem.viewer.view import View

        View([Snapshot.load(file) for file in files], settings=settings).publish(shell_target(self.shell))

    def show_profile(self, timelines: Sequence[CategoryTimeline], profile: ProfileSummary) -> None:
        """Display a plot of memory usage by category. Front ends that do not show images display a table instead."""
        from ipygpumem.features.profile.timeline_plot import profile_plot

        name, text = Path(profile.timeline or "").name, text_tables(category_tables(profile.peaks))
        try:
            self.show_image(profile_plot(timelines, name), text)
        except Exception as error:
            self.print(f"ipygpumem: {name} cannot be shown as an image: {first_line(error)}")
            self.publish({"text/plain": text})
