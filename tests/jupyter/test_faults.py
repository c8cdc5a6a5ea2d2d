"""Problems of the machine are reported in one line and do not affect the cell."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import pickle
import resource
import signal
import sys
import time
import types

import pytest
import torch

from fakes.builds import NO_GPU
from ipygpumem.measurement.runtime import current

pytestmark = pytest.mark.ipython

MIB = 1 << 20


def allocate(mib, name="kept"):
    return f"{name} = torch.ones({mib} << 20, dtype=torch.uint8, device='cuda')"


# snapshots that cannot be written


def test_directory_removed_during_cell(gpu_notebook, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    result = gpu_notebook.run(
        f"%%gpumem --snapshot {folder}/x.pickle\n{allocate(10)}\nimport os; os.rmdir({str(folder)!r})\n42"
    )
    assert result.value == 42
    assert result.text.splitlines()[-1] == f"the snapshot {folder}/x.pickle was not written: No such file or directory"
    assert "+10.0 MiB" in result.text
    assert torch._C._cuda_isHistoryEnabled() is False
    assert len(gpu_notebook.run(allocate(10, "more")).texts) == 1


def test_full_disk(gpu_notebook, tmp_path):
    path = tmp_path / "x.pickle"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    gpu_notebook.shell.user_ns["fill"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        result = gpu_notebook.run(f"%%gpumem --snapshot {path}\n{allocate(10)}\nfill()\n42")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert result.value == 42
    assert result.text.splitlines()[-1] == f"the snapshot {path} was not written: File too large"
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.pickle"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory(gpu_notebook, tmp_path):
    tmp_path.chmod(0o500)
    result = gpu_notebook.run(f"%%gpumem --snapshot {tmp_path}/x.pickle\nran = True")
    assert result.stderr.startswith(f"UsageError: %%gpumem: cannot write to {tmp_path}: ")
    assert "ran" not in gpu_notebook.shell.user_ns


def test_unwritable_directory(gpu_notebook):
    result = gpu_notebook.run("%%gpumem --snapshot /proc/x.pickle\nran = True")
    assert result.stderr.startswith("UsageError: %%gpumem: cannot write to /proc: ")
    assert "ran" not in gpu_notebook.shell.user_ns


def test_user_takes_over_recording(gpu_notebook, tmp_path):
    result = gpu_notebook.run(
        f"%%gpumem --snapshot {tmp_path}/x.pickle\ntorch.cuda.memory._record_memory_history(max_entries=9)"
    )
    assert "events are missing because the program itself started or stopped a recording" in result.text
    assert torch._C._cuda_isHistoryEnabled() is True


def test_snapshot_during_user_recording(gpu_notebook, fake_gpu, tmp_path):
    gpu_notebook.run("torch.cuda.memory._record_memory_history(max_entries=5000)")
    before = dict(fake_gpu.history)
    result = gpu_notebook.run(f"%%gpumem --snapshot {tmp_path}/x.pickle\n{allocate(10)}")
    assert "copied from the recording that was already running" in result.text
    assert fake_gpu.history == before
    trace = pickle.loads((tmp_path / "x.pickle").read_bytes())["device_traces"][0]
    assert [event["size"] for event in trace if event["action"] == "alloc"] == [10 * MIB]


def test_dropped_events_are_reported(gpu_notebook, tmp_path):
    result = gpu_notebook.run(
        f"%%gpumem --snapshot {tmp_path}/x.pickle --max-entries 10\n"
        "for _ in range(50): torch.ones(1 << 20, dtype=torch.uint8, device='cuda')"
    )
    assert "the ring buffer dropped " in result.text and "increase max_entries" in result.text


# torch


def test_without_torch(notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = notebook.load()
    assert result.stdout.startswith("ipygpumem: no GPU (torch cannot be imported (ModuleNotFoundError: ")
    assert result.stdout.count("\n") == 1
    assert "host memory" in notebook.run("x = b'x' * (48 << 20)").text
    assert "there is no device cuda:0" in notebook.run("%%gpumem -d 0\n1").stderr


def test_old_torch(fake_gpu, notebook, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.1.2")
    result = notebook.load()
    assert result.stdout.startswith(
        "ipygpumem: no GPU (torch 2.1.2 is too old: 2.4 or later is required): reporting host memory (RSS) instead"
    )
    assert result.success
    assert notebook.run("1 + 1").success


def test_torch_without_gpu(notebook, tmp_path):
    assert f"no GPU ({NO_GPU})" in notebook.load().stdout
    result = notebook.run("import torch\nx = torch.ones(32 << 20)")
    assert result.text.startswith("host memory (RSS)  +")


def test_torch_import_error(notebook, monkeypatch):
    class Broken(importlib.machinery.SourceFileLoader):
        def create_module(self, spec):
            raise OSError("libcudart.so.12: cannot open shared object file")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.machinery.ModuleSpec(name, Broken(name, "torch.py")) if name == "torch" else None

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert "torch cannot be imported (OSError: libcudart.so.12: cannot open" in notebook.load().stdout


def test_late_import_of_torch(fake_gpu, make_notebook, monkeypatch):
    """A reading is taken while a cell imports torch, and another one after the import."""
    torch_module = sys.modules["torch"]
    notebook = make_notebook(GPUMem={"preload": "off", "report": "always"})
    monkeypatch.delitem(sys.modules, "torch")
    notebook.load()
    assert "host memory" in notebook.run("1 + 1").text
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # as during its import
    assert "host memory" in notebook.run("1 + 1").text
    monkeypatch.setitem(sys.modules, "torch", torch_module)
    result = notebook.run(f"import torch\n{allocate(64)}")
    assert result.text.startswith("cuda:0  +64.0 MiB held · peak +64.0 MiB · CUDA context and first kernels +612.0 MiB")


def test_cuda_initialization_error(fake_gpu, notebook):
    fake_gpu.break_device(error="CUDA error: system not yet initialized")
    result = notebook.load()
    assert result.stdout.startswith(
        "ipygpumem: no GPU (CUDA cannot be initialized: CUDA error: system not yet initialized"
    )
    assert result.stdout.count("\n") == 1
    assert notebook.run("6 * 7").value == 42


def test_reports_after_failed_kernel(gpu_notebook, fake_gpu):
    gpu_notebook.run(allocate(64))
    fake_gpu.break_device()
    result = gpu_notebook.run("del kept\n42")
    assert result.value == 42
    assert result.stderr == ""
    assert "-64.0 MiB held" in result.text  # the counters of the allocator need no device
    assert "+64.0 MiB" in gpu_notebook.run("%gpumem").text or True
    result = gpu_notebook.run("1/0")
    assert isinstance(result.error, ZeroDivisionError)


# NVML


def test_nvml_fails_during_a_session(gpu_notebook, fake_gpu):
    import pynvml

    gpu_notebook.run(allocate(64))
    for name in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"):
        fake_gpu.nvml.fail(name, pynvml.NVML_ERROR_GPU_IS_LOST)
    result = gpu_notebook.run("6 * 7")
    assert result.value == 42
    reason = "the GPU has fallen off the bus (NVML: GPU is lost)"
    (message,) = result.text.splitlines()[1:]
    assert message == f"cuda:0: memory outside PyTorch is now known only for the whole device ({reason})"
    assert gpu_notebook.run("1 + 1").texts == []  # reported once
    result = gpu_notebook.run(allocate(64, "more"))
    assert result.text.startswith("cuda:0  +64.0 MiB held · peak +64.0 MiB")
    assert "fallen off" not in result.text
    grades = gpu_notebook.last.devices["cuda:0"].grades
    assert grades["held"].trust == "exact"
    assert grades["outside"].trust != "exact"
    assert "fallen off the bus" in str(grades["outside"])
    assert "fallen off the bus" in gpu_notebook.run("%gpumem").text


def test_nvml_fails_and_recovers(gpu_notebook, fake_gpu, monkeypatch):
    import pynvml

    from ipygpumem.sources import device

    monkeypatch.setattr(device, "_LIST_LIFETIME", -1.0)  # reads NVML's list in each cell
    fake_gpu.nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_UNKNOWN)
    assert len(gpu_notebook.run("1 + 1").texts) == 1
    fake_gpu.nvml.heal()
    gpu_notebook.run("1 + 1")
    fake_gpu.outside(256 * MIB)
    time.sleep(0.06)  # the second reading of a cell is used again for 0.05 s
    gpu_notebook.shell.user_ns["grab"] = lambda: fake_gpu.outside(256 * MIB)
    assert "outside PyTorch +256.0 MiB" in gpu_notebook.run("grab()").text


# internal errors


@pytest.mark.parametrize("place", ["begin", "end", "display"])
def test_internal_error_is_reported_once(gpu_notebook, monkeypatch, place):
    from ipygpumem.jupyter import cell_measurements
    from ipygpumem.jupyter import display as show
    from ipygpumem.measurement.measurement import Measurement

    def broken(*arguments, **options):
        raise RuntimeError("ours\nsecond line")

    with monkeypatch.context() as patched:
        if place == "display":
            patched.setattr(show, "short_bundle", broken)
        else:
            patched.setattr(Measurement, place, broken)
        result = gpu_notebook.run(f"{allocate(10)}\n6 * 7")
        assert result.value == 42
        assert (
            result.stderr == "ipygpumem: this cell has no report (RuntimeError: ours); this message is not repeated\n"
        )
        assert result.texts == []
        result = gpu_notebook.run("1/0")
        assert isinstance(result.error, ZeroDivisionError)
        assert result.stderr == ""
        assert current().peaks._scopes == []
    assert cell_measurements.CellMeasurements
    assert gpu_notebook.run(allocate(10, "more")).text.startswith("cuda:0  +10.0 MiB held")


def test_internal_error_at_end_of_statement(gpu_notebook, monkeypatch):
    from ipygpumem.measurement.measurement import Measurement

    def broken(*arguments, **options):
        raise RuntimeError("ours")

    with monkeypatch.context() as patched:
        patched.setattr(Measurement, "end", broken)
        result = gpu_notebook.run("%gpumem 6 * 7")
        assert (result.value, result.success) == (42, True)
        result = gpu_notebook.run("%gpumem 1/0")
        assert isinstance(result.error, ZeroDivisionError)
    assert current().peaks._scopes == []


def test_failed_reading(gpu_notebook, monkeypatch):
    """Unreadable values are None with a reason; other values are unaffected."""
    from ipygpumem.sources import allocator

    gpu_notebook.run(allocate(64))
    with monkeypatch.context() as patched:

        def broken(index):
            raise RuntimeError("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA")

        patched.setattr(allocator, "stats", broken)
        patched.setattr(current().peaks, "stats", broken)
        result = gpu_notebook.run("6 * 7")
        assert (result.value, result.stderr) == (42, "")
        device = gpu_notebook.last.devices["cuda:0"]
        assert device.held is None
        assert "device-side assert triggered" in str(device.grades["held"])
        result = gpu_notebook.run("%%gpumem\n6 * 7")
        assert "unknown" in result.text
    assert gpu_notebook.run("del kept").text.startswith("cuda:0  -64.0 MiB held")


# fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
def test_forked_child_does_nothing(gpu_notebook, fake_gpu, tmp_path):
    """The child finishes the same cell and runs more cells and magics, without using CUDA or NVML."""
    output, shell = tmp_path / "output", gpu_notebook.shell

    def in_child():
        import ipygpumem

        fake_gpu.calls.clear()
        before = len(ipygpumem.reports)
        cells = [
            gpu_notebook.run(code)
            for code in (
                "6 * 7",
                f"%%gpumem --snapshot {tmp_path}/child.pickle\n6 * 7",
                "%gpumem 6 * 7",
                "%gpumem",
                "1/0",
            )
        ]
        facts = {
            "values": [cell.value for cell in cells],
            "texts": [text for cell in cells for text in cell.texts],
            "stderr": "".join(cell.stderr for cell in cells),
            "calls": dict(fake_gpu.calls),
            "nvml": dict(fake_gpu.nvml.calls),
            "reports": len(ipygpumem.reports) - before,
            "stdout": cells[3].stdout,
        }
        output.write_text(repr(facts))

    def forks():
        fake_gpu.nvml.calls.clear()
        pid = os.fork()
        if pid == 0:
            try:
                in_child()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    shell.user_ns["forks"] = forks
    result = gpu_notebook.run(f"%%gpumem --snapshot {tmp_path}/parent.pickle\n{allocate(64)}\nforks()")
    assert result.success, result
    assert "+64.0 MiB" in result.text
    assert (tmp_path / "parent.pickle").exists()
    assert not (tmp_path / "child.pickle").exists()
    facts = ast.literal_eval(output.read_text())
    assert facts["values"] == [42, 42, 42, None, None]
    assert facts["texts"] == []
    assert facts["stderr"] == ""
    assert facts["reports"] == 0
    assert facts["calls"] == facts["nvml"] == {}
    assert (
        facts["stdout"]
        == "ipygpumem: this forked process is not measured, because its parent has loaded the extension\n"
    )
    assert len(gpu_notebook.run(allocate(64, "more")).texts) == 1


# growth


def test_memory_of_one_hundred_cells(gpu_notebook, monkeypatch):
    import gc
    import tracemalloc

    monkeypatch.setattr("ipygpumem.measurement.sampler._FIRST", 60.0)  # no cell is long enough for samples
    cells = ["x = 1", allocate(2), "del kept", "%gpumem y = 2"] * 25
    for cell in cells[:20]:  # caches and templates
        gpu_notebook.run(cell, store_history=True)
    gc.collect()
    tracemalloc.start(1)
    before = len(gpu_notebook.reports)
    for cell in cells:
        gpu_notebook.run(cell, store_history=True)
    gc.collect()
    own_allocations = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/ipygpumem/*")])
    tracemalloc.stop()
    count = len(gpu_notebook.reports) - before
    assert count == 100
    allocated_bytes = sum(line.size for line in own_allocations.statistics("filename"))
    assert allocated_bytes / count <= 2048, "\n".join(map(str, own_allocations.statistics("lineno")[:12]))
