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

from ipygpumem.notebook.endings import Endings
from ipygpumem.recording.parked import Parked
from ipygpumem.render.live import live_bundle
from ipygpumem.session.follow import Follower
from ipygpumem.viewer.place import of_shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.ledger.level import Levels
    from ipygpumem.notebook.clearing import Clearing
    from ipygpumem.session import Session

__all__ = ["Live", "LiveCell"]

FIRST = 2.0
INTERVAL = 0.5
_POINTS = 110
"""Of the small chart: two pixels each."""


class LiveCell:
    """One cell's display: not there yet, there, or gone."""

    def __init__(self, shell: Any, clearing: Clearing, number: Callable[[], int | None]) -> None:
        self._shell = shell
        self._publisher = shell.display_pub
        self._clearing = clearing
        self._cleared = clearing.count
        self._parent = shell.get_parent()
        self._number = number
        self._lock = threading.Lock()
        self._history: deque[Levels] = deque(maxlen=_POINTS)
        self._every = 1
        self._skipped = 0
        self._id = ""
        self._over = False
        self.start = time.perf_counter()
        self.endings = Endings()

    @property
    def shown(self) -> bool:
        """Whether a display of ours has been sent and is not replaced yet."""
        return bool(self._id)

    def update(self, levels: Levels) -> None:
        """Show the newest levels; the first time only where that parts nobody's line and clears nobody's picture."""
        self._remember(levels)
        bundle = live_bundle(self._history, time.perf_counter() - self.start, self._number())
        with self._lock:
            if self._over or self._clearing.count != self._cleared or self._shell.display_pub is not self._publisher:
                return
            if self._id:
                self._send("update_display_data", bundle)
            elif not self.endings.open:
                self._id = f"ipygpumem-{uuid.uuid4().hex}"
                self._send("display_data", bundle)

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

    def _send(self, kind: str, bundle: dict[str, str]) -> None:
        publisher = self._publisher
        content = {"data": bundle, "metadata": {}, "transient": {"display_id": self._id}}
        message = publisher.session.msg(kind, content, parent=self._parent)
        publisher.session.send(publisher.pub_socket, message, ident=publisher.topic)

    def end(self) -> None:
        """No more updates from here on."""
        with self._lock:
            self._over = True
        self.endings.remove()

    def take(self, *, waits: bool = False) -> str | None:
        """The display's id, for the last update of it, which is the caller's; None where there is none to replace.

        ``waits``: a clearing waits for the next output, and so what was shown before it still stands.
        """
        with self._lock:
            self._over = True
            taken, self._id = self._id, ""
            gone = self._clearing.count != self._cleared and not waits
        return None if gone else taken or None

    def retract(self) -> None:
        """Empty the display, where no report comes in its place."""
        place = self.take()
        if place is not None:
            self._id = place
            self._send("update_display_data", {"text/plain": "", "text/html": ""})
            self._id = ""


class Live:
    """The cells of one shell that are open, and the thread that shows them."""

    def __init__(self, shell: Any, session: Session, clearing: Clearing) -> None:
        self._shell = shell
        self._clearing = clearing
        self._follower = Follower(session.watch)
        self._cells: tuple[LiveCell, ...] = ()
        self._lock = threading.Lock()
        self._thread = Parked("ipygpumem-live", self._look)
        self._pid = os.getpid()

    def begin(self, number: Callable[[], int | None]) -> LiveCell | None:
        """A cell begins; None where nobody could see it live. ``number`` tells its In number once there is one."""
        publisher = self._shell.display_pub
        if os.getpid() != self._pid or not all(hasattr(publisher, name) for name in ("session", "pub_socket", "topic")):
            return None
        # every front end says whether it can be asked for input; ipyparallel does not, and knows no updates
        asked = self._shell.get_parent().get("content", {}) if hasattr(self._shell, "get_parent") else {}
        if "allow_stdin" not in asked or of_shell(self._shell).kind != "live":
            return None
        cell = LiveCell(self._shell, self._clearing, number)
        cell.endings.install()
        with self._lock:
            first = not self._cells
            self._cells = (*self._cells, cell)
            if first:
                self._thread.set(FIRST, INTERVAL)
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
