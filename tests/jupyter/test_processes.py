"""Other processes in a notebook: in a cell's line and table, in %gpumem, in the panel, and on their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ipygpumem
from ipygpumem.sources import process_names as processes

GIB = 1 << 30


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setattr(processes, "_nested", lambda: False)
    found = subprocess.Popen(["/bin/sleep", "60"])
    yield found
    found.kill()
    found.wait()


@pytest.fixture
def notebook(gpu_notebook, fake_gpu, child):
    def others(**amounts):
        fake_gpu.nvml_device.others.clear()
        fake_gpu.nvml_device.others.update({int(name[1:]): size for name, size in amounts.items()})

    gpu_notebook.shell.user_ns.update(others=others, child=f"p{child.pid}", GIB=GIB)
    return gpu_notebook


def test_a_cell_in_which_nobody_else_moved_names_nobody(notebook):
    notebook.run("others(**{child: 3 * GIB})")
    ran = notebook.run("import torch\nx = torch.ones(1 << 22, device='cuda')")
    assert "pid" not in ran.text
    assert notebook.last.neighbours == ()


def test_a_cell_in_which_others_moved_names_them(notebook, child):
    ran = notebook.run("others(**{child: 3 * GIB}, p4194303=GIB)\ny = torch.ones(1 << 22, device='cuda')")
    assert ran.text.splitlines()[1] == (
        f"cuda:0 other processes: pid {child.pid} (sleep, child of this process) began, +3.0 GiB · "
        "pid 4194303 came, +1.0 GiB"
    )
    child.kill()
    child.wait()
    ran = notebook.run("others(p4194303=2 * GIB)\ndel y")
    assert ran.text.splitlines()[1] == (
        f"cuda:0 other processes: pid {child.pid} (sleep, child of this process) ended, -3.0 GiB · pid 4194303 +1.0 GiB"
    )
    report = notebook.last
    assert sum(one.change for one in report.neighbours) == report.devices["cuda:0"].others
    assert "pid 4194303" in ran.displays[0]["text/html"]


def test_what_is_left_without_its_process_ending(notebook, child):
    notebook.run("others(**{child: 3 * GIB})")
    ran = notebook.run("others()\nz = torch.ones(1 << 22, device='cuda')")
    assert f"pid {child.pid} (sleep, child of this process) left, -3.0 GiB" in ran.text


def test_the_full_table_has_a_row_for_each(notebook, child):
    notebook.run("others(**{child: 3 * GIB})")
    ran = notebook.run("%%gpumem\nothers(**{child: 3 * GIB}, p4194303=GIB)")
    at = next(i for i, line in enumerate(ran.text.splitlines()) if "other processes" in line)
    lines = [line.split() for line in ran.text.splitlines()[at : at + 3]]
    assert lines[0] == ["other", "processes", "+1.0", "GiB", "4.0", "GiB"]
    assert lines[1] == ["pid", "4194303", "+1.0", "GiB", "1.0", "GiB", "came"]
    assert lines[2] == [
        *("pid", str(child.pid), "(sleep,", "child", "of", "this", "process)"),
        *("0", "3.0", "GiB"),
    ]


def test_many_neighbours_are_summed(notebook):
    crowd = ", ".join(f"p{4194303 - i}={i + 1} * GIB" for i in range(8))
    ran = notebook.run(f"%%gpumem\nothers({crowd})")
    assert "    3 more" in ran.text
    assert next(line for line in ran.text.splitlines() if "3 more" in line).split()[2:] == ["+6.0", "GiB", "6.0", "GiB"]
    ran = notebook.run("%gpumem")
    assert next(line for line in ran.text.splitlines() if "3 more" in line).split()[2:] == ["6.0", "GiB"]
    ran = notebook.run("others()\nw = torch.ones(1 << 22, device='cuda')")
    assert ran.text.splitlines()[1].endswith("pid 4194298 left, -6.0 GiB · 5 more -15.0 GiB")


def test_the_books_name_them(notebook, child):
    ran = notebook.run("others(**{child: 3 * GIB})\n%gpumem")
    assert f"pid {child.pid} (sleep, child of this process)" in ran.texts[0]


def test_the_panel_names_who_is_in_the_way(notebook, child):
    notebook.run("others(**{child: 130 * GIB})")
    ran = notebook.run("torch.ones(20 << 30, dtype=torch.uint8, device='cuda')")
    (panel,) = ran.texts
    assert f"pid {child.pid} (sleep, child of this process)" in panel
    assert (
        f"another process is in the way: pid {child.pid} (sleep, child of this process) holds 130.0 GiB of this card"
        in panel
    )


def test_the_command(notebook, child):
    notebook.run("others(**{child: 3 * GIB}, p4194303=GIB)")
    ran = notebook.run("%gpumem processes")
    lines = [" ".join(line.split()) for line in ran.text.splitlines()]
    assert lines[0] == "cuda:0 NVIDIA H200"
    assert lines[2].startswith(f"pid {os.getpid()} this process ")
    assert lines[3].startswith(f"pid {child.pid} child ")
    assert lines[3].endswith("sleep 60")
    assert lines[4].startswith("pid 4194303 unknown 1.0 GiB")
    assert lines[4].endswith("it has ended, or this system hides it")
    assert lines[-1].startswith("used, as nvidia-smi shows it")
    assert "pid 4194303" in ran.displays[0]["text/html"]
    (card,) = notebook.run("%gpumem processes -o -q").value
    parts = [card.own, card.unattributed, *(one.amount for one in card.neighbours)]
    assert sum(parts) == card.used
    assert notebook.run("%gpumem processes -q -v found").texts == []
    assert notebook.shell.user_ns["found"] == (card,)
    assert ipygpumem.processes(device=["cuda:0"]) == (card,)
    assert repr(ipygpumem.processes()) == ran.text, "read, not decoded, at the end of a cell"


@pytest.mark.parametrize("words", ["processes -d cuda:7", "processes everybody", "processes --all", "processes -v 1x"])
def test_words_that_mean_nothing_are_one_line(notebook, words):
    ran = notebook.run(f"%gpumem {words}")
    assert type(ran.error).__name__ == "UsageError"
    assert "\n" not in str(ran.error)


def test_before_cuda_starts_every_card_is_told(fake_gpu, make_notebook, child):
    fake_gpu.nvml_device.others[child.pid] = 3 * GIB
    notebook = make_notebook(GPUMem={"preload": "off"})
    notebook.load()
    ran = notebook.run("%gpumem processes")
    assert ran.text.splitlines()[0] == "card 0 NVIDIA H200"
    assert f"pid {child.pid}" in ran.text
    assert "not looked up" in ran.text, "nobody knows yet whose numbers these are"
    assert not fake_gpu[0].context


def test_without_a_driver_it_is_one_line(make_notebook, fake_nvml):
    fake_nvml.present = False
    notebook = make_notebook()
    notebook.load()
    ran = notebook.run("%gpumem processes")
    assert str(ran.error) == "%gpumem processes: no NVIDIA driver library (libnvidia-ml) on this machine"


def test_a_driver_that_refuses_is_told_with_its_card(notebook, fake_gpu):
    import pynvml

    for version in ("v3", "v2"):
        fake_gpu.nvml.fail(f"nvmlDeviceGetComputeRunningProcesses_{version}", pynvml.NVML_ERROR_NO_PERMISSION)
    ran = notebook.run("%gpumem processes")
    assert "no permission for the NVML query" in ran.text


def test_names_that_cannot_be_had_cost_no_report(notebook, monkeypatch):
    monkeypatch.setattr(processes.ProcessDirectory, "lookup", lambda *_, **__: 1 / 0)
    ran = notebook.run("others(p4194303=GIB)\nv = torch.ones(1 << 22, device='cuda')")
    assert "other processes have no names: division by zero" in ran.text
    assert notebook.last.devices["cuda:0"].others == GIB


def test_looking_costs_nothing_where_nobody_moves(notebook, monkeypatch):
    notebook.run("others(p4194303=GIB)\nu = torch.ones(1 << 22, device='cuda')")
    monkeypatch.setattr(processes, "_look", lambda *_, **__: pytest.fail("a process was looked up"))
    notebook.run("del u")
    assert notebook.last.notes == ()


def test_who_was_there_before_anything_began_is_known_when_it_ends(fake_gpu, child):
    fake_gpu.alloc(1 << 20)
    fake_gpu.nvml_device.others[child.pid] = 3 * GIB
    with ipygpumem.measure():
        pass
    child.kill()
    child.wait()
    with ipygpumem.measure() as m:
        fake_gpu.nvml_device.others.clear()
    assert [(one.neighbour.name, one.event) for one in m.report.neighbours] == [("sleep", "ended")]


def test_the_help_has_it(notebook):
    assert "%gpumem processes" in notebook.run("%gpumem --help").stdout
    assert sys.modules["ipygpumem.jupyter.completion"].candidates("%gpumem proc") == ["processes"]
