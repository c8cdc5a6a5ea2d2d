"""The viewer in a notebook: an anywidget that transfers its script and data in custom messages.

Notebooks store the synchronized state of a widget, including its script. Therefore only a two-kilobyte loader is
synchronized. It requests the script and the data with custom messages, which are not stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anywidget
import traitlets

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.viewer.write import join_names, script

Answer = tuple[dict[str, Any], list[memoryview]]
MAX_BYTES = 4_000_000  # maximum size of a message in bytes; some servers reject messages larger than 5 MB


def answer_request(widget: Any, request: Any, buffers: Any, answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Send the result of ``answer(request)`` with the ID of the request, or an error message if the call fails."""
    del buffers
    request = request if isinstance(request, dict) else {}
    try:
        content, parts = answer(request)
    except Exception as error:
        content, parts = {"error": first_line(error)}, []
    widget.send({"id": request.get("id"), **content}, buffers=parts)


def slice_of(name: str, data: bytes, start: Any) -> Answer:
    """Return a message with the total size of the data and up to `MAX_BYTES` bytes of it, starting at ``start``."""
    if not isinstance(start, int) or not 0 <= start <= len(data):
        raise OptionError(f"{start!r} is not a position in {name!r}: the size is {len(data)} bytes")
    return {"size": len(data)}, [memoryview(data)[start : start + MAX_BYTES]]


class SnapshotWidget(anywidget.AnyWidget):
    """The viewer for one or more snapshots.

    A request has the form ``{"id": ..., "get": "about"}``. The value of ``"get"`` can also be ``"script"`` or the
    index of a snapshot, with the position of the first byte as ``"from"``. While a cell runs, ipykernel may handle
    requests in another thread (a subshell). Therefore a lock protects the encoding of snapshots, and responses use
    neither CUDA nor the shell.

    Args:
        sources: Name of each snapshot and a function that encodes it.
        images: Last characters of each static image in base64, by which the script identifies the images in the page.
    """

    _esm = script("loader.js")
    state = traitlets.Unicode("").tag(sync=True)  # the current view, in the format of a URL fragment

    def __init__(self, sources: Sequence[tuple[str, Callable[[], bytes]]], images: Sequence[str]) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._names = [name for name, _ in sources]
        self._encoders = {str(number): encode for number, (_, encode) in enumerate(sources)}
        self._encoders["script"] = lambda: script("widget.js").encode()
        self._encoded: dict[str, bytes] = {}
        self._images = list(images)
        self.on_msg(partial(answer_request, answer=self._answer))

    def __repr__(self) -> str:
        return f"<viewer for {join_names(self._names)}>"

    def _answer(self, request: dict[str, Any]) -> Answer:
        name = request.get("get")
        if name == "about":
            return {"names": self._names, "images": self._images}, []
        if not isinstance(name, str) or name not in self._encoders:
            raise OptionError(f"unknown request: {name!r}")
        with self._lock:
            if name not in self._encoded:
                self._encoded[name] = self._encoders[name]()
        return slice_of(name, self._encoded[name], request.get("from", 0))
