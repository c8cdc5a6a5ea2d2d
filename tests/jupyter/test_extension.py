"""Loading and unloading the extension, which restores exactly the objects of a shell that it has changed."""

from __future__ import annotations

import re
import signal
import sys

import pytest
import torch

import ipygpumem
from fakes.builds import NO_GPU
from ipygpumem.core.report import Report
from ipygpumem.jupyter import extension, magics
from ipygpumem.measurement.runtime import close

pytestmark = pytest.mark.ipython

MIB = 1 << 20
HOST_LINE = re.compile(
    rf"ipygpumem: no GPU \({re.escape(NO_GPU)}\): reporting host memory \(RSS\) instead, "
    r"baseline \d+\.\d [MG]iB; a report follows every cell that changes memory\n"
)
ALLOCATE = "kept = torch.ones(100 << 20, dtype=torch.uint8, device='cuda')"


def footprint(shell):
    """Return the objects of a shell that an extension can change, by name."""
    shell.run_line_magic("unload_ext", "no_such_extension")  # IPython 9 loads its magics on first use
    magics = shell.magics_manager
    return {
        "events": ({name: list(callbacks) for name, callbacks in shell.events.callbacks.items()}, shell.events.trigger),
        "cleanup": list(shell.input_transformers_cleanup),
        "post": list(shell.input_transformers_post),
        "line transforms": list(shell.input_transformer_manager.line_transforms),
        "ast": list(shell.ast_transformers),
        "line": dict(magics.magics["line"]),
        "cell": dict(magics.magics["cell"]),
        "registry": dict(magics.registry),
        "configurables": list(shell.configurables),
        "config": dict(shell.config),
        "matchers": list(getattr(shell.Completer, "custom_matchers", ())),
        "formatters": {
            name: dict(formatter.type_printers) for name, formatter in shell.display_formatter.formatters.items()
        },
        "tracebacks": shell.custom_exceptions,
        "names": {name for name in shell.user_ns if not re.fullmatch(r"_i*|_+\d*|_i\d+|In|Out|_exit_code", name)},
        "torch": {name: getattr(torch._C, name) for name in dir(torch._C) if name.startswith(("_cuda", "_accel"))},
        "hooks": (sys.excepthook, sys.displayhook),
    }


def test_load_prints_one_line(notebook):
    result = notebook.load()
    assert HOST_LINE.fullmatch(result.stdout)
    assert result.stderr == ""
    assert result.displays == []


def test_load_on_gpu_prints_one_line(fake_gpu, notebook):
    assert notebook.load().stdout == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 678 MiB (context 612, first kernels 66); "
        "cuBLAS workspace 32 MiB in PyTorch; a report follows every cell that changes memory\n"
    )


def test_unload_restores_everything(fake_gpu, notebook):
    before = footprint(notebook.shell)
    notebook.load()
    notebook.run(ALLOCATE)
    notebook.run("%%gpumem\n1 + 1")
    after_load = footprint(notebook.shell)
    for name in ("events", "cleanup", "line", "cell", "registry", "configurables", "formatters", "torch"):
        assert after_load[name] != before[name], name
    notebook.run("del kept", store_history=False)
    result = notebook.run("%unload_ext ipygpumem", store_history=False)
    assert (result.stdout, result.stderr, result.displays) == ("", "", [])
    # the wrapper of the peak functions is kept until the user resets the peak
    torch.cuda.reset_peak_memory_stats()
    assert footprint(notebook.shell) == before


def test_repeated_load_and_unload(fake_gpu, notebook):
    before = footprint(notebook.shell)
    for _ in range(5):
        notebook.load()
        assert notebook.load().stdout.startswith("The ipygpumem extension is already loaded")
        notebook.run("%reload_ext ipygpumem", store_history=False)
        assert notebook.run("%unload_ext ipygpumem", store_history=False).success
        assert "not loaded" in notebook.run("%unload_ext ipygpumem", store_history=False).stdout
    assert footprint(notebook.shell) == before


