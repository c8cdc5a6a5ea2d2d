"""Limits (``%%gpumem --limit`` and ``GPUMem.limit``) and reports by module (``--modules``)."""

from __future__ import annotations

import gc
import sys

import pytest
from IPython.core.error import UsageError

import ipygpumem
from ipygpumem.core.errors import GPUMemLimitExceeded

ALLOCATE = "torch.ones({} << 20, dtype=torch.uint8, device='cuda')"


def error_message(result):
    assert isinstance(result.error, GPUMemLimitExceeded)
    assert not result.success
    return str(result.error)


def test_peak_over_limit_ends_cell_and_keeps_its_value(gpu_notebook):
    nb = gpu_notebook
    nb.run(f"def make(n):\n    return {ALLOCATE.format('n')}")
    assert nb.run("%%gpumem --limit 10MiB\nx = make(10)\n6").value == 6
    result = nb.run("%%gpumem --limit 10MiB\nx = make(12); del x\n7")
    assert error_message(result).startswith(
        "In [3]: cuda:0 peak +12.0 MiB, over the limit of 10.0 MiB (peak reached by In [1]:2 make(): return torch.ones("
    )
    assert nb.last.excesses[0].amount == 12 << 20
    assert result.value == 7
    assert nb.run("_").value == 7, "the value is in Out"
    assert "over the limit of 10.0 MiB" in result.text, "the report contains it"
    error_lines = [
        line for line in result.stdout.splitlines() + result.stderr.splitlines() if "GPUMemLimitExceeded" in line
    ]
    assert len(error_lines) == 1, "one line, no traceback"
    assert "Traceback" not in result.stdout + result.stderr
    assert nb.run("1 + 1").success


def test_held(gpu_notebook):
    result = gpu_notebook.run(f"%%gpumem --limit-held 0\nkept = {ALLOCATE.format(8)}")
    assert "held +8.0 MiB, over the limit of 0 (largest part allocated by In [1]:2" in error_message(result)
    assert gpu_notebook.run(f"%%gpumem --limit-held 0\nx = {ALLOCATE.format(8)}; del x").success


def test_outside(gpu_notebook, fake_gpu):
    gpu_notebook.shell.user_ns["gpu"] = fake_gpu
    result = gpu_notebook.run("%%gpumem --limit-outside 50MiB\ngpu.outside(60 << 20)")
    assert "cuda:0 memory outside PyTorch +60.0 MiB, over the limit of 50.0 MiB" in error_message(result)


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark can be reset on Linux")
def test_host(cpu_notebook):
    cpu_notebook.run("%config GPUMem.host_peak = 'reset'")
    gc.collect()  # objects of earlier tests must not be freed during the cell
    result = cpu_notebook.run("%%gpumem --limit-host 20MiB\nx = b'x' * (48 << 20)\n5")
    assert "host peak +" in error_message(result)
    assert "over the limit of 20.0 MiB" in error_message(result)
    assert result.value == 5


def test_gpu_limit_is_met_without_gpu(cpu_notebook):
    result = cpu_notebook.run("%%gpumem --limit 1MiB --limit-held 0\nx = b'x' * (8 << 20)")
    assert result.success
    (note,) = [line for line in result.text.splitlines() if "not checked" in line]
    assert "limits on GPU memory (peak 1.0 MiB, held 0) were not checked because no GPU was measured: " in note
    assert "not checked" not in cpu_notebook.run("%%gpumem --limit-host 10GiB\nx = b'x' * (8 << 20)").text


def test_limit_is_met_before_cuda_is_initialized(fake_gpu):
    with ipygpumem.measure(limit="1 MiB", limit_held=0) as m:
        pass
    assert m.report.devices == {}
    assert m.report.notes == ()


def test_traceback_does_not_keep_the_value_alive(gpu_notebook):
    gpu_notebook.run("import weakref\ndef make():\n    global alive\n    x = " + ALLOCATE.format(8))
    gpu_notebook.run("def make(x):\n    global alive\n    alive = weakref.ref(x)\n    return x")
    result = gpu_notebook.run(f"%gpumem --limit 1MiB make({ALLOCATE.format(8)})")
    assert "over the limit of 1.0 MiB" in error_message(result)
    assert gpu_notebook.run("alive() is None").value is True


def test_several_limits(gpu_notebook):
    text = error_message(gpu_notebook.run(f"%%gpumem --limit 1MiB --limit-held 2MiB\nx = {ALLOCATE.format(8)}"))
    assert "peak +8.0 MiB" in text
    assert "held +8.0 MiB" in text
    assert "\n" not in text


def test_cell_error_takes_precedence(gpu_notebook):
    result = gpu_notebook.run(f"%%gpumem --limit 1MiB\nx = {ALLOCATE.format(8)}\n1/0")
    assert isinstance(result.error, ZeroDivisionError)
    assert "over the limit" in result.text


def test_await_and_nesting(gpu_notebook):
    result = gpu_notebook.run(
        f"%%gpumem --limit 1MiB\nimport asyncio\nawait asyncio.sleep(0)\nx = {ALLOCATE.format(8)}\n7"
    )
    error_message(result)
    assert result.value == 7
    error_message(gpu_notebook.run(f"%%capture\n%%gpumem --limit 1MiB\nx = {ALLOCATE.format(8)}"))
    error_message(gpu_notebook.run(f"get_ipython().run_cell_magic('gpumem', '--limit 1MiB', {ALLOCATE.format(8)!r})"))


