"""``%gpumem monitor``: one thread follows the books and tells a widget, while a page shows it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.features.live.level_history import LevelHistory, point
from ipygpumem.features.live.poller import Poller
from ipygpumem.measurement.worker_thread import Parked
from ipygpumem.viewer.display_target import shell_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.features.live.widget import MonitorWidget
    from ipygpumem.measurement.session import Session

__all__ = ["EVERY", "Monitor"]

EVERY = 1.0
_AWAY = 20.0
"""A view that has not been heard of for so long is gone, unless the kernel was too busy to hear it."""


class Monitor:
    """The monitor of one shell. There is one: opened again, it goes on at the new place, with what it knows."""

    def __init__(self, shell: Any, session: Session, running: Callable[[], tuple[int | None, float] | None]) -> None:
        self._shell = shell
        self._session = session
        self._running = running
        self._follower = Poller(session.monitor)
        self._past = LevelHistory(EVERY)
        self._told = 0.0
        self._widget: MonitorWidget | None = None
        self._thread = Parked("ipygpumem-monitor", self._look)
        self._on = False
        self._opened = 0.0
        self._pid = os.getpid()

    def open(self, every: float | None = None) -> None:
        """Show it where the cell that runs shows things.

        Raises:
            OptionError: Nothing can be followed here: no notebook, nobody in front of it, no anywidget.
        """
        target = shell_target(self._shell)
        if target.kind != "live":
            where = "in a notebook" if target.kind == "text" else "where somebody watches"
            raise OptionError(f"it follows the memory {where}; %gpumem tells the books of now")
        try:
            from ipygpumem.features.live.widget import MonitorWidget
        except ImportError as error:
            raise OptionError(f"it needs anywidget: pip install anywidget ({first_line(error)})") from error
        self._take_away()
        if every is not None and every != self._past.every:
            self._past = LevelHistory(every)
        self._widget = MonitorWidget(self._data, self._looked)
        bundle: Any = self._widget._repr_mimebundle_()
        self._follow()
        target.publish(*bundle)

    def _data(self) -> dict[str, Any]:
        labels = {card.name: card.label for card in self._session.monitor.devices.values()}
        return {**self._past.data(self._session.reports, self._running()), "labels": labels}

    def _looked(self, views: int) -> None:
        """Pages look, or the last of them has gone."""
        if views and not self._on:
            self._follow()
        elif not views:
            self._park()

    def _follow(self) -> None:
        self._on = True
        self._thread.set(0, self._past.every)

    def _park(self) -> None:
        self._on = False
        self._thread.off()

    def _look(self) -> None:
        widget = self._widget
        if widget is None or widget.comm is None:
            self._park()
            return
        running = self._running()
        if running is not None:
            widget.keep_views()
        elif not widget.forget_views(_AWAY) and self._told and time.time() - self._opened > _AWAY:
            self._park()
            return
        levels = self._follower.levels()
        self._past.add(levels)
        since, self._told = self._told, levels.time
        widget.send({"now": point(levels, self._session.reports, since - 2 * self._past.every, running)})

    def _take_away(self) -> None:
        widget, self._widget = self._widget, None
        self._opened = time.time()
        if widget is not None:
            self._park()
            widget.close()

    def close(self) -> None:
        """The extension is unloaded: no widget and no thread."""
        if os.getpid() == self._pid:
            self._take_away()
            self._thread.close()
