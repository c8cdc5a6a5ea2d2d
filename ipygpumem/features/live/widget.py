"""The monitor in a notebook: an anywidget that passes on what somebody follows, for as long as somebody looks.

Nothing of what it shows is synchronised, and so written into notebooks: only the loader is. A page that looks says so
now and then, for a kernel is not told when a page is closed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anywidget

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.viewer.page import script

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MonitorWidget"]

_MOST_BYTES = 4_000_000


class MonitorWidget(anywidget.AnyWidget):
    """Answers a page's questions, and sends it what is new.

    A question is ``{"id": ..., "get": "script", "from": byte}`` or ``{"id": ..., "get": "past"}``; ``{"here": view}``
    says that a view is still there, ``{"bye": view}`` that it is gone.

    Args:
        past: What has been followed so far, as plain data.
        looked: Called when a page begins to look or looks on, with how many do; 0 when the last has gone.
    """

    _esm = script("loader.js")

    def __init__(self, past: Callable[[], dict[str, Any]], looked: Callable[[int], None]) -> None:
        super().__init__()
        self._past = past
        self._looked = looked
        self._views: dict[str, float] = {}
        self.on_msg(self._heard)

    def __repr__(self) -> str:
        return "<monitor of the memory>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**(data or {}), "text/plain": "(run this cell to follow the memory)"}, metadata

    def _heard(self, widget: Any, content: Any, buffers: Any) -> None:
        del widget, buffers
        if not isinstance(content, dict):
            return
        if "here" in content:
            self._views[str(content["here"])] = time.monotonic()
            self._looked(len(self._views))
        elif "bye" in content:
            self._views.pop(str(content["bye"]), None)
            if not self._views:
                self._looked(0)
        elif "get" in content:
            self._answer(content)

    def _answer(self, content: dict[str, Any]) -> None:
        try:
            facts, parts = self._found(content["get"], content.get("from", 0))
        except Exception as error:
            facts, parts = {"error": first_line(error)}, []
        self.send({"id": content.get("id"), **facts}, buffers=parts)

    def _found(self, wanted: Any, begin: Any) -> tuple[dict[str, Any], list[memoryview]]:
        if wanted == "past":
            return self._past(), []
        if wanted != "script":
            raise OptionError(f"there is no {wanted!r} here")
        data = script("monitor.js").encode()
        if not isinstance(begin, int) or not 0 <= begin <= len(data):
            raise OptionError(f"the script has no byte {begin!r}: it has {len(data)}")
        return {"size": len(data)}, [memoryview(data)[begin : begin + _MOST_BYTES]]

    def forget(self, seconds: float) -> int:
        """Forget views that have not been heard of for so long; how many are left."""
        now = time.monotonic()
        self._views = {view: heard for view, heard in self._views.items() if now - heard < seconds}
        return len(self._views)

    def wait(self) -> None:
        """The kernel is busy, and could hear nobody: no view is gone for that."""
        now = time.monotonic()
        self._views = dict.fromkeys(self._views, now)
