"""``clear_output(wait=True)`` clears when the next output comes: our report must not be that output.

A live plot ends each round with such a call, and its last picture stands until something follows. So while the
extension is loaded we watch for a clearing that still waits at the end of a cell, and then keep the report to
`ipygpumem.last`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.jupyter.output_widget import captured

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clearing"]


class Clearing:
    """Watches one shell's display publisher.

    ``listeners`` are told the id of the request whose outputs a clearing takes: a task of an earlier cell clears that
    cell. What an ``ipywidgets.Output`` takes clears the widget, and no cell.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        self.listeners: list[Callable[[str | None], None]] = []
        self.waiting = False
        self._waiting: str | None = None
        self._streams: list[Callable[[], None]] = []
        self._ours: dict[str, Any] = {}
        self._theirs: dict[str, Any] = {}

    def install(self) -> None:
        """Stand before the publisher's two ways out."""
        publisher = self._publisher
        clear, publish = publisher.clear_output, publisher.publish

        def clear_output(wait: bool = False, **options: Any) -> Any:
            request = self._request()
            if captured(request):
                return clear(wait, **options)
            for listener in tuple(self.listeners):
                listener(request)
            result = clear(wait, **options)
            self._waiting = request
            self._set(waits=bool(wait))  # last: without a kernel a clearing is itself a text
            return result

        def watched_publish(*arguments: Any, **options: Any) -> Any:
            if not options.get("update"):  # what changes a display that is there clears nothing
                self._set(waits=False)
            return publish(*arguments, **options)

        self._ours = {"clear_output": clear_output, "publish": watched_publish}
        self._theirs = {name: vars(publisher)[name] for name in self._ours if name in vars(publisher)}
        for name, ours in self._ours.items():
            setattr(publisher, name, ours)

    def remove(self) -> None:
        """Give both ways back, unless somebody has wrapped ours since."""
        self._set(waits=False)
        for name, ours in self._ours.items():
            if vars(self._publisher).get(name) is not ours:
                continue
            if name in self._theirs:
                setattr(self._publisher, name, self._theirs[name])
            else:
                delattr(self._publisher, name)

    def waits(self, result: Any) -> bool:
        """Whether a clearing still waits after a cell with this result: a value or an error came after it, too."""
        shown = result is None or not result.success or result.result is not None
        waits = self.waiting and not shown and self._waiting == self._request()
        self._set(waits=False)
        return waits

    def _request(self) -> str | None:
        """The message id that the publisher gives what it sends now as its parent; None without a kernel."""
        header = getattr(self._publisher, "parent_header", None)
        return header.get("msg_id") if isinstance(header, dict) else None

    def _set(self, *, waits: bool) -> None:
        self.waiting = waits
        for give_back in self._streams:
            give_back()
        self._streams.clear()
        if waits:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError):
                    self._watch(stream)

    def _watch(self, stream: Any) -> None:
        """Notice the next text; the stream gets its own write back at once."""
        write, theirs = stream.write, vars(stream).get("write")  # IPython 9 itself stands there while a cell runs

        def watched_write(text: str) -> Any:
            self._set(waits=False)
            return write(text)

        def give_back() -> None:
            if vars(stream).get("write") is not watched_write:
                return
            if theirs is None:
                del stream.write
            else:
                stream.write = theirs

        stream.write = watched_write
        self._streams.append(give_back)
