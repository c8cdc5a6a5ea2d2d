"""Loading and unloading of the extension."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traitlets import TraitError

from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import frame_label
from ipygpumem.core.report import Report
from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.holders.reference_graph import naming_functions, notebook_roots, python_roots
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import baseline_line
from ipygpumem.jupyter.commands import matcher
from ipygpumem.jupyter.display import replace_method
from ipygpumem.jupyter.magics import GPUMem
from ipygpumem.jupyter.options import rewrite
from ipygpumem.jupyter.settings import without_invalid_values
from ipygpumem.measurement.runtime import close, current

if TYPE_CHECKING:
    from ipygpumem.features.outside.collect import OutsideSetting

_MAGICS = (("line", "gpumem"), ("cell", "gpumem"), ("line", "_gpumem_begin"))
_NAME, _PACKAGE = "GPUMem", "ipygpumem"
_OBSERVED = ["preload", "devices", "oom_snapshot", "log", "outside"]


class _Extension:
    """Extension loaded into one shell. `remove` undoes its changes to the shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        config, self._faults = without_invalid_values(shell.config, _NAME)
        self.magics = GPUMem(shell, current(), config)
        self._installed = contextlib.ExitStack()
        # other code may have removed objects that the extension added
        self._installed.enter_context(contextlib.suppress(ValueError, AttributeError))
        self._installed.callback(shell.configurables.remove, self.magics)

    @functools.cached_property
    def _outside_setting(self) -> OutsideSetting:
        from ipygpumem.features.outside.collect import OutsideSetting  # on first use, to save memory

        return OutsideSetting()

    def install(self) -> None:
        shell, magics, cells, undo = self.shell, self.magics, self.magics.cells, self._installed.callback
        undo(self._end_session)
        self._register_magics()
        formatters = shell.display_formatter.formatters
        self._register_formatter(formatters["text/html"], lambda report: ShortReport(report).html())
        self._register_formatter(formatters["text/plain"], lambda report, to, _: to.text(ShortReport(report).text()))
        completer, completions = getattr(shell, "Completer", None), matcher()
        if completions is not None and completer is not None:
            completer.custom_matchers.append(completions)
            undo(lambda: completer.custom_matchers.remove(completions))
        shell.input_transformers_cleanup.append(rewrite)
        undo(lambda: shell.input_transformers_cleanup.remove(rewrite))
        undo(cells.hooks.install())
        undo(replace_method(shell, "showtraceback", functools.partial(cells.show_traceback, shell.showtraceback)))
        magics.observe(self._changed, names=_OBSERVED)
        undo(magics.unobserve, self._changed, names=_OBSERVED)
        names = naming_functions()
        names.roots, names.label = functools.partial(notebook_roots, shell), magics.cells.numbers.label
        if magics.log is not None:
            session_reports().log = magics.log
        cells.ooms.install()
        undo(cells.ooms.remove)
        cells.clearing.install()
        undo(cells.clearing.remove)
        undo(self._close_recording)
        undo(magics.close_monitoring)
        undo(cells.close)

    def _register_magics(self) -> None:
        shell, magics, manager = self.shell, self.magics, self.shell.magics_manager
        places = [*((manager.magics[kind], name) for kind, name in _MAGICS), (manager.registry, _NAME)]
        previous_magics = [(table, name, table.get(name)) for table, name in places]

        def unregister() -> None:
            for table, name, earlier in previous_magics:
                magic = table.get(name)
                if getattr(magic, "__self__", magic) is not magics:
                    continue  # other code has replaced it since
                if earlier is None:
                    del table[name]
                else:
                    table[name] = earlier

        shell.register_magics(magics)
        self._installed.callback(unregister)

    def _register_formatter(self, formatter: Any, draw: Callable[..., Any]) -> None:
        earlier = formatter.for_type(Report, draw)
        self._installed.callback(
            lambda: formatter.pop(Report, None) if earlier is None else formatter.for_type(Report, earlier)
        )

    def start(self) -> None:
        session, magics = current(), self.magics
        session.monitor.selected = None  # the preloaded device may differ from the monitored devices
        baseline = session.preload(magics.preload, reset_peaks=magics.peaks == "exact")
        print(baseline_line(baseline, reports=magics.report != "off"))  # noqa: T201 (the output of %load_ext)
        try:
            magics.devices = magics.devices  # validate again, because PyTorch now knows which devices exist
        except TraitError as error:
            self._faults.append(f"all devices are monitored because GPUMem.devices is invalid: {error}")
            magics.devices = None
        session.monitor.selected = magics.devices
        if magics.oom_snapshot is not None:
            self._changed({"name": "oom_snapshot", "new": magics.oom_snapshot})
        if magics.outside == "library":
            self._outside_setting.apply(enabled=True)
        for fault in self._faults:
            print(f"ipygpumem: {fault}")  # noqa: T201 (printed once, when the extension is loaded)
        self._faults.clear()

    def _changed(self, change: Any) -> None:
        if change["name"] == "devices":
            current().monitor.selected = change["new"]
        elif change["name"] == "log":
            session_reports().log = change["new"]
        elif change["name"] == "outside":
            self._outside_setting.apply(enabled=change["new"] == "library")
        elif change["name"] == "oom_snapshot":
            message = self.magics.cells.ooms.recording.configure(change["new"])
            if message:
                print(f"ipygpumem: {message}")  # noqa: T201 (the recording slows down the cells)
        elif change["new"] != "off":
            self.start()

    def _close_recording(self) -> None:
        record = self.magics.record
        if record.recorder is not None:
            print("ipygpumem: the recording across cells was stopped; unsaved events are lost")  # noqa: T201 (no other message follows)
            record.close()

    def _end_session(self) -> None:
        session, names = current(), naming_functions()
        if self.magics.log is not None:
            session_reports().log = None
        session.monitor.selected = None
        names.roots, names.label = python_roots, frame_label
        session.sampler.close()
        session.peaks.remove()
        self._outside_setting.remove()
        from ipygpumem.features.ranks.engines.enable import active, disable

        if active() is not None:
            print("ipygpumem: engines are no longer monitored; to monitor them again, run %gpumem engines CLIENT")  # noqa: T201 (also on reload)
            disable()

    def remove(self) -> None:
        self._installed.close()


class _LoadedExtensions(weakref.WeakKeyDictionary[Any, _Extension]):
    """The loaded extension of each shell."""

    def close(self) -> None:
        """Unload the extension from all shells, unless this process was forked from the process that loaded it."""
        for shell in () if current().forked else tuple(self):
            self.pop(shell).remove()


def load(shell: Any) -> None:
    if current().forked:  # the parent process used the package before the fork
        close()
    extensions = current().state(_LoadedExtensions)
    if shell not in extensions:
        try:
            with DeferredInterrupts():  # an interrupt between a change and its registration would leave the change
                extension = extensions[shell] = _Extension(shell)
                extension.install()
            extension.start()
        except BaseException:  # also if interrupted: a partially loaded extension must not remain
            unload(shell)
            raise


def unload(shell: Any) -> None:
    with DeferredInterrupts():
        extension = current().state(_LoadedExtensions).pop(shell, None)
        if extension is not None:
            extension.remove()
            shell.extension_manager.loaded.discard(_PACKAGE)  # IPython does not do this after an interrupt