def test_setting_applies_to_every_cell_and_records_nothing(gpu_notebook, fake_gpu):
    nb = gpu_notebook
    nb.run("%config GPUMem.limit = '10 MiB'")
    before = fake_gpu.calls["record_memory_history"]
    assert nb.run(f"x = {ALLOCATE.format(8)}; del x").success
    result = nb.run(f"x = {ALLOCATE.format(12)}; del x\n3")
    assert error_message(result) == (
        "In [3]: cuda:0 peak +12.0 MiB, over the limit of 10.0 MiB; "
        "to find the responsible line of code, run this cell with %%gpumem and --limit or --limit-held"
    )
    assert result.value == 3
    assert fake_gpu.calls["record_memory_history"] == before
    assert nb.run(f"%%gpumem --limit 20MiB\nx = {ALLOCATE.format(12)}; del x").success, (
        "the limit of the cell takes precedence"
    )
    error_message(nb.run(f"%%gpumem\nx = {ALLOCATE.format(12)}; del x"))
    nb.run("%config GPUMem.report = 'off'")
    error_message(nb.run(f"x = {ALLOCATE.format(12)}; del x"))
    nb.run("%config GPUMem.limit = None")
    assert nb.run(f"x = {ALLOCATE.format(12)}; del x").success


def test_statement(gpu_notebook):
    result = gpu_notebook.run(f"%gpumem --limit 1MiB x = {ALLOCATE.format(8)}")
    assert "over the limit of 1.0 MiB" in error_message(result)
    assert "cells.py" not in result.stdout + result.stderr, "no traceback into this package"
    assert gpu_notebook.run(f"%gpumem --limit 10MiB {ALLOCATE.format(8)}.shape[0]").value == 8 << 20


def test_unchecked_limit_is_reported(make_gpu, make_notebook):
    from fakes.cuda import FakeNvmlDevice

    make_gpu(nvml_devices=[FakeNvmlDevice(regime="hidden")])
    nb = make_notebook()
    nb.run("import torch", store_history=False)
    nb.load()
    result = nb.run(f"%%gpumem --limit-outside 0\nx = {ALLOCATE.format(8)}")
    assert result.success
    assert "(cuda:0, outside PyTorch) was not checked" in result.text


INVALID_OPTIONS = [
    ("--limit", "expected one argument"),
    ("--limit lots", "'lots' is not a size"),
    ("--limit-held -1", "'-1' is not a size"),
    ("--modules net", "'net' is not defined"),
    ("--modules x", "modules must be a torch.nn.Module, but got int"),
    ("--modules", "expected one argument"),
    ("--stacks all --limit 1GiB", "require --snapshot PATH"),
]


def test_invalid_options_end_cell_before_it_runs(gpu_notebook):
    gpu_notebook.run("x = 3")
    for line, message in INVALID_OPTIONS:
        result = gpu_notebook.run(f"%%gpumem {line}\nran = True")
        assert isinstance(result.error, UsageError)
        assert message in str(result.error)
        assert "ran" not in gpu_notebook.shell.user_ns


def test_model_limits(gpu_notebook):
    nb = gpu_notebook
    nb.run(
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = torch.nn.Identity()\n"
        "    def forward(self, n):\n"
        f"        self.inner(n)\n        return {ALLOCATE.format('n')}\n"
        "nets = torch.nn.ModuleList([Net()])"
    )
    result = nb.run("%%gpumem --modules nets.0\ny = nets[0](12)\n4")
    assert result.value == 4
    (tree,) = nb.last.modules
    assert [(row.path, row.type, row.calls) for row in tree.rows] == [("", "Net", 1), ("inner", "Identity", 1)]
    assert tree.row("").activations == 12 << 20
    for part in ("cuda:0 allocated memory by phase", "cuda:0 allocated memory by kind", "model: Net"):
        assert part in result.text
        assert part in result.displays[0]["text/html"]
    assert not nb.shell.user_ns["torch"].nn.modules.module._global_forward_hooks
    result = nb.run("%%gpumem --modules nets.0\ny = nets[0]('x')")
    assert isinstance(result.error, TypeError)
    assert not nb.shell.user_ns["torch"].nn.modules.module._global_forward_hooks
    assert nb.run("%gpumem --modules nets.0 nets[0](1).shape[0]").value == 1 << 20
    assert nb.run("%%gpumem --modules nets[0]\ny = nets[0](12)\n5").value == 5
    assert [row.type for row in nb.last.modules[0].rows] == ["Net", "Identity"]


def test_unload_during_cell_removes_hooks(gpu_notebook):
    nb = gpu_notebook
    nb.run("net = torch.nn.Identity()")
    nb.run("%%gpumem --modules net --lines\n%unload_ext ipygpumem\nnet(1)")
    torch = nb.shell.user_ns["torch"]
    assert not torch.nn.modules.module._global_forward_hooks
    assert not hasattr(torch.autograd._engine_run_backward, "__wrapped__")
    assert not torch._C._cuda_isHistoryEnabled()
