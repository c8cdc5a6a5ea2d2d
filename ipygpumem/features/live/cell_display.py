"""The books of a cell that runs for long, under it while it runs: a display that its report takes the place of.

One thread, parked but for cells that last longer than two seconds, sends the display and its updates. It sends them as
the kernel's own publisher would, but with the cell's own header: whatever else runs, they belong to their cell.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from ipygpumem.features.live.poller import Poller
from ipygpumem.features.live.table import live_bundle
from ipygpumem.jupyter.output_widget import captured
from ipygpumem.jupyter.stream_tail import Endings
from ipygpumem.measurement.worker_thread import Parked
from ipygpumem.viewer.display_target import shell_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.features.live.model import Levels
    from ipygpumem.jupyter.clear_output import Clearing
    from ipygpumem.measurement.session import Session

__all__ = ["Live", "LiveCell"]

FIRST = 2.0
INTERVAL = 0.5
_POINTS = 110
"""Of the small chart: two pixels each."""


class LiveCell:
    """One cell's display: not there yet, there, or gone. ``request`` is the message id of its execution."""

    def __init__(self, shell: Any, clearing: Clearing, number: Callable[[], int | None]) -> None:
        self._shell = shell
        self._publisher = shell.display_pub
        self._clearing = clearing
        self._parent = shell.get_parent()
        self.request: str | None = self._parent.get("header", {}).get("msg_id")
        self._number = number
        self._lock = threading.Lock()
        self._history: deque[Levels] = deque(maxlen=_POINTS)
        self._every = 1
        self._skipped = 0
        self._id = ""
        self._lost = False
        self._cleared = False
        self._over = False
        self.start = time.perf_counter()
        self.endings = Endings()

    def begin(self) -> None:
        """Watch what the cell writes and clears."""
        self.endings.install()
        self._clearing.listeners.append(self._clear)

    @property
    def shown(self) -> bool:
        """Whether a display of ours has been sent and is not replaced yet."""
        return bool(self._id)

    def update(self, levels: Levels) -> None:
        """Show the newest levels; the first time only where that parts nobody's line and clears nobody's picture.

        What a widget would take is not sent. Had one begun to in the very moment of the first display, nobody knows
        where that came to stand: then there are no updates, and the report comes as a display of its own.
        """
        self._remember(levels)
        bundle = live_bundle(self._history, time.perf_counter() - self.start, self._number())
        with self._lock:
            if self._over or self._cleared or self._lost or self._shell.display_pub is not self._publisher:
                return
            if self._id:
                self._send("update_display_data", bundle)
            elif not self.endings.open:
                name = f"ipygpumem-{uuid.uuid4().hex}"
                if self._send("display_data", bundle, name):
                    self._id = name
                    self._lost = captured(self.request)

    def _clear(self, request: str | None) -> None:
        if request == self.request:
            self._cleared = True

    def _remember(self, levels: Levels) -> None:
        """The whole cell in as many points as the chart has: when they are full, every second goes."""
        history = self._history
        if len(history) == _POINTS:
            kept = [*list(history)[:-1:2], history[-1]]
            history.clear()
            history.extend(kept)
            self._every *= 2
        self._skipped += 1
        if len(history) > 1 and self._skipped < self._every:
            history[-1] = levels
            return
        self._skipped = 0
        history.append(levels)

    def _send(self, kind: str, bundle: dict[str, str], name: str = "") -> bool:
        """Send a display or an update of it; False where a widget would have taken it."""
        publisher = self._publisher
        content = {"data": bundle, "metadata": {}, "transient": {"display_id": name or self._id}}
        message = publisher.session.msg(kind, content, parent=self._parent)
        if captured(self.request):
            return False
        publisher.session.send(publisher.pub_socket, message, ident=publisher.topic)
        return True

    def end(self) -> None:
        """No more updates from here on."""
        with self._lock:
            self._over = True
        if self._clear in self._clearing.listeners:
            self._clearing.listeners.remove(self._clear)
        self.endings.remove()

    def take(self, *, waits: bool = False) -> str | None:
        """The display's id, for the last update of it, which is the caller's; None where the report needs its own.

        ``waits``: a clearing waits for the next output, and so what was shown before it still stands.
        """
        with self._lock:
            self._over = True
            taken, self._id = self._id, ""
            gone = (self._cleared and not waits) or captured(self.request)
        if not taken or gone:
            return None
        if self._lost:
            self.empty(taken)
            return None
        return taken

    def empty(self, name: str) -> None:
        """Empty a display that no report takes the place of."""
        self._send("update_display_data", {"text/plain": "", "text/html": ""}, name)

    def retract(self) -> None:
        """Empty the display, where no report comes in its place."""
        name = self.take()
        if name is not None:
            self.empty(name)


class Live:
    """The cells of one shell that are open, and the thread that shows them."""

    def __init__(self, shell: Any, session: Session, clearing: Clearing) -> None:
        self._shell = shell
        self._clearing = clearing
        self._follower = Poller(session.monitor)
        self._cells: tuple[LiveCell, ...] = ()
        self._lock = threading.Lock()
        self._thread = Parked("ipygpumem-live", self._look)
        self._pid = os.getpid()

    def begin(self, number: Callable[[], int | None]) -> LiveCell | None:
        """A cell begins; None where nobody could see it live. ``number`` tells its In number once there is one."""
        publisher = self._shell.display_pub
        if os.getpid() != self._pid or not all(hasattr(publisher, name) for name in ("session", "pub_socket", "topic")):
            return None
        if not shell_target(self._shell).updates:
            return None
        cell = LiveCell(self._shell, self._clearing, number)
        try:
            cell.begin()
            with self._lock:
                self._cells = (*self._cells, cell)
                if len(self._cells) == 1:
                    self._thread.set(FIRST, INTERVAL)
        except BaseException as error:
            self.end(cell)
            if isinstance(error, (RuntimeError, OSError)):  # no thread, or no file for its alarm: nothing live then
                return None
            raise
        return cell

    def end(self, cell: LiveCell | None) -> None:
        """The cell is over: nothing more is sent but what its caller sends."""
        if cell is None:
            return
        cell.end()
        with self._lock:
            self._cells = tuple(one for one in self._cells if one is not cell)
            if not self._cells:
                self._thread.off()

    def close(self) -> None:
        """No more, and no thread: the extension is unloaded."""
        for cell in self._cells:
            self.end(cell)
        self._thread.close()

    def _look(self) -> None:
        now = time.perf_counter()
        due = [one for one in self._cells if now - one.start >= FIRST - INTERVAL / 2]
        if due:
            levels = self._follower.levels()
            for cell in due:
                cell.update(levels)
