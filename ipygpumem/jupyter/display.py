"""Methods that display results in an IPython shell: as text in a terminal and as HTML in a notebook.

`ClearOutputTracker` tracks calls to ``clear_output(wait=True)``, which clears a cell's output when the next output
arrives. Code that draws a live plot often makes this call at the end of each iteration, so any further output would
clear the final plot. If a call is pending at the end of a cell, the extension does not show the report, which is
available as `ipygpumem.last`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, tables_bundle, text_tables
from ipygpumem.core.text import printable
from ipygpumem.features.history.model import output_metadata
from ipygpumem.features.report.short_report import short_bundle

if TYPE_CHECKING:
    from ipygpumem.features.profile.model import ProfileSummary
    from ipygpumem.features.profile.timeline import CategoryTimeline


def is_terminal(shell: Any) -> bool:
    return any(kind.__name__ == "TerminalInteractiveShell" for kind in type(shell).__mro__)


def uses_color(shell: Any) -> bool:
    if not is_terminal(shell) or str(getattr(shell, "colors", "")).lower() == "nocolor":
        return False
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(sys.stdout, "isatty", lambda: False)())


def _flush_streams(publisher: Any) -> None:
    """Flush stdout and stderr as ipykernel does, but wait only once for the thread that sends their text."""
    sender = getattr(getattr(publisher, "pub_socket", None), "io_thread", None)
    senders = [getattr(stream, "pub_thread", None) for stream in (sys.stdout, sys.stderr)]
    if sender is not None and senders == [sender, sender]:
        sender.schedule(sys.stdout.flush)  # before the flush of stderr
    else:
        sys.stdout.flush()
    sys.stderr.flush()


class DisplayMixin:
    """Mixin with methods that display results in ``shell``, which may differ from the shell of ``IPython.display``."""

    shell: Any

    def print(self, *lines: str) -> None:
        """Print lines of text. Control characters are replaced with question marks."""
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
        bundle = short_bundle(report, color=uses_color(self.shell))
        self.publish(bundle, output_metadata(report), display_id)

    def show_tables(self, tables: list[Table]) -> None:
        self.publish(tables_bundle(tables))

    def show_object(self, value: Any) -> None:
        self.publish({"text/plain": str(value), "text/html": value._repr_html_()})

    def show_image(self, image: Any, text: str) -> None:
        """Display a PNG image. Front ends that do not show images display the text instead."""
        bundle = {"text/plain": text, "image/png": base64.b64encode(image.png).decode()}
        self.publish(bundle, {"image/png": {"width": image.width, "height": image.height}})

    def show_snapshots(self, files: Sequence[str], settings: str | None = None) -> None:
        from ipygpumem.snapshot import Snapshot
        from ipygpumem.viewer.display_target import shell_target
        from ipygpumem.viewer.view import View

        View([Snapshot.load(file) for file in files], settings=settings).publish(shell_target(self.shell))

    def show_profile(self, timelines: Sequence[CategoryTimeline], profile: ProfileSummary) -> None:
        """Front ends that do not show images display a table instead of the plot."""
        from ipygpumem.features.profile.display import profile_plot
        from ipygpumem.features.profile.model import category_tables

        name, text = Path(profile.timeline or "").name, text_tables(category_tables(profile.peaks))
        try:
            self.show_image(profile_plot(timelines, name), text)
        except Exception as error:
            self.print(f"ipygpumem: {name} cannot be shown as an image: {first_line(error)}")
            self.publish({"text/plain": text})


def is_captured(request: str | None) -> bool:
    """Return whether an ``ipywidgets.Output`` may capture the output of the execution request with this message ID.

    Such a widget captures all output of the request, including output from other threads. During this time, front ends
    ignore updates of displays outside the widget. This function does not import ipywidgets.
    """
    output = getattr(sys.modules.get("ipywidgets.widgets.widget_output"), "Output", None)
    module = sys.modules.get("ipywidgets.widgets.widget")
    if output is None or not request:
        return False
    widgets: Any = getattr(module, "_instances", None)  # a class attribute in ipywidgets 7
    if widgets is None:
        widgets = vars(getattr(module, "Widget", object)).get("widgets")
    if not isinstance(widgets, dict):
        return True  # unknown: assume that the output is captured
    return any(isinstance(widget, output) and widget.msg_id == request for widget in tuple(widgets.values()))


class ClearOutputTracker:
    """Tracker of ``clear_output`` calls in one shell.

    Attributes:
        listeners: Functions that are called with the message ID of the request whose output is cleared. If a background
            task clears the output, this can be the request of an earlier cell. The functions are not called if an
            ``ipywidgets.Output`` captures the output of the request.
        waiting: Whether a call to ``clear_output(wait=True)`` is pending.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        self.listeners: list[Callable[[str | None], None]] = []
        self.waiting = False
        self._waiting_request: str | None = None
        self._restore_outputs = contextlib.ExitStack()
        self._restore: Callable[[], None] = lambda: None

    def install(self) -> None:
        clear = self._publisher.clear_output

        def clear_output(wait: bool = False, **options: Any) -> Any:
            request = self._request()
            if is_captured(request):
                return clear(wait, **options)
            for listener in tuple(self.listeners):
                listener(request)
            result = clear(wait, **options)
            self._waiting_request = request
            self._set(waiting=bool(wait))  # last, because without a kernel clear_output prints escape sequences
            return result

        self._restore = replace_method(self._publisher, "clear_output", clear_output)

    def remove(self) -> None:
        """Restore the ``clear_output`` method, unless other code has replaced it since it was wrapped."""
        self._set(waiting=False)
        self._restore()

    def waits(self, result: Any) -> bool:
        """Return whether a ``clear_output(wait=True)`` call of a finished cell is pending, and set `waiting` to False.

        ``result`` is the result of the cell. After the display of its value or error, the call is no longer pending.
        """
        shows_output = result is None or not result.success or result.result is not None
        waits = self.waiting and not shows_output and self._waiting_request == self._request()
        self._set(waiting=False)
        return waits

    def _request(self) -> str | None:
        header = getattr(self._publisher, "parent_header", None)
        return header.get("msg_id") if isinstance(header, dict) else None

    def _set(self, *, waiting: bool) -> None:
        """Set `waiting`. If it is True, the next output, except an update of a display, resets it."""
        self.waiting = waiting
        self._restore_outputs.close()
        if waiting:
            for owner, name in ((self._publisher, "publish"), (sys.stdout, "write"), (sys.stderr, "write")):
                with contextlib.suppress(AttributeError):
                    self._track(owner, name)

    def _track(self, owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def tracked(*arguments: Any, **options: Any) -> Any:
            if not options.get("update"):  # display updates do not trigger a pending clear_output
                self._set(waiting=False)
            return method(*arguments, **options)

        self._restore_outputs.callback(replace_method(owner, name, tracked))


def replace_method(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method, and return a function that restores it unless other code has replaced it since."""
    original = getattr(owner, "__dict__", {}).get(name)  # IPython 9 also wraps ``write`` while a cell runs
    setattr(owner, name, wrapper)

    def restore() -> None:
        if vars(owner).get(name) is not wrapper:
            return
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return restore
