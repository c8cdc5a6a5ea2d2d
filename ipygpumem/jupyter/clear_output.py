"""Tracking of ``clear_output(wait=True)``, which clears the output of a cell when the next output arrives.

A live plot ends each iteration with such a call, so any further output would clear the final plot. If a call is pending
at the end of a cell, the extension therefore does not show the report, which is available as `ipygpumem.last`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.jupyter.method_patch import replace_method

if TYPE_CHECKING:
    from collections.abc import Callable


def captured(request: str | None) -> bool:
    """Return whether an ``ipywidgets.Output`` captures the output of a request (a message ID). Imports no module.

    Such a widget captures all output of the request, including output sent from other threads. While it does, updates
    of displays outside the widget are lost.
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


class PendingClear:
    """Tracker of ``clear_output`` calls in one shell.

    Attributes:
        listeners: Called with the message ID of the request whose output is cleared, which may belong to an earlier
            cell if a background task calls ``clear_output``. Not called if an ``ipywidgets.Output`` captures the call.
        waiting: Whether a call with ``wait=True`` is pending.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        self.listeners: list[Callable[[str | None], None]] = []
        self.waiting = False
        self._waiting_request: str | None = None
        self._restore_outputs: list[Callable[[], None]] = []
        self._restore: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Wrap the ``clear_output`` method of the display publisher."""
        clear = self._publisher.clear_output

        def clear_output(wait: bool = False, **options: Any) -> Any:
            request = self._request()
            if captured(request):
                return clear(wait, **options)
            for listener in tuple(self.listeners):
                listener(request)
            result = clear(wait, **options)
            self._waiting_request = request
            self._set(waiting=bool(wait))  # last, because without a kernel clear_output prints escape sequences
            return result

        self._restore = replace_method(self._publisher, "clear_output", clear_output)

    def remove(self) -> None:
        """Restore the publisher's method, unless other code has wrapped it since."""
        self._set(waiting=False)
        self._restore()

    def waits(self, result: Any) -> bool:
        """Return whether a call is still pending after the cell with this result, whose value is also output."""
        shown = result is None or not result.success or result.result is not None
        waits = self.waiting and not shown and self._waiting_request == self._request()
        self._set(waiting=False)
        return waits

    def _request(self) -> str | None:
        """Return the message ID of the request that the output belongs to; None without a kernel."""
        header = getattr(self._publisher, "parent_header", None)
        return header.get("msg_id") if isinstance(header, dict) else None

    def _set(self, *, waiting: bool) -> None:
        """Set `waiting`. If true, reset it when the next output is displayed or written to a stream."""
        self.waiting = waiting
        for restore in self._restore_outputs:
            restore()
        self._restore_outputs.clear()
        if waiting:
            for owner, name in ((self._publisher, "publish"), (sys.stdout, "write"), (sys.stderr, "write")):
                with contextlib.suppress(AttributeError):
                    self._track(owner, name)

    def _track(self, owner: Any, name: str) -> None:
        """Wrap an output method until its next call, which resets `waiting`."""
        method = getattr(owner, name)

        def tracked(*arguments: Any, **options: Any) -> Any:
            if not options.get("update"):  # display updates do not trigger a pending clear_output
                self._set(waiting=False)
            return method(*arguments, **options)

        self._restore_outputs.append(replace_method(owner, name, tracked))
