"""``clear_output(wait=True)`` takes effect when the next output arrives, which must not be our report.

A live plot ends each iteration with such a call, and its last picture stays until another output follows. So the
extension notes a pending call at the end of a cell, and then keeps the report for `ipygpumem.last`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.jupyter.method_patch import replace_method

if TYPE_CHECKING:
    from collections.abc import Callable


def captured(request: str | None) -> bool:
    """Whether an ``ipywidgets.Output`` captures the output of a request (a message id). Imports nothing.

    Such a widget captures every output of the request, also those that another thread sends; updates of displays
    elsewhere are lost meanwhile.
    """
    output = getattr(sys.modules.get("ipywidgets.widgets.widget_output"), "Output", None)
    module = sys.modules.get("ipywidgets.widgets.widget")
    if output is None or not request:
        return False
    widgets: Any = getattr(module, "_instances", None)  # in ipywidgets 7 an attribute of the class
    if widgets is None:
        widgets = vars(getattr(module, "Widget", object)).get("widgets")
    if not isinstance(widgets, dict):
        return True  # unknown: behave as if it were
    return any(isinstance(widget, output) and widget.msg_id == request for widget in tuple(widgets.values()))


class PendingClear:
    """Tracks calls of ``clear_output`` in one shell.

    Attributes:
        listeners: Called with the id of the request whose output is cleared: a task of an earlier cell clears that
            cell. What an ``ipywidgets.Output`` captures clears the widget, and no cell.
        waiting: Whether a clearing waits for the next output.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        self.listeners: list[Callable[[str | None], None]] = []
        self.waiting = False
        self._waiting_request: str | None = None
        self._restore_outputs: list[Callable[[], None]] = []
        self._restore: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Wrap the publisher's method ``clear_output``."""
        clear = self._publisher.clear_output

        def clear_output(wait: bool = False, **options: Any) -> Any:
            request = self._request()
            if captured(request):
                return clear(wait, **options)
            for listener in tuple(self.listeners):
                listener(request)
            result = clear(wait, **options)
            self._waiting_request = request
            self._set(waiting=bool(wait))  # last: without a kernel, clearing itself prints text
            return result

        self._restore = replace_method(self._publisher, "clear_output", clear_output)

    def remove(self) -> None:
        """Restore the publisher's method, unless other code has wrapped ours since."""
        self._set(waiting=False)
        self._restore()

    def waits(self, result: Any) -> bool:
        """Whether a clearing still waits after the cell with this result, whose value or error would be an output."""
        shown = result is None or not result.success or result.result is not None
        waits = self.waiting and not shown and self._waiting_request == self._request()
        self._set(waiting=False)
        return waits

    def _request(self) -> str | None:
        """Message id of the request that the publisher's output belongs to; None without a kernel."""
        header = getattr(self._publisher, "parent_header", None)
        return header.get("msg_id") if isinstance(header, dict) else None

    def _set(self, *, waiting: bool) -> None:
        """Set `waiting`. While it is true, the next text that is written to a stream ends it."""
        self.waiting = waiting
        for restore in self._restore_outputs:
            restore()
        self._restore_outputs.clear()
        if waiting:
            for owner, name in ((self._publisher, "publish"), (sys.stdout, "write"), (sys.stderr, "write")):
                with contextlib.suppress(AttributeError):
                    self._track(owner, name)

    def _track(self, owner: Any, name: str) -> None:
        """Notice the next output that goes through a method; the method itself is restored at once."""
        method = getattr(owner, name)

        def tracked(*arguments: Any, **options: Any) -> Any:
            if not options.get("update"):  # an update of a display clears nothing
                self._set(waiting=False)
            return method(*arguments, **options)

        self._restore_outputs.append(replace_method(owner, name, tracked))
