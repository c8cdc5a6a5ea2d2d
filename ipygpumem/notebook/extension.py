"""The life cycle: all that ``%load_ext`` puts into a shell, and its taking back."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ipygpumem.ledger import Report
from ipygpumem.notebook.completion import matcher
from ipygpumem.notebook.magics import GPUMem
from ipygpumem.notebook.rewrite import rewrite
from ipygpumem.recording import PEAKS, fork
from ipygpumem.render import baseline_line, html_line, text_line
from ipygpumem.session import current

__all__ = ["load", "unload"]

_MAGICS = (("line", "gpumem"), ("cell", "gpumem"), ("line", "_gpumem_begin"))


class _Extension:
    """What one shell got from us, with what stood there before."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.magics = GPUMem(shell, current())
        self.matcher = matcher()
        self._before: dict[tuple[str, str], Any] = {}

    def install(self) -> None:
        shell, magics = self.shell, self.magics
        tables = shell.magics_manager.magics
        self._before = {(kind, name): tables[kind].get(name) for kind, name in _MAGICS}
        shell.register_magics(magics)
        shell.input_transformers_cleanup.append(rewrite)
        shell.events.register("pre_run_cell", magics.cells.pre_run_cell)
        shell.events.register("post_run_cell", magics.cells.post_run_cell)
        if self.matcher is not None and getattr(shell, "Completer", None) is not None:
            shell.Completer.custom_matchers.append(self.matcher)
        for kind, draw in (("text/plain", _plain), ("text/html", html_line)):
            shell.display_formatter.formatters[kind].for_type(Report, draw)
        magics.observe(self._changed, names=["preload", "devices"])
        fork.register()

    def start(self) -> None:
        """Preload, take the baseline, say so in one line."""
        session, magics = current(), self.magics
        session.watch.only = None if magics.devices is None else _names(session.watch, magics.devices)
        baseline = session.preload(magics.preload, reset_peaks=magics.peaks == "exact")
        print(baseline_line(baseline, reports=magics.report != "off"))  # noqa: T201 (the one line that %load_ext prints)

    def _changed(self, change: Any) -> None:
        session = current()
        if change["name"] == "devices":
            session.watch.only = None if change["new"] is None else _names(session.watch, change["new"])
        elif change["new"] != "off":
            self.start()

    def remove(self) -> None:
        shell, magics = self.shell, self.magics
        magics.cells.close()
        magics.record.close()
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
        for kind in ("text/plain", "text/html"):
            with contextlib.suppress(KeyError):
                shell.display_formatter.formatters[kind].pop(Report)
        PEAKS.remove()

    def _remove_magics(self) -> None:
        shell, magics = self.shell, self.magics
        tables = shell.magics_manager.magics
        for kind, name in _MAGICS:
            if getattr(tables[kind].get(name), "__self__", None) is not magics:
                continue  # somebody has put their own there since
            earlier = self._before[kind, name]
            if earlier is None:
                del tables[kind][name]
            else:
                tables[kind][name] = earlier
        if shell.magics_manager.registry.get("GPUMem") is magics:
            del shell.magics_manager.registry["GPUMem"]
        with contextlib.suppress(ValueError):
            shell.configurables.remove(magics)
        magics.unobserve(self._changed, names=["preload", "devices"])


_extensions: weakref.WeakKeyDictionary[Any, _Extension] = weakref.WeakKeyDictionary()


def _names(watch: Any, words: Any) -> tuple[str, ...]:
    """The setting ``devices`` as names: ``"0,1"``, ``["cuda:0"]``, ``0``."""
    parts = words.split(",") if isinstance(words, str) else words if isinstance(words, (list, tuple)) else [words]
    names: tuple[str, ...] = watch.check(str(part) for part in parts)
    return names


def _plain(report: Report, printer: Any, cycle: bool) -> None:  # noqa: ARG001 (IPython's signature)
    printer.text(text_line(report))


def load(shell: Any) -> None:
    """Put the extension into a shell; a second time is nothing."""
    if shell not in _extensions:
        extension = _Extension(shell)
        extension.install()
        _extensions[shell] = extension
        extension.start()


def unload(shell: Any) -> None:
    """Take back everything that `load` did, and nothing else."""
    extension = _extensions.pop(shell, None)
    if extension is not None:
        extension.remove()
