"""The monitor in a notebook: an anywidget that sends new readings while a page shows it.

Pages report regularly that they are still visible, because a kernel is not notified when a page is closed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anywidget

from ipygpumem.core.errors import OptionError
from ipygpumem.viewer.page import script
from ipygpumem.viewer.widget import answer_request, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.viewer.widget import Answer

__all__ = ["MonitorWidget"]


class MonitorWidget(anywidget.AnyWidget):
    """A chart of memory over time.

    Requests are ``{"id": ..., "get": "script", "from": byte}`` and ``{"id": ..., "get": "past"}``. A page sends
    ``{"here": view}`` while it is visible and ``{"bye": view}`` when it is closed.

    Args:
        history: Returns the levels so far, as plain data.
        on_views: Called with the number of visible pages whenever one of them reports, and with 0 when the last one is
            closed.
    """

    _esm = script("loader.js")

    def __init__(self, history: Callable[[], dict[str, Any]], on_views: Callable[[int], None]) -> None:
        super().__init__()
        self._history = history
        self._on_views = on_views
        self._last_seen: dict[str, float] = {}
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        return "<memory monitor>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**(data or {}), "text/plain": "(run this cell to monitor memory)"}, metadata

    def _receive(self, widget: Any, message: Any, buffers: Any) -> None:
        if not isinstance(message, dict):
            return
        if "here" in message:
            self._last_seen[str(message["here"])] = time.monotonic()
            self._on_views(len(self._last_seen))
        elif "bye" in message:
            self._last_seen.pop(str(message["bye"]), None)
            if not self._last_seen:
                self._on_views(0)
        elif "get" in message:
            answer_request(widget, message, buffers, self._answer)

    def _answer(self, request: dict[str, Any]) -> Answer:
        if request["get"] == "past":
            return self._history(), []
        if request["get"] != "script":
            raise OptionError(f"unknown request: {request['get']!r}")
        return slice_of("script", script("monitor.js").encode(), request.get("from", 0))

    def forget_views(self, seconds: float) -> int:
        """Forget pages that have not reported for so long, and return how many are left."""
        now = time.monotonic()
        self._last_seen = {view: seen for view, seen in self._last_seen.items() if now - seen < seconds}
        return len(self._last_seen)

    def keep_views(self) -> None:
        """Restart the time-out of all pages: a busy kernel cannot receive their reports."""
        self._last_seen = dict.fromkeys(self._last_seen, time.monotonic())
