"""The extension in a real kernel on a real GPU, as a person would use it."""

import pickle
import re

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def execute(*cells, allow_errors=False):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=240, allow_errors=allow_errors).execute()
    return notebook


def texts(cell):
    return [out["data"]["text/plain"] for out in cell.outputs if out.output_type == "display_data"]


def printed(cell):
    return "".join(out["text"] for out in cell.outputs if out.output_type == "stream")


def test_first_five_minutes(tmp_path):
    path = tmp_path / "cell.pickle"
    cells = execute(
        "%load_ext ipygpumem",
        "import torch\nx = torch.ones(100 << 20, dtype=torch.uint8, device='cuda')",
        "1 + 1",
        "y = torch.empty(300 << 20, dtype=torch.uint8, device='cuda'); del y",
        f"%%gpumem --snapshot {path}\nz = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')\nz.shape",
        "%gpumem",
        "%unload_ext ipygpumem",
        "w = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')",
    ).cells
    assert re.search(
        r"ipygpumem: cuda:0 NVIDIA .*, \d+\.\d GiB; baseline \d+ MiB \(context \d+, first kernels \d+\);"
        r".* a report follows every cell that moves memory",
        printed(cells[0]),
    )
    [line] = texts(cells[1])
    assert line.startswith("cuda:0  +100.0 MiB held · peak +100.0 MiB")
    assert "In [2]" in line
    assert texts(cells[2]) == []
    [line] = texts(cells[3])
    assert "peak +300.0 MiB · cache +300.0 MiB" in line
    assert "held" not in line
    [table] = texts(cells[4])
    assert "allocated (tensors)" in table
    assert "outside PyTorch" in table
    assert f"snapshot {path}" in table
    assert re.search(r"In\[5\]:2 .*torch\.ones.* +64\.0 MiB +1\n", table)
    assert "rounding by the allocator" in table
    assert cells[4].outputs[0]["data"]["text/plain"] == "torch.Size([67108864])"
    snapshot = pickle.loads(path.read_bytes())
    cell = snapshot["ipygpumem"]["cells"][0]
    assert cell["number"] == 5
    assert snapshot["source_code"][cell["filename"]].startswith("%%gpumem --snapshot")
    frames = [f["filename"] for e in snapshot["device_traces"][0] for f in e.get("frames", ())]
    assert cell["filename"] in frames
    [books] = texts(cells[5])
    assert "driver reserved" in books
    assert "CUDA context" in books
    assert texts(cells[7]) == []


def test_out_of_memory_cell_keeps_its_error_and_its_snapshot(tmp_path):
    path = tmp_path / "oom.pickle"
    cells = execute(
        "%load_ext ipygpumem\nimport torch",
        f"%%gpumem --snapshot {path}\na = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "b = torch.empty(1 << 50, dtype=torch.uint8, device='cuda')",
        "torch.cuda.memory_allocated() > 1 << 30",
        allow_errors=True,
    ).cells
    assert [out.ename for out in cells[1].outputs if out.output_type == "error"] == ["OutOfMemoryError"]
    [table] = texts(cells[1])
    assert "ran out of memory" in table
    assert path.exists()
    assert any(event["action"] == "oom" for event in pickle.loads(path.read_bytes())["device_traces"][0])


def test_preload_off_leaves_cuda_alone():
    cells = execute(
        "get_ipython().config.GPUMem.preload = 'off'\n%load_ext ipygpumem",
        "import torch\ntorch.cuda.is_initialized()",
        "x = torch.ones(1 << 20, device='cuda')",
        "y = torch.ones(1 << 20, device='cuda')",
        "import ipygpumem\nipygpumem.session.current().baseline.device",
    ).cells
    assert "CUDA is left alone" in printed(cells[0])
    assert cells[1].outputs[0]["data"]["text/plain"] == "False"
    [line] = texts(cells[2])
    assert re.search(r"CUDA context and first kernels \+\d{3}\.\d MiB", line)
    [line] = texts(cells[3])
    assert "context" not in line
    assert cells[4].outputs[0]["data"]["text/plain"] == "'cuda:0'"


def test_recording_across_cells(tmp_path):
    path = tmp_path / "run.pickle"
    cells = execute(
        "%load_ext ipygpumem\nimport torch",
        "%gpumem record start",
        "a = torch.ones(8 << 20, dtype=torch.uint8, device='cuda')",
        "b = torch.ones(8 << 20, dtype=torch.uint8, device='cuda')",
        f"%gpumem record save {path}",
        "%gpumem record stop",
        "torch._C._cuda_isHistoryEnabled()",
    ).cells
    assert "still recording" in texts(cells[2])[0]
    snapshot = pickle.loads(path.read_bytes())
    numbers = [cell["number"] for cell in snapshot["ipygpumem"]["cells"]]
    assert {3, 4} <= set(numbers)
    assert len(snapshot["source_code"]) >= 2
    assert cells[6].outputs[0]["data"]["text/plain"] == "False"