def test_second_load_has_no_effect(fake_gpu, notebook):
    notebook.load()
    ipygpumem.load_ipython_extension(notebook.shell)  # bypasses the check in IPython
    notebook.run("%reload_ext ipygpumem", store_history=False)
    notebook.run("%reload_ext ipygpumem", store_history=False)
    notebook.run("import torch", store_history=False)
    assert len(notebook.run(ALLOCATE).texts) == 1


def test_reports_are_kept_across_reload(fake_gpu, notebook):
    notebook.load()
    notebook.run("import torch")
    notebook.run(ALLOCATE)
    assert len(notebook.reports) == 2
    notebook.run("%reload_ext ipygpumem")
    assert [report.cell for report in notebook.reports] == [1, 2]


def test_unload_restores_user_magics(notebook):
    shell = notebook.shell

    def user_magic(line, cell=None):
        return "mine"

    class GPUMem:
        pass

    user_magics = GPUMem()
    shell.register_magic_function(user_magic, "line_cell", "gpumem")
    shell.magics_manager.registry["GPUMem"] = user_magics
    shell.display_formatter.formatters["text/html"].for_type(Report, user_magic)
    notebook.load()
    assert notebook.run("%gpumem 1 + 1").value == 2
    notebook.run("%unload_ext ipygpumem", store_history=False)
    assert notebook.run("%gpumem 1 + 1").value == "mine"
    assert notebook.run("%%gpumem\n1 + 1").value == "mine"
    assert shell.magics_manager.registry["GPUMem"] is user_magics
    assert shell.display_formatter.formatters["text/html"].for_type(Report) is user_magic


def test_unload_keeps_later_changes(notebook):
    shell = notebook.shell
    notebook.load()

    def user_magic(line, cell=None):
        return "mine"

    shell.register_magic_function(user_magic, "line_cell", "gpumem")
    notebook.run("%unload_ext ipygpumem", store_history=False)
    assert notebook.run("%gpumem 1 + 1").value == "mine"


def test_load_inside_a_cell(fake_gpu, notebook):
    notebook.run("import torch")
    result = notebook.run(f"%load_ext ipygpumem\n{ALLOCATE}\n6 * 7")
    assert (result.value, result.texts) == (42, [])
    assert len(notebook.run(f"more = {ALLOCATE}").texts) == 1


def test_unload_inside_a_cell(gpu_notebook):
    result = gpu_notebook.run(f"{ALLOCATE}\n%unload_ext ipygpumem\n6 * 7")
    assert (result.value, result.texts, result.stderr) == (42, [], "")
    from ipygpumem.measurement.runtime import current

    assert current().peaks._scopes == []
    assert gpu_notebook.run(f"more = {ALLOCATE}").texts == []


def test_unload_below_own_magic(gpu_notebook, tmp_path):
    path = tmp_path / "x.pickle"
    result = gpu_notebook.run(f"%%gpumem --snapshot {path}\n{ALLOCATE}\n%unload_ext ipygpumem\n6 * 7")
    assert (result.value, result.texts, result.stderr) == (42, [], "")
    assert torch._C._cuda_isHistoryEnabled() is False
    assert f"ipygpumem: snapshot {path}: " in result.stdout, "the incomplete recording is saved, with a note"
    assert path.exists()


def test_reload_inside_a_cell(gpu_notebook):
    result = gpu_notebook.run(f"{ALLOCATE}\n%reload_ext ipygpumem\n6 * 7")
    assert (result.value, result.texts, result.stderr) == (42, [], "")
    assert len(gpu_notebook.run("more = torch.ones(100 << 20, device='cuda')").texts) == 1


def test_unload_while_recording(fake_gpu, notebook):
    before = footprint(notebook.shell)["torch"]
    notebook.load()
    notebook.run("%gpumem record start")
    assert torch._C._cuda_isHistoryEnabled() is True
    result = notebook.run("%unload_ext ipygpumem", store_history=False)
    assert result.stdout == "ipygpumem: the recording across cells was stopped; unsaved events are lost\n"
    assert torch._C._cuda_isHistoryEnabled() is False
    torch.cuda.reset_peak_memory_stats()
    assert footprint(notebook.shell)["torch"] == before


