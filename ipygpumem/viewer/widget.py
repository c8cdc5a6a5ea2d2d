"""The viewer in a notebook: an anywidget that holds almost nothing and answers when it is asked.

What a widget synchronises is written into notebooks, the script included. So what is synchronised here is a loader of
two kilobytes and the view's state; the viewer's script and the snapshots are asked for by custom messages, which are
written nowhere. Front ends may ask in a thread of their own while a cell runs (ipykernel's subshells): an answer reads
bytes that are made once, under a lock, and touches neither CUDA nor the shell.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.viewer.page import script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MOST_BYTES", "Widget"]

MOST_BYTES = 4_000_000
"""Of one message: some servers cut off what is larger than 5 MB."""


class Widget(anywidget.AnyWidget):
    """Answers a viewer's questions.

    A question is ``{"id": ..., "get": "about"}``, or with ``"script"`` or a snapshot's number, and ``"from"``, the byte
    to begin with. The answer has the same id, and ``"error"`` in words where there is none to give.

    Args:
        sources: Name of each snapshot and what makes its encoded bytes.
        stills: The end of each still picture as base64, by which the page finds them.
    """

    _esm = script("loader.js")
    state = traitlets.Unicode("").tag(sync=True)
    """What is in sight, as behind the ``#`` of a page's address."""

    def __init__(self, sources: Sequence[tuple[str, Callable[[], bytes]]], stills: Sequence[str]) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._names = [name for name, _ in sources]
        self._makers = {str(number): make for number, (_, make) in enumerate(sources)}
        self._makers["script"] = lambda: script("widget.js").encode()
        self._made: dict[str, bytes] = {}
        self._stills = list(stills)
        self.on_msg(self._asked)

    def __repr__(self) -> str:
        return f"<viewer of {' and '.join(self._names)}>"

    def _asked(self, widget: Any, content: Any, buffers: Any) -> None:
        del widget, buffers
        identity = content.get("id") if isinstance(content, dict) else None
        try:
            facts, parts = self._answer(content)
        except Exception as error:
            facts, parts = {"error": first_line(error)}, []
        self.send({"id": identity, **facts}, buffers=parts)

    def _answer(self, content: Any) -> tuple[dict[str, Any], list[memoryview]]:
        if not isinstance(content, dict):
            raise OptionError(f"{content!r} is no question")
        wanted, begin = content.get("get"), content.get("from", 0)
        if wanted == "about":
            return {"names": self._names, "stills": self._stills}, []
        if not isinstance(wanted, str) or wanted not in self._makers:
            raise OptionError(f"there is no {wanted!r} here")
        with self._lock:
            if wanted not in self._made:
                self._made[wanted] = self._makers[wanted]()
            data = self._made[wanted]
        if not isinstance(begin, int) or not 0 <= begin <= len(data):
            raise OptionError(f"{wanted!r} has no byte {begin!r}: it has {len(data)}")
        return {"size": len(data)}, [memoryview(data)[begin : begin + MOST_BYTES]]
