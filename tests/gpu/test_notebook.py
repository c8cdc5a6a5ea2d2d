"""The extension in a real kernel on a real GPU, as in interactive use."""

import ast
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


def stdout(cell):
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
        r".* a report follows every cell that changes memory",
        stdout(cells[0]),
    )
    [line] = texts(cells[1])
    assert line.startswith("cuda:0  +100.0 MiB held · peak +100.0 MiB")
    assert "In [2]" in line
    assert texts(cells[2]) == []
    [line] = texts(cells[3])
    assert "peak +300.0 MiB · cache +300.0 MiB" in line
    assert "held" not in line
    [table] = texts(cells[4])
    assert table.startswith("cuda:0 at its peak, by line of code\n")
    assert re.search(r"In \[5\]:2: z = torch\.ones.* +64\.0 MiB +1\n", table)
    assert "cuda:0  +64.0 MiB held · peak +64.0 MiB" in table
    assert f"snapshot {path}" in table
    assert cells[4].outputs[0]["data"]["text/plain"] == "torch.Size([67108864])"
    snapshot = pickle.loads(path.read_bytes())
    cell = snapshot["ipygpumem"]["cells"][0]
    assert cell["number"] == 5
    assert snapshot["source_code"][cell["filename"]].startswith("%%gpumem --snapshot")
    frames = [f["filename"] for e in snapshot["device_traces"][0] for f in e.get("frames", ())]
    assert cell["filename"] in frames
    [breakdown] = texts(cells[5])
    assert "driver reserved" in breakdown
    assert "CUDA context" in breakdown
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
    table, panel = texts(cells[1])
    assert "ran out of memory" in table
    assert "is out of memory" in panel
    assert path.exists()
    assert any(event["action"] == "oom" for event in pickle.loads(path.read_bytes())["device_traces"][0])


def test_preload_off_does_not_initialize_cuda():
    cells = execute(
        "get_ipython().config.GPUMem.preload = 'off'\n%load_ext ipygpumem",
        "import torch\ntorch.cuda.is_initialized()",
        "x = torch.ones(1 << 20, device='cuda')",
        "y = torch.ones(1 << 20, device='cuda')",
        "import ipygpumem\nipygpumem.measurement.runtime.current().baseline.device",
    ).cells
    assert "CUDA is not initialized" in stdout(cells[0])
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
        "getattr(torch.cuda.memory, '_get_memory_metadata', str)()",
    ).cells
    assert "recording allocation history" in texts(cells[2])[0]
    snapshot = pickle.loads(path.read_bytes())
    numbers = [cell["number"] for cell in snapshot["ipygpumem"]["cells"]]
    assert {3, 4} <= set(numbers)
    assert len(snapshot["source_code"]) >= 2
    assert cells[6].outputs[0]["data"]["text/plain"] == "False"
    allocations = [event for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
    metadata = [event.get("user_metadata") for event in allocations if event["size"] == 8 << 20]
    assert metadata in (["In[3]", "In[4]"], [None, None])  # PyTorch before 2.10 has no user metadata
    assert cells[7].outputs[0]["data"]["text/plain"] == "''"


def test_failed_kernel_in_session():
    cells = execute(
        "%load_ext ipygpumem\nimport torch\nx = torch.zeros(10, device='cuda')",
        "x[torch.tensor([100], device='cuda')]\ntorch.cuda.synchronize()",
        "kept = bytearray(10)",
        "%gpumem",
        allow_errors=True,
    ).cells
    assert [out.ename for out in cells[1].outputs if out.output_type == "error"]
    assert all(out.output_type != "error" for cell in cells[2:] for out in cell.outputs)
    assert "device used" in texts(cells[3])[0] or "used" in texts(cells[3])[0]


def test_unload_and_reload_do_not_change_user_counters():
    cells = execute(
        "import torch\nx = torch.empty(1 << 20, dtype=torch.uint8, device='cuda')\n"
        "torch.cuda.reset_peak_memory_stats()\n%load_ext ipygpumem",
        "torch.empty(500 << 20, dtype=torch.uint8, device='cuda');",
        "torch.empty(10 << 20, dtype=torch.uint8, device='cuda');",
        "torch.cuda.max_memory_allocated() >> 20",
        "%unload_ext ipygpumem\ntorch.cuda.max_memory_allocated() >> 20",
        "%load_ext ipygpumem\ntorch.cuda.max_memory_allocated() >> 20",
        "%unload_ext ipygpumem\ntorch.cuda.reset_peak_memory_stats()\ntorch._C._cuda_memoryStats.__name__",
        "hasattr(torch._C._cuda_memoryStats, '__wrapped__'), torch.cuda.max_memory_allocated() >> 20",
    ).cells
    peaks = [int(cell.outputs[-1]["data"]["text/plain"]) for cell in (cells[3], cells[5])]
    assert peaks[0] == peaks[1] >= 501
    results = [out["data"]["text/plain"] for out in cells[4].outputs if out.output_type == "execute_result"]
    assert results == [str(peaks[0])]
    wrapped, after = ast.literal_eval(cells[7].outputs[0]["data"]["text/plain"])
    assert wrapped is False
    assert after < 100


def test_statement_and_off_switch():
    cells = execute(
        "%load_ext ipygpumem\nimport torch",
        "%gpumem torch.ones(64 << 20, dtype=torch.uint8, device='cuda').sum().item()",
        "%gpumem off",
        "x = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')",
        "%gpumem on",
        "y = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')",
    ).cells
    assert len(texts(cells[1])) == 1
    assert "peak +576.0 MiB" in texts(cells[1])[0], "64 MiB, and eight times that while they are summed as integers"
    assert [out["data"]["text/plain"] for out in cells[1].outputs if out.output_type == "execute_result"] == [
        "67108864"
    ]
    assert texts(cells[3]) == []
    assert len(texts(cells[5])) == 1
