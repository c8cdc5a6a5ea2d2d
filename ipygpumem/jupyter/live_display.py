"""Memory levels under a cell that takes long, while it runs: a display that the cell's report finally replaces.

One thread, idle except for cells that run longer than two seconds, sends the display and its updates. The messages
carry the cell's own header, so that they belong to the cell whatever else is running.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from ipygpumem.features.live.poller import Poller
from ipygpumem.features.live.table import live_bundle
from ipygpumem.jupyter.clear_output import captured
from ipygpumem.jupyter.method_patch import replace_method
from ipygpumem.measurement.worker_thread import WorkerThread
from ipygpumem.viewer.display_target import shell_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.reading import Reading
    from ipygpumem.jupyter.clear_output import PendingClear
    from ipygpumem.measurement.runtime import Runtime

DELAY = 2.0
INTERVAL = 0.5
_CHART_POINTS = 110
"""Points of the small chart, two pixels each."""


class OutputTail:
    """Tracks whether stdout or stderr ends in an incomplete line, as that of a progress bar.

    A display in the middle of such a line would split it, and the bar would leave a part of itself behind.
    """

    def __init__(self) -> None:
        self._last_characters: dict[int, str] = {}
        self._restore: list[Callable[[], None]] = []

    @property
    def open(self) -> bool:
        """Whether a stream ends in an incomplete line."""
        return any(character not in {"", "\n"} for character in self._last_characters.values())

    def install(self) -> None:
        """Start tracking. Streams that cannot be patched are never open."""
        for index, stream in enumerate((sys.stdout, sys.stderr)):
            with contextlib.suppress(AttributeError):
                self._restore.append(replace_method(stream, "write", self._tracked(index, stream.write)))

    def _tracked(self, index: int, write: Callable[..., Any]) -> Callable[..., Any]:
        last_characters = self._last_characters

        def tracked_write(text: Any, *arguments: Any) -> Any:
            if isinstance(text, str) and text:
                last_characters[index] = text[-1]
            return write(text, *arguments)

        return tracked_write

    def remove(self) -> None:
        """Stop tracking, and restore the streams unless they have been patched again since."""
        for restore in self._restore:
            restore()
        self._restore.clear()


class LiveCell:
    """The display of one cell. ``request`` is the message id of the cell's execution."""

    def __init__(self, shell: Any, clearing: PendingClear, number: Callable[[], int | None]) -> None:
        self._shell = shell
        self._publisher = shell.display_pub
        self._clearing = clearing
        self._parent = shell.get_parent()
        self.request: str | None = self._parent.get("header", {}).get("msg_id")
        self._number = number
        self._lock = threading.Lock()
        self._history: list[Reading] = []
        self._readings_per_point = 1
        self._readings = 0
        self._display_id = ""
        self._misplaced = False
        self._cleared = False
        self._ended = False
        self.start = time.perf_counter()
        self.stream_tail = OutputTail()

    def begin(self) -> None:
        """Track what the cell writes and clears."""
        self.stream_tail.install()
        self._clearing.listeners.append(self._on_clear)

    def update(self, levels: Reading) -> None:
        """Show the newest levels. The first display is sent only where it splits no line and clears no output.

        Nothing is sent while an output widget captures the cell's output. If a widget started to capture during the
        first display, the display's position is unknown: then there are no updates, and the report gets a new
        display.
        """
        self._add(levels)
        bundle = live_bundle(self._history, time.perf_counter() - self.start, self._number())
        with self._lock:
            if self._ended or self._cleared or self._misplaced or self._shell.display_pub is not self._publisher:
                return
            if self._display_id:
                self._send("update_display_data", bundle, self._display_id)
            elif not self.stream_tail.open:
                display_id = f"ipygpumem-{uuid.uuid4().hex}"
                if self._send("display_data", bundle, display_id):
                    self._display_id = display_id
                    self._misplaced = captured(self.request)

    def _on_clear(self, request: str | None) -> None:
        if request == self.request:
            self._cleared = True

    def _add(self, levels: Reading) -> None:
        """Add a reading to the chart; once it is full, every second point is removed and points cover more readings."""
        history = self._history
        if len(history) == _CHART_POINTS:
            history[:] = [*history[:-1:2], history[-1]]
            self._readings_per_point *= 2
        if len(history) > 1 and self._readings % self._readings_per_point:
            history[-1] = levels
        else:
            history.append(levels)
        self._readings += 1

    def _send(self, kind: str, bundle: dict[str, str], display_id: str) -> bool:
        """Send a display or its update; False if an output widget would have captured it."""
        publisher = self._publisher
        content = {"data": bundle, "metadata": {}, "transient": {"display_id": display_id}}
        message = publisher.session.msg(kind, content, parent=self._parent)
        if captured(self.request):
            return False
        publisher.session.send(publisher.pub_socket, message, ident=publisher.topic)
        return True

    def end(self) -> None:
        """Stop updates and tracking."""
        with self._lock:
            self._ended = True
        if self._on_clear in self._clearing.listeners:
            self._clearing.listeners.remove(self._on_clear)
        self.stream_tail.remove()

    def take(self, *, waits: bool = False) -> str | None:
        """The display's id, for its last update by the caller; None if the report needs a new display.

        ``waits``: whether a ``clear_output(wait=True)`` is pending, so that earlier output is still visible.
        """
        with self._lock:
            self._ended = True
            display_id, self._display_id = self._display_id, ""
            unavailable = (self._cleared and not waits) or captured(self.request)
        if not display_id or unavailable:
            return None
        if self._misplaced:
            self.empty(display_id)
            return None
        return display_id

    def empty(self, display_id: str) -> None:
        """Empty a display that no report replaces."""
        self._send("update_display_data", {"text/plain": "", "text/html": ""}, display_id)

    def retract(self) -> None:
        """Empty the display, if there is one."""
        display_id = self.take()
        if display_id is not None:
            self.empty(display_id)


