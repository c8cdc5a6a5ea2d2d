"""The widget of the memory monitor. Visible pages send messages, because a kernel is not notified if a page closes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget

from ipygpumem.core.errors import OptionError
from ipygpumem.viewer.widget import Answer, answer_request, slice_of
from ipygpumem.viewer.write import script


class MonitorWidget(anywidget.AnyWidget):
    """Chart of memory usage over time.

    A page requests the widget's script with ``{"id": ..., "get": "script", "from": byte}`` and the previous readings
    with ``{"id": ..., "get": "history"}``. While a view of the widget is visible, the page regularly sends
    ``{"visible": view}``; when the view is closed, it sends ``{"closed": view}``.
    """

    _esm = script("loader.js")

    def __init__(self, history: Callable[[], dict[str, Any]], on_view: Callable[[str, bool], None]) -> None:
        super().__init__()
        self._history = history
        self._on_view = on_view
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
        for key, visible in (("visible", True), ("closed", False)):
            if key in message:
                self._on_view(str(message[key]), visible)
        if "get" in message:
            answer_request(widget, message, buffers, self._answer)

    def _answer(self, request: dict[str, Any]) -> Answer:
        if request["get"] == "history":
            return self._history(), []
        if request["get"] != "script":
            raise OptionError(f"unknown request: {request['get']!r}")
        return slice_of("script", script("monitor.js").encode(), request.get("from", 0))
