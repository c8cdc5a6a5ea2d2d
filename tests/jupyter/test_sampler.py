"""Sampled peaks in a notebook's reports, and the end of the sampler thread after unloading."""

from __future__ import annotations

import re
import threading

from ipygpumem import Snapshot

CELL = """
def passing():
    gpu.wait_for_samples(); gpu.outside(1200 << 20); gpu.wait_for_samples(); gpu.outside(-1200 << 20)
"""


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ipygpumem")]


def test_peak_outside_pytorch_within_a_cell(gpu_notebook, fake_gpu):
    gpu_notebook.shell.user_ns["gpu"] = fake_gpu
    gpu_notebook.run(CELL)
    text = gpu_notebook.run("passing()").text
    assert re.search(r"outside PyTorch, at least \+1.2 GiB at [\d.]+ m?s \(sampled, largest gap [\d.]+ m?s; ", text)
    table = gpu_notebook.run("%%gpumem\npassing()").text
    (row,) = [line for line in table.splitlines() if line.startswith("  outside PyTorch")]
    assert row.split() == ["outside", "PyTorch", "0", "at", "least", "+1.2", "GiB", "678.0", "MiB"]
    assert "samples of the device's memory (first after " in table
    assert gpu_notebook.run("%gpumem passing()").text.startswith("cuda:0  outside PyTorch, at least +1.2 GiB at")
    html = gpu_notebook.run("passing()").displays[0]["text/html"]
    assert "at least +1.2 GiB" in html
    assert threads() == ["ipygpumem-sampler"]
    gpu_notebook.run("%unload_ext ipygpumem")
    assert threads() == []


def test_unload_within_cell(gpu_notebook, fake_gpu):
    gpu_notebook.shell.user_ns["gpu"] = fake_gpu
    assert gpu_notebook.run("gpu.wait_for_samples()\n%unload_ext ipygpumem\nimport time; time.sleep(0.05)").success
    assert threads() == []
    gpu_notebook.load()
    gpu_notebook.run(CELL)
    assert "at least +1.2 GiB" in gpu_notebook.run("passing()").text


def test_peaks_of_several_cells(gpu_notebook, fake_gpu, tmp_path):
    gpu_notebook.shell.user_ns["gpu"] = fake_gpu
    gpu_notebook.run(CELL)
    gpu_notebook.run("%gpumem record start")
    first = gpu_notebook.shell.execution_count
    gpu_notebook.run("passing()")
    gpu_notebook.run("1 + 1")
    gpu_notebook.run("passing()")
    gpu_notebook.run(f"%gpumem record save {tmp_path / 'x.pickle'}")
    gpu_notebook.run("%gpumem record stop")
    metadata = Snapshot.load(tmp_path / "x.pickle").own
    curve = metadata.curves["outside PyTorch"]
    assert max(curve["bytes"]) - min(curve["bytes"]) == 1200 << 20
    cells = {cell.number: cell for cell in metadata.cells}
    for cell in (cells[first], cells[first + 2]):
        assert any(cell.start_us <= time_us <= cell.end_us for time_us in curve["time_us"])
