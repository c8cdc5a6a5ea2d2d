"""``%gpumem monitor``: a thread that reads memory usage and sends it to a widget while a browser displays it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import import_library
from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.live.poller import Poller
from ipygpumem.features.live.usage_history import UsageHistory, usage_update
from ipygpumem.measurement.worker_thread import WorkerThread
from ipygpumem.viewer.display_target import shell_target

if TYPE_CHECKING:
    from ipygpumem.features.live.widget import MonitorWidget
    from ipygpumem.measurement.runtime import Runtime

_EVERY = 1.0
_VIEW_TIMEOUT = 20.0
"""Seconds without a message after which the page is considered closed, unless the Jupyter kernel was busy."""


class Monitor:
    """The memory monitor of an IPython shell. Opening it again moves the widget and its history to the current cell."""

    def __init__(self, shell: Any, runtime: Runtime, running: Callable[[], tuple[int | None, float] | None]) -> None:
        self._shell = shell
        self._runtime = runtime
        self._running_cell = running
        self._poller = Poller(runtime.monitor)
        self._history = UsageHistory(_EVERY)
        self._last_update = 0.0
        self._widget: MonitorWidget | None = None
        self._thread = WorkerThread("ipygpumem-monitor", self._update)
        self._active = False
        self._opened = 0.0
        self._last_seen: dict[str, float] = {}
        self._pid = os.getpid()

    def open(self, every: float | None = None) -> None:
        """Display the monitor in the output of the running cell. If ``every`` (in seconds) is None, keep the interval.

        Raises `OptionError` if this is not an interactive notebook, or if anywidget is not installed.
        """
        target = shell_target(self._shell)
        if target.kind != "live":
            where = "an interactive notebook" if target.kind == "batch" else "a notebook"
            raise OptionError(f"the monitor requires {where}; use %gpumem to show the current memory usage")
        import_library("anywidget", "the monitor")
        from ipygpumem.features.live.widget import MonitorWidget

        self._remove_widget()
        if every is not None and every != self._history.every:
            self._history = UsageHistory(every)
        self._widget = MonitorWidget(self._data, self._on_view)
        bundle: Any = self._widget._repr_mimebundle_()
        self._start()
        target.publish(*bundle)

    def _data(self) -> dict[str, Any]:
        labels = {device.name: device.label for device in self._runtime.monitor.devices.values()}
        return {**self._history.data(session_reports(), self._running_cell()), "labels": labels}

    def _on_view(self, view: str, visible: bool) -> None:
        self._last_seen.pop(view, None)
        if visible:
            self._last_seen[view] = time.monotonic()
        if not self._last_seen:
            self._pause()
        elif not self._active:
            self._start()

    def _start(self) -> None:
        self._active = True
        self._thread.start(0, self._history.every)

    def _pause(self) -> None:
        self._active = False
        self._thread.pause()

    def _update(self) -> None:
        widget = self._widget
        if widget is None or widget.comm is None:
            self._pause()
            return
        running, now = self._running_cell(), time.monotonic()
        if running is not None:  # a busy Jupyter kernel does not receive messages from pages
            self._last_seen = dict.fromkeys(self._last_seen, now)
        self._last_seen = {view: seen for view, seen in self._last_seen.items() if now - seen < _VIEW_TIMEOUT}
        if running is None and not self._last_seen and now - self._opened > _VIEW_TIMEOUT:
            self._pause()
            return
        reading = self._poller.read()
        self._history.add(reading)
        since, self._last_update = self._last_update, reading.time
        update = usage_update(reading, session_reports(), since - 2 * self._history.every, running)
        widget.send({"now": update})

    def _remove_widget(self) -> None:
        widget, self._widget = self._widget, None
        self._opened = time.monotonic()
        self._last_seen = {}
        if widget is not None:
            self._pause()
            widget.close()

    def close(self) -> None:
        """Close the widget and end the thread."""
        if os.getpid() == self._pid:
            self._remove_widget()
            self._thread.close()