def test_unload_does_not_change_user_peaks(gpu_notebook):
    gpu_notebook.run(f"{ALLOCATE}\ndel kept")
    gpu_notebook.run("1 + 1")
    read_peak = "torch.cuda.max_memory_allocated()"
    peak = gpu_notebook.run(read_peak).value
    gpu_notebook.run("%unload_ext ipygpumem")
    assert gpu_notebook.run(read_peak).value == peak
    assert peak >= 100 * MIB


def test_interrupted_load_leaves_no_hooks(notebook, monkeypatch):
    from ipygpumem.measurement.runtime import Runtime

    def interrupted(self, mode="kernels", *, reset_peaks=True):
        raise KeyboardInterrupt

    before = footprint(notebook.shell)
    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "preload", interrupted)
        result = notebook.load()
    assert isinstance(result.error, KeyboardInterrupt)
    assert footprint(notebook.shell) == before
    assert HOST_LINE.fullmatch(notebook.load().stdout)


@pytest.mark.usefixtures("default_handler")
def test_interrupt_while_the_magics_are_created(notebook, monkeypatch):
    before = footprint(notebook.shell)
    with monkeypatch.context() as patched:
        patched.setattr(magics, "CellMeasurements", lambda *arguments: signal.raise_signal(signal.SIGINT))
        result = notebook.load()
    assert isinstance(result.error, KeyboardInterrupt)
    assert footprint(notebook.shell) == before


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("command", ["unload_ext", "reload_ext"])
def test_extension_can_be_loaded_after_an_interrupted_unload(notebook, monkeypatch, command):
    before = footprint(notebook.shell)
    notebook.load()
    original = extension._Extension.remove

    def interrupted(self):
        signal.raise_signal(signal.SIGINT)
        original(self)

    with monkeypatch.context() as patched:
        patched.setattr(extension._Extension, "remove", interrupted)
        result = notebook.run(f"%{command} ipygpumem")
    assert isinstance(result.error, KeyboardInterrupt)
    assert footprint(notebook.shell) == before
    assert HOST_LINE.fullmatch(notebook.load().stdout)


def test_two_shells_are_independent(make_notebook):
    first = make_notebook(GPUMem={"report": "always"})
    first.load()
    second = make_notebook(terminal=True, GPUMem={"report": "always"})
    second.load()
    assert len(second.run("1 + 1").texts) == 1
    assert (
        len(first.run("1 + 1").texts) == 1
    )  # in the shell of the cell, although IPython's display() uses the second one
    second.run("%unload_ext ipygpumem")
    assert second.run("1 + 1").texts == []


def test_two_consecutive_shells(make_notebook):
    """Closing the runtime unloads the extension of the first shell; the second one starts with a new runtime."""
    first = make_notebook(GPUMem={"report": "always"})
    before = footprint(first.shell)
    first.load()
    first.run("1 / 0")
    assert len(first.reports) == 1
    close()
    assert footprint(first.shell) == before
    second = make_notebook(GPUMem={"report": "always"})
    second.load()
    assert len(second.run("1 + 1").texts) == 1
    assert len(second.reports) == 1
    assert first.run("1 + 1").texts == []
    assert HOST_LINE.fullmatch(first.run("%reload_ext ipygpumem").stdout)
    assert len(first.run("1 + 1").texts) == len(second.run("1 + 1").texts) == 1


@pytest.mark.parametrize("name", ["last", "reports", "reading"])
def test_names_available_in_notebooks(cpu_notebook, name):
    cpu_notebook.run("import ipygpumem\n1 + 1")
    cpu_notebook.run("x = 1")
    values = {
        "last": "ipygpumem.last.cell",
        "reports": "len(ipygpumem.reports)",
        "reading": "ipygpumem.reading().host.rss",
    }
    assert cpu_notebook.run(values[name]).value


def test_report_as_value_of_cell(gpu_notebook):
    gpu_notebook.run(ALLOCATE)
    result = gpu_notebook.run("import ipygpumem\nipygpumem.last")
    assert re.fullmatch(
        r"Out\[\d\]: cuda:0  \+100\.0 MiB held · peak \+100\.0 MiB · .* used   In \[\d\], .* m?s\n", result.stdout
    )
    html = gpu_notebook.shell.display_formatter.format(result.value)[0]["text/html"]
    assert html.startswith("<div") and "+100.0 MiB held" in html
