"""The viewer in a notebook: an anywidget whose page requests its script and its data by custom messages.

What a widget synchronizes is saved in notebooks, including its script. Widgets therefore synchronize only a loader of
two kilobytes; the loader requests everything else by custom messages, which are not saved.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.viewer.page import join_names, script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Answer = tuple[dict[str, Any], list[memoryview]]

MAX_BYTES = 4_000_000
"""Limit of one message: some servers reject messages of more than 5 MB."""


def answer_request(widget: Any, request: Any, buffers: Any, answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Send the answer to a request with the request's id, or an ``"error"`` if it cannot be answered."""
    del buffers
    request = request if isinstance(request, dict) else {}
    try:
        content, parts = answer(request)
    except Exception as error:
        content, parts = {"error": first_line(error)}, []
    widget.send({"id": request.get("id"), **content}, buffers=parts)


def slice_of(name: str, data: bytes, start: Any) -> Answer:
    """Return the total size of the data and at most `MAX_BYTES` of it from ``start`` on."""
    if not isinstance(start, int) or not 0 <= start <= len(data):
        raise OptionError(f"{name!r} has no byte {start!r}: its size is {len(data)} bytes")
    return {"size": len(data)}, [memoryview(data)[start : start + MAX_BYTES]]


class Widget(anywidget.AnyWidget):
    """The viewer of one or more snapshots.

    A request is ``{"id": ..., "get": "about"}``; instead of ``"about"`` it can name ``"script"`` or a snapshot's
    number, with ``"from"``, the first byte. Front ends may send requests in a separate thread while a cell runs
    (ipykernel's subshells). Snapshots are therefore encoded under a lock, and answers use neither CUDA nor the shell.

    Args:
        sources: Name of each snapshot and a function that encodes it.
        stills: The end of each still picture as base64, by which the page finds the pictures.
    """

    _esm = script("loader.js")
    state = traitlets.Unicode("").tag(sync=True)
    """The current view, in the form of the ``#`` part of a page's address."""

    def __init__(self, sources: Sequence[tuple[str, Callable[[], bytes]]], stills: Sequence[str]) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._names = [name for name, _ in sources]
        self._encoders = {str(number): encode for number, (_, encode) in enumerate(sources)}
        self._encoders["script"] = lambda: script("widget.js").encode()
        self._encoded: dict[str, bytes] = {}
        self._stills = list(stills)
        self.on_msg(partial(answer_request, answer=self._answer))

    def __repr__(self) -> str:
        return f"<viewer of {join_names(self._names)}>"

    def _answer(self, request: dict[str, Any]) -> Answer:
        name = request.get("get")
        if name == "about":
            return {"names": self._names, "stills": self._stills}, []
        if not isinstance(name, str) or name not in self._encoders:
            raise OptionError(f"unknown request: {name!r}")
        with self._lock:
            if name not in self._encoded:
                self._encoded[name] = self._encoders[name]()
        return slice_of(name, self._encoded[name], request.get("from", 0))
