"""Other processes in a cell's report, in ``%gpumem``, in the out-of-memory panel and in ``%gpumem processes``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ipygpumem
from ipygpumem.sources import host

GIB = 1 << 30


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setattr(host, "_may_be_nested", lambda: False)
    process = subprocess.Popen(["/bin/sleep", "300"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def notebook(gpu_notebook, fake_gpu, child):
    def other_processes(**amounts):
        fake_gpu.nvml_device.others.clear()
        fake_gpu.nvml_device.others.update({int(name[1:]): size for name, size in amounts.items()})

    gpu_notebook.shell.user_ns.update(others=other_processes, child=f"p{child.pid}", GIB=GIB)
    return gpu_notebook


def test_unchanged_processes_are_not_reported(notebook):
    notebook.run("others(**{child: 3 * GIB})")
    result = notebook.run("import torch\nx = torch.ones(1 << 22, device='cuda')")
    assert "pid" not in result.text
    assert notebook.last.neighbours == ()


def test_changed_processes_are_reported(notebook, child):
    result = notebook.run("others(**{child: 3 * GIB}, p4194303=GIB)\ny = torch.ones(1 << 22, device='cuda')")
    assert result.text.splitlines()[1] == (
        f"cuda:0 other processes: pid {child.pid} (sleep, child of this process) started, +3.0 GiB · "
        "pid 4194303 started using the GPU, +1.0 GiB"
    )
    child.kill()
    child.wait()
    result = notebook.run("others(p4194303=2 * GIB)\ndel y")
    assert result.text.splitlines()[1] == (
        f"cuda:0 other processes: pid {child.pid} (sleep, child of this process) ended, -3.0 GiB · pid 4194303 +1.0 GiB"
    )
    report = notebook.last
    assert sum(change.change for change in report.neighbours) == report.devices["cuda:0"].others
    assert "pid 4194303" in result.displays[0]["text/html"]


def test_process_that_stops_using_the_gpu(notebook, child):
    notebook.run("others(**{child: 3 * GIB})")
    result = notebook.run("others()\nz = torch.ones(1 << 22, device='cuda')")
    assert f"pid {child.pid} (sleep, child of this process) stopped using the GPU, -3.0 GiB" in result.text


def test_full_table_has_a_row_per_process(notebook, child):
    notebook.run("others(**{child: 3 * GIB})")
    result = notebook.run("%%gpumem\nothers(**{child: 3 * GIB}, p4194303=GIB)")
    at = next(i for i, line in enumerate(result.text.splitlines()) if "other processes" in line)
    lines = [line.split() for line in result.text.splitlines()[at : at + 3]]
    assert lines[0] == ["other", "processes", "+1.0", "GiB", "4.0", "GiB"]
    assert lines[1] == ["pid", "4194303", "+1.0", "GiB", "1.0", "GiB", "started", "using", "the", "GPU"]
    assert lines[2] == [
        *("pid", str(child.pid), "(sleep,", "child", "of", "this", "process)"),
        *("0", "3.0", "GiB"),
    ]


def test_further_processes_are_summed(notebook):
    arguments = ", ".join(f"p{4194303 - i}={i + 1} * GIB" for i in range(8))
    result = notebook.run(f"%%gpumem\nothers({arguments})")
    assert "    3 more" in result.text
    assert next(line for line in result.text.splitlines() if "3 more" in line).split()[2:] == [
        "+6.0",
        "GiB",
        "6.0",
        "GiB",
    ]
    result = notebook.run("%gpumem")
    assert next(line for line in result.text.splitlines() if "3 more" in line).split()[2:] == ["6.0", "GiB"]
    result = notebook.run("others()\nw = torch.ones(1 << 22, device='cuda')")
    assert result.text.splitlines()[1].endswith("pid 4194298 stopped using the GPU, -6.0 GiB · 5 others: -15.0 GiB")


def test_breakdown_names_other_processes(notebook, child):
    result = notebook.run("others(**{child: 3 * GIB})\n%gpumem")
    assert f"pid {child.pid} (sleep, child of this process)" in result.texts[0]


def test_oom_panel_names_other_processes(notebook, child):
    notebook.run("others(**{child: 130 * GIB})")
    result = notebook.run("torch.ones(20 << 30, dtype=torch.uint8, device='cuda')")
    (panel,) = result.texts
    assert f"pid {child.pid} (sleep, child of this process)" in panel
    sentence = f"another process uses 130.0 GiB on this device: pid {child.pid} (sleep, child of this process)"
    assert sentence in panel


def test_command(notebook, child):
    notebook.run("others(**{child: 3 * GIB}, p4194303=GIB)")
    result = notebook.run("%gpumem processes")
    lines = [" ".join(line.split()) for line in result.text.splitlines()]
    assert lines[0] == "cuda:0 NVIDIA H200"
    assert lines[2].startswith(f"pid {os.getpid()} this process ")
    assert lines[3].startswith(f"pid {child.pid} child ")
    assert lines[3].endswith("sleep 300")
    assert lines[4].startswith("pid 4194303 unknown 1.0 GiB")
    assert lines[4].endswith("the process has ended or is hidden from this user")
    assert lines[-1].startswith("used (nvidia-smi)")
    assert "pid 4194303" in result.displays[0]["text/html"]
    (device,) = notebook.run("%gpumem processes -o -q").value
    parts = [device.own, device.unattributed, *(process.amount for process in device.neighbours)]
    assert sum(parts) == device.used
    assert notebook.run("%gpumem processes -q -v found").texts == []
    assert notebook.shell.user_ns["found"] == (device,)
    assert ipygpumem.processes(device=["cuda:0"]) == (device,)
    assert repr(ipygpumem.processes()) == result.text, "the table is shown for a statement at the end of a cell"


@pytest.mark.parametrize("words", ["processes -d cuda:7", "processes everybody", "processes --all", "processes -v 1x"])
def test_invalid_arguments_are_one_line(notebook, words):
    result = notebook.run(f"%gpumem {words}")
    assert type(result.error).__name__ == "UsageError"
    assert "\n" not in str(result.error)


def test_all_devices_are_listed_before_cuda_is_initialized(fake_gpu, make_notebook, child):
    fake_gpu.nvml_device.others[child.pid] = 3 * GIB
    notebook = make_notebook(GPUMem={"preload": "off"})
    notebook.load()
    result = notebook.run("%gpumem processes")
    assert result.text.splitlines()[0] == "GPU 0 NVIDIA H200"
    assert f"pid {child.pid}" in result.text
    assert "not looked up" in result.text
    assert not fake_gpu[0].context


def test_missing_driver_is_one_line(make_notebook, fake_nvml):
    fake_nvml.present = False
    notebook = make_notebook()
    notebook.load()
    result = notebook.run("%gpumem processes")
    assert str(result.error) == "%gpumem processes: the NVIDIA driver library (libnvidia-ml) is not installed"


def test_nvml_error_is_shown_with_its_device(notebook, fake_gpu):
    import pynvml

    for version in ("v3", "v2"):
        fake_gpu.nvml.fail(f"nvmlDeviceGetComputeRunningProcesses_{version}", pynvml.NVML_ERROR_NO_PERMISSION)
    result = notebook.run("%gpumem processes")
    assert "no permission for the NVML query" in result.text


def test_lookup_error_keeps_the_report(notebook, monkeypatch):
    monkeypatch.setattr(host.ProcessInfoCache, "lookup", lambda *_, **__: 1 / 0)
    result = notebook.run("others(p4194303=GIB)\nv = torch.ones(1 << 22, device='cuda')")
    assert "this report has no names of other processes: division by zero" in result.text
    assert notebook.last.devices["cuda:0"].others == GIB


def test_no_lookup_without_change(notebook, monkeypatch):
    notebook.run("others(p4194303=GIB)\nu = torch.ones(1 << 22, device='cuda')")
    monkeypatch.setattr(host, "_look_up", lambda *_, **__: pytest.fail("a process was looked up"))
    notebook.run("del u")
    assert notebook.last.notes == ()


def test_process_from_before_first_measurement_is_named_when_it_ends(fake_gpu, child):
    fake_gpu.alloc(1 << 20)
    fake_gpu.nvml_device.others[child.pid] = 3 * GIB
    with ipygpumem.measure():
        pass
    child.kill()
    child.wait()
    with ipygpumem.measure() as m:
        fake_gpu.nvml_device.others.clear()
    assert [(change.neighbour.name, change.event) for change in m.report.neighbours] == [("sleep", "ended")]


def test_help_lists_the_command(notebook):
    assert "%gpumem processes" in notebook.run("%gpumem --help").stdout
    assert sys.modules["ipygpumem.jupyter.commands"].candidates("%gpumem proc") == ["processes"]
