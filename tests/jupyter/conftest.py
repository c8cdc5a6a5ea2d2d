"""Fixtures that run cells in a real IPython shell, which is created in this process for each test."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import io
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from traitlets.config import Config


@dataclass
class CellResult:
    """Result and outputs of a cell."""

    success: bool
    value: Any
    error: BaseException | None
    stdout: str
    stderr: str
    displays: list = field(default_factory=list)

    @property
    def texts(self):
        return [bundle["text/plain"] for bundle in self.displays]

    @property
    def text(self):
        """Text of the report, of which there must be exactly one."""
        (text,) = self.texts
        return text


class Notebook:
    """A shell that runs cells, as in ``notebook.run("1 + 1").value``."""

    def __init__(self, shell):
        self.shell = shell

    def run(self, cell, **options):
        options.setdefault("store_history", True)
        self.shell.display_pub.outputs.clear()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = self.shell.run_cell(cell, **options)
        error = result.error_before_exec or result.error_in_exec
        is_interrupted = issubclass(type(error), KeyboardInterrupt)  # an exception of a test can raise in `__class__`
        if is_interrupted and "await" in cell and sys.modules["IPython"].version_info < (8,):
            end_interrupted_cell()
        displayed = [output["data"] for output in self.shell.display_pub.outputs]
        return CellResult(result.success, result.result, error, out.getvalue(), err.getvalue(), displayed)

    def load(self):
        return self.run("%load_ext ipygpumem", store_history=False)

    @property
    def last(self):
        import ipygpumem

        return ipygpumem.last

    @property
    def reports(self):
        import ipygpumem

        return ipygpumem.reports


def end_interrupted_cell():
    """End a cell that was interrupted while it waited. IPython 7 does this later, and removes a display hook then."""
    loop = asyncio.get_event_loop()
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)


@pytest.fixture
def make_notebook(tmp_path_factory, monkeypatch):
    """Return a function that creates a notebook, as in ``make_notebook(GPUMem={"report": "always"})``.

    With ``terminal=True``, the notebook uses IPython's terminal shell.
    """
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path_factory.getbasetemp() / "ipython"))
    main, hook, display_hook, notebooks = sys.modules["__main__"], sys.excepthook, sys.displayhook, []

    def make(*, terminal=False, **sections):
        config = Config(sections)
        config.HistoryManager.enabled = False
        # jedi shares a cache with other test processes, and completes nothing while one of them writes to it
        config.IPCompleter.use_jedi = False
        config.InteractiveShell.colors = "NoColor" if sys.modules["IPython"].version_info < (9,) else "nocolor"
        config.InteractiveShell.xmode = "Plain"  # IPython's default mode inspects every imported module
        config.TerminalInteractiveShell.simple_prompt = True
        kind = TerminalInteractiveShell if terminal else InteractiveShell
        for singleton in (TerminalInteractiveShell, InteractiveShell):
            singleton.clear_instance()
        shell = kind.instance(config=config, display_pub_class=CapturingDisplayPublisher)
        notebooks.append(Notebook(shell))
        return notebooks[-1]

    yield make
    for notebook in notebooks:
        notebook.run("%unload_ext ipygpumem", store_history=False)
        notebook.shell.restore_sys_module_state()
        notebook.shell.user_ns.clear()  # free memory of the cells now, not during a later test
        atexit.unregister(notebook.shell.atexit_operations)  # otherwise every shell stays alive until the process exits
        type(notebook.shell).clear_instance()
    sys.modules["__main__"], sys.excepthook, sys.displayhook = main, hook, display_hook
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


@pytest.fixture
def notebook(make_notebook):
    return make_notebook()


@pytest.fixture
def cpu_notebook(make_notebook):
    """Return a notebook with the extension, on a machine without a GPU, that reports after every cell."""
    notebook = make_notebook(GPUMem={"report": "always"})
    notebook.load()
    return notebook


@pytest.fixture
def gpu_notebook(fake_gpu, make_notebook):
    """Return a notebook with torch and the extension, on a machine with a fake H200."""
    notebook = make_notebook()
    notebook.run("import torch", store_history=False)
    notebook.load()
    return notebook


@pytest.fixture
def warnings_version():
    """Return a function whose value changes when Python forgets which warnings it has shown."""

    def version():
        registry = {}
        with contextlib.suppress(UserWarning):
            warnings.warn_explicit("", UserWarning, "file.py", 1, registry=registry)
        return registry["version"]

    return version
