"""The viewer in a notebook: an anywidget whose page requests its script and its data (see `messages`).

Front ends may send requests in a separate thread while a cell runs (ipykernel's subshells). Answers are therefore
encoded once, under a lock, and use neither CUDA nor the shell.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ipygpumem.core.errors import OptionError
from ipygpumem.viewer.messages import answer_request, slice_of
from ipygpumem.viewer.page import script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipygpumem.viewer.messages import Answer

__all__ = ["Widget"]


class Widget(anywidget.AnyWidget):
    """The viewer of one or more snapshots.

    A request is ``{"id": ..., "get": "about"}``; instead of ``"about"`` it can name ``"script"`` or a snapshot's
    number, with ``"from"``, the first byte.

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
        return f"<viewer of {' and '.join(self._names)}>"

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
