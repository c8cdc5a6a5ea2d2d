"""Loading and unloading the extension."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

from traitlets import TraitError

from ipygpumem.core.interpreter import frame_label
from ipygpumem.core.report import Report
from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.holders.roots import naming, notebook_roots, python_roots
from ipygpumem.features.outside.setting import OutsideSetting
from ipygpumem.features.ranks.engines.enable import active, disable
from ipygpumem.features.report.line import html_line, text_line
from ipygpumem.features.report.table import baseline_line
from ipygpumem.jupyter.completion import matcher
from ipygpumem.jupyter.input_transformer import rewrite
from ipygpumem.jupyter.magics import GPUMem
from ipygpumem.jupyter.settings import without_faults
from ipygpumem.measurement.runtime import close, current

__all__ = ["load", "unload"]

_MAGICS = (("line", "gpumem"), ("cell", "gpumem"), ("line", "_gpumem_begin"))
_NAME = "GPUMem"


class _Extension:
    """What the extension adds to one shell, and what it replaced there."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        config, self._faults = without_faults(shell.config, _NAME)
        self.magics = GPUMem(shell, current(), config)
        self.outside_setting = OutsideSetting(self.magics)
        self.matcher = matcher()
        self._before: dict[tuple[str, str], Any] = {}
        self._registered: Any = None
        self._formatters: dict[str, Any] = {}

    def install(self) -> None:
        shell, magics = self.shell, self.magics
        tables = shell.magics_manager.magics
        self._before = {(kind, name): tables[kind].get(name) for kind, name in _MAGICS}
        self._registered = shell.magics_manager.registry.get(_NAME)
        shell.register_magics(magics)
        magics.cells.clearing.install()
        shell.input_transformers_cleanup.append(rewrite)
        shell.events.register("pre_run_cell", magics.cells.pre_run_cell)
        shell.events.register("post_run_cell", magics.cells.post_run_cell)
        if self.matcher is not None and getattr(shell, "Completer", None) is not None:
            shell.Completer.custom_matchers.append(self.matcher)
        for kind, draw in (("text/plain", _plain), ("text/html", html_line)):
            self._formatters[kind] = shell.display_formatter.formatters[kind].for_type(Report, draw)
        magics.observe(self._changed, names=["preload", "devices", "oom_snapshot", "log"])
        names = naming()
        names.roots, names.label = functools.partial(notebook_roots, shell), magics.cells.numbers.label
        if magics.log is not None:
            session_reports().log = magics.log
        magics.cells.ooms.install()
        self.outside_setting.install()

    def start(self) -> None:
        """Preload, take the baseline and print it."""
        session, magics = current(), self.magics
        session.monitor.selected = None  # the preloaded device need not be a monitored one
        baseline = session.preload(magics.preload, reset_peaks=magics.peaks == "exact")
        print(baseline_line(baseline, reports=magics.report != "off"))  # noqa: T201 (the one line that %load_ext prints)
        try:
            magics.devices = magics.devices  # validate again: now PyTorch knows which devices exist
        except TraitError as error:
            self._faults.append(f"GPUMem.devices is ignored, and all devices are monitored: {error}")
            magics.devices = None
        session.monitor.selected = magics.devices
        if magics.oom_snapshot is not None:
            self._changed({"name": "oom_snapshot", "new": magics.oom_snapshot})
        self.outside_setting.apply()
        for fault in self._faults:
            print(f"ipygpumem: {fault}")  # noqa: T201 (printed once, at load)
        self._faults.clear()

    def _changed(self, change: Any) -> None:
        if change["name"] == "devices":
            current().monitor.selected = change["new"]
        elif change["name"] == "log":
            session_reports().log = change["new"]
        elif change["name"] == "oom_snapshot":
            message = self.magics.cells.ooms.history.configure(change["new"])
            if message:
                print(f"ipygpumem: {message}")  # noqa: T201 (a recording starts, which has a cost)
        elif change["new"] != "off":
            self.start()

    def remove(self) -> None:
        shell, magics = self.shell, self.magics
        magics.cells.close()
        magics.monitoring.close()
        if magics.record.recorder is not None:
            print("ipygpumem: the recording across cells was stopped; what was not saved is lost")  # noqa: T201 (the only place to say it)
            magics.record.close()
        magics.cells.clearing.remove()
        self.outside_setting.remove()
        magics.cells.ooms.remove()
        for event, callback in (
            ("pre_run_cell", magics.cells.pre_run_cell),
            ("post_run_cell", magics.cells.post_run_cell),
        ):
            with contextlib.suppress(ValueError):
                shell.events.unregister(event, callback)
        with contextlib.suppress(ValueError):
            shell.input_transformers_cleanup.remove(rewrite)
        with contextlib.suppress(ValueError, AttributeError):
            shell.Completer.custom_matchers.remove(self.matcher)
        self._remove_magics()
        for kind, earlier in self._formatters.items():
            formatter = shell.display_formatter.formatters[kind]
            if earlier is not None:
                formatter.for_type(Report, earlier)
            else:
                with contextlib.suppress(KeyError):
                    formatter.pop(Report)
        session = current()
        if magics.log is not None:
            session_reports().log = None
        session.monitor.selected = None
        names = naming()
        names.roots, names.label = python_roots, frame_label
        session.sampler.close()
        session.peaks.remove()
        if active() is not None:
            print("ipygpumem: engines are no longer monitored: use %gpumem engines CLIENT to monitor them again")  # noqa: T201 (a reload ends it, too)
            disable()

    def _remove_magics(self) -> None:
        shell, magics = self.shell, self.magics
        tables = shell.magics_manager.magics
        for kind, name in _MAGICS:
            if getattr(tables[kind].get(name), "__self__", None) is not magics:
                continue  # other code has replaced it since
            earlier = self._before[kind, name]
            if earlier is None:
                del tables[kind][name]
            else:
                tables[kind][name] = earlier
        registry = shell.magics_manager.registry
        if registry.get(_NAME) is magics:
            del registry[_NAME]
            if self._registered is not None:
                registry[_NAME] = self._registered
        with contextlib.suppress(ValueError):
            shell.configurables.remove(magics)
        magics.unobserve(self._changed, names=["preload", "devices", "oom_snapshot", "log"])


_extensions: weakref.WeakKeyDictionary[Any, _Extension] = weakref.WeakKeyDictionary()


def _plain(report: Report, printer: Any, cycle: bool) -> None:  # noqa: ARG001 (IPython's signature)
    printer.text(text_line(report))


def load(shell: Any) -> None:
    """Load the extension into a shell, unless it is loaded."""
    if current().forked:  # the parent process used the package before it forked this one
        close()
    if shell not in _extensions:
        extension = _Extension(shell)
        extension.install()
        _extensions[shell] = extension
        try:
            extension.start()
        except BaseException:  # interrupted: a partly loaded extension must not remain
            unload(shell)
            raise


def unload(shell: Any) -> None:
    """Undo everything that `load` did."""
    extension = _extensions.pop(shell, None)
    if extension is not None:
        extension.remove()