class LiveDisplays:
    """The running cells of one shell, and the thread that updates their displays.

    Attributes:
        available: Whether the shell belongs to a kernel, whose messages can be sent from another thread.
    """

    def __init__(self, shell: Any, runtime: Runtime, clearing: PendingClear) -> None:
        self._shell = shell
        self.available = all(hasattr(shell.display_pub, name) for name in ("session", "pub_socket", "topic"))
        self._clearing = clearing
        self._poller = Poller(runtime.monitor)
        self._cells: tuple[LiveCell, ...] = ()
        self._lock = threading.Lock()
        self._thread = WorkerThread("ipygpumem-live", self._update)

    def begin(self, number: Callable[[], int | None]) -> LiveCell | None:
        """Start a cell; None where its display would not be visible. ``number`` returns its In number, once known."""
        if not shell_target(self._shell).updates:
            return None
        cell = LiveCell(self._shell, self._clearing, number)
        try:
            cell.begin()
            with self._lock:
                self._cells = (*self._cells, cell)
                if len(self._cells) == 1:
                    self._thread.start(DELAY, INTERVAL)
        except BaseException as error:
            self.end(cell)
            if isinstance(error, RuntimeError):  # there can be no further thread
                return None
            raise
        return cell

    def end(self, cell: LiveCell | None) -> None:
        """End a cell: only its caller updates the display from now on."""
        if cell is None:
            return
        cell.end()
        with self._lock:
            self._cells = tuple(other for other in self._cells if other is not cell)
            if not self._cells:
                self._thread.pause()

    def close(self) -> None:
        """End all cells and the thread, when the extension is unloaded."""
        for cell in self._cells:
            self.end(cell)
        self._thread.close()

    def _update(self) -> None:
        now = time.perf_counter()
        due = [cell for cell in self._cells if now - cell.start >= DELAY - INTERVAL / 2]
        if due:
            levels = self._poller.levels()
            for cell in due:
                cell.update(levels)
