"""Tracker of ``clear_output(wait=True)``, which clears the output of a cell when the next output arrives.

Code that draws a live plot ends each iteration with this call, so any further output would clear the final plot. If the
call is pending at the end of a cell, the extension does not show the report, which is available as `ipygpumem.last`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from ipygpumem.jupyter.method_patch import replace_method


def captured(request: str | None) -> bool:
    """Return whether an ``ipywidgets.Output`` captures the output of the execution request with this message ID.

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
        """Restore the ``clear_output`` method, unless other code has replaced it since `install`."""
        self._set(waiting=False)
        self._restore()

    def waits(self, result: Any) -> bool:
        """Return whether a ``clear_output`` call in the cell with this result is pending, and set `waiting` to False.

        If the cell failed or has a value, no call is pending, because IPython has displayed the traceback or the value.
        """
        shown = result is None or not result.success or result.result is not None
        waits = self.waiting and not shown and self._waiting_request == self._request()
        self._set(waiting=False)
        return waits

    def _request(self) -> str | None:
        header = getattr(self._publisher, "parent_header", None)
        return header.get("msg_id") if isinstance(header, dict) else None

    def _set(self, *, waiting: bool) -> None:
        """Set `waiting`. If it is True, the next output that is displayed or written to stdout or stderr resets it."""
        self.waiting = waiting
        self._restore_outputs.close()
        if waiting:
            for owner, name in ((self._publisher, "publish"), (sys.stdout, "write"), (sys.stderr, "write")):
                with contextlib.suppress(AttributeError):
                    self._track(owner, name)

    def _track(self, owner: Any, name: str) -> None:
        """Wrap an output method so that its next call resets `waiting` and restores the method."""
        method = getattr(owner, name)

        def tracked(*arguments: Any, **options: Any) -> Any:
            if not options.get("update"):  # display updates do not trigger a pending clear_output
                self._set(waiting=False)
            return method(*arguments, **options)

        self._restore_outputs.callback(replace_method(owner, name, tracked))
