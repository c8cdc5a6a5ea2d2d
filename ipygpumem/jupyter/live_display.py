"""Live displays of memory usage below running cells. The report of a cell replaces its live display.

A single thread creates and updates the displays of cells that run longer than two seconds. Each message has the parent
header of its cell, so that front ends show the message below this cell even if other code is running.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ipygpumem.core.reading import Reading
from ipygpumem.jupyter.display import ClearOutputTracker, is_captured, replace_method
from ipygpumem.measurement.periodic_thread import PeriodicThread
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.viewer.display_target import supports_updates

if TYPE_CHECKING:
    from ipygpumem.features.live.monitor import MemoryPoller

DELAY = 2.0
"""Time in seconds after which the live display of a cell is created."""
INTERVAL = 0.5
"""Time in seconds between updates of the live displays."""
_CHART_POINTS = 110  # maximum number of points in the chart; each point is two pixels wide


class IncompleteLineTracker:
    """Tracker of incomplete lines at the end of the output, such as progress bars, which a new display would split."""

    def __init__(self) -> None:
        self._last_characters: dict[int, str] = {}
        self._restore = contextlib.ExitStack()

    @property
    def incomplete(self) -> bool:
        return any(character not in {"", "\n"} for character in self._last_characters.values())

    def install(self) -> None:
        for index, stream in enumerate((sys.stdout, sys.stderr)):
            with contextlib.suppress(AttributeError):
                self._restore.callback(replace_method(stream, "write", self._tracked(index, stream.write)))

    def _tracked(self, index: int, write: Callable[..., Any]) -> Callable[..., Any]:
        last_characters = self._last_characters

        def tracked_write(text: Any, *arguments: Any) -> Any:
            if isinstance(text, str) and text:
                last_characters[index] = text[-1]
            return write(text, *arguments)

        return tracked_write

    def remove(self) -> None:
        self._restore.close()


class LiveDisplay:
    """Live display of one cell.

    Attributes:
        request: Message ID of the execution request of the cell; None if the request has no header.
        start: Time at which the cell started, as returned by `time.perf_counter`.
        line_tracker: Tracker of incomplete lines in the output of the cell.
    """

    def __init__(self, shell: Any, clearing: ClearOutputTracker, number: Callable[[], int | None]) -> None:
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
        self.line_tracker = IncompleteLineTracker()

    def begin(self) -> None:
        self.line_tracker.install()
        self._clearing.listeners.append(self._on_clear)

    def update(self, reading: Reading) -> None:
        """Show a new reading. The display is created once the output of the cell ends with a complete line.

        Nothing is sent while an output widget captures the output of the cell. If a widget may have started capturing
        while the display was being created, the position of the display is unknown. In this case, the display is not
        updated, and the report is displayed separately.
        """
        self._add(reading)
        from ipygpumem.features.live.cell_display import live_bundle  # on first use, to save memory

        bundle = live_bundle(self._history, time.perf_counter() - self.start, self._number())
        with self._lock:
            if self._ended or self._cleared or self._misplaced or self._shell.display_pub is not self._publisher:
                return
            if self._display_id:
                self._send("update_display_data", bundle, self._display_id)
            elif not self.line_tracker.incomplete:
                display_id = f"ipygpumem-{uuid.uuid4().hex}"
                if self._send("display_data", bundle, display_id):
                    self._display_id = display_id
                    self._misplaced = is_captured(self.request)

    def _on_clear(self, request: str | None) -> None:
        if request == self.request:
            self._cleared = True

    def _add(self, reading: Reading) -> None:
        history = self._history
        if len(history) == _CHART_POINTS:
            history[:] = [*history[:-1:2], history[-1]]
            self._readings_per_point *= 2
        if len(history) > 1 and self._readings % self._readings_per_point:
            history[-1] = reading
        else:
            history.append(reading)
        self._readings += 1

    def _send(self, kind: str, bundle: dict[str, str], display_id: str) -> bool:
        """Send a message. Return False without sending it if an output widget would capture it."""
        publisher = self._publisher
        content = {"data": bundle, "metadata": {}, "transient": {"display_id": display_id}}
        message = publisher.session.msg(kind, content, parent=self._parent)
        if is_captured(self.request):
            return False
        publisher.session.send(publisher.pub_socket, message, ident=publisher.topic)
        return True

    def end(self) -> None:
        with self._lock:
            self._ended = True
        if self._on_clear in self._clearing.listeners:
            self._clearing.listeners.remove(self._on_clear)
        self.line_tracker.remove()

    def take(self, *, waits: bool = False) -> str | None:
        """Stop updates, and return the display ID if a report can replace the display, otherwise None.

        ``waits`` states whether ``clear_output(wait=True)`` is pending.
        """
        with self._lock:
            self._ended = True
            display_id, self._display_id = self._display_id, ""
        if not display_id or (self._cleared and not waits) or is_captured(self.request):
            return None
        if self._misplaced:
            self.empty(display_id)
            return None
        return display_id

    def empty(self, display_id: str) -> None:
        self._send("update_display_data", {"text/plain": "", "text/html": ""}, display_id)

    def retract(self) -> None:
        display_id = self.take()
        if display_id is not None:
            self.empty(display_id)


class LiveDisplayUpdater:
    """Updater of the live displays of one shell, which runs in a separate thread.

    Attributes:
        available: Whether the kernel supports messages from another thread.
    """

    def __init__(self, shell: Any, runtime: Runtime, clearing: ClearOutputTracker) -> None:
        self._shell = shell
        self.available = all(hasattr(shell.display_pub, name) for name in ("session", "pub_socket", "topic"))
        self._clearing = clearing
        self._monitor = runtime.monitor
        self._poller: MemoryPoller | None = None
        self._cells: tuple[LiveDisplay, ...] = ()
        self._lock = threading.Lock()
        self._thread = PeriodicThread("ipygpumem-live", self._update)

    def begin(self, number: Callable[[], int | None]) -> LiveDisplay | None:
        """Start the live display of a cell; return None if this fails. ``number()`` returns the execution count."""
        if not supports_updates(self._shell):
            return None
        cell = LiveDisplay(self._shell, self._clearing, number)
        try:
            cell.begin()
            with self._lock:
                self._cells = (*self._cells, cell)
                if len(self._cells) == 1:
                    self._thread.start(DELAY, INTERVAL)
        except BaseException as error:
            cell.end()
            self.end(cell)
            if isinstance(error, RuntimeError):  # no further thread can be started
                return None
            raise
        return cell

    def end(self, cell: LiveDisplay | None) -> None:
        if cell is None or cell not in self._cells:
            return
        cell.end()
        with self._lock:
            self._cells = tuple(running for running in self._cells if running is not cell)
            if not self._cells:
                self._thread.pause()

    def close(self) -> None:
        for cell in self._cells:
            self.end(cell)
        self._thread.close()

    def _update(self) -> None:
        now = time.perf_counter()
        due = [cell for cell in self._cells if now - cell.start >= DELAY - INTERVAL / 2]
        if due:
            if self._poller is None:
                from ipygpumem.features.live.monitor import MemoryPoller  # on first use, to save memory

                self._poller = MemoryPoller(self._monitor)
            reading = self._poller.read()
            for cell in due:
                cell.update(reading)
