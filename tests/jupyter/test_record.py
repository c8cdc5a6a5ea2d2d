"""%gpumem record: one allocation history over several cells."""

from __future__ import annotations

import pickle
import re
import signal

import pytest
import torch
from IPython.core.error import UsageError

from fakes.builds import needs_metadata, needs_skip_actions
from ipygpumem.measurement.recorder import AllocationRecorder

MIB = 1 << 20


def allocation(mib, name="tensor"):
    return f"{name} = torch.ones({mib} << 20, dtype=torch.uint8, device='cuda')"


def recording():
    return torch._C._cuda_isHistoryEnabled()


def usage(result):
    assert isinstance(result.error, UsageError), result
    assert result.stderr.count("\n") == 1
    return result.stderr.strip().removeprefix("UsageError: ")


def test_start_save_and_stop(gpu_notebook, tmp_path):
    path = tmp_path / "run.pickle"
    result = gpu_notebook.run("%gpumem record start")
    assert result.stdout == (
        "ipygpumem: recording allocation history, at most 1,000,000 events per device, until %gpumem record stop\n"
    )
    assert recording()
    cells = {
        gpu_notebook.shell.execution_count + i: cell
        for i, cell in enumerate([allocation(8), "1/0", allocation(16, "more")])
    }
    reports = [gpu_notebook.run(cell) for cell in cells.values()]
    assert "recording allocation history (2 cells so far): %gpumem record save PATH saves" in reports[0].text
    assert "(4 cells so far)" in reports[2].text
    result = gpu_notebook.run(f"%gpumem record save {path}")
    assert re.fullmatch(rf"ipygpumem: snapshot {path}: \d+ events, \d+\.\d KiB\n", result.stdout)
    assert recording()
    snapshot = pickle.loads(path.read_bytes())
    facts = {cell["number"]: cell for cell in snapshot["ipygpumem"]["cells"]}
    assert set(cells) <= set(facts)
    assert [facts[number]["success"] for number in cells] == [True, False, True]
    starts = [cell["start_us"] for cell in snapshot["ipygpumem"]["cells"]]
    assert starts == sorted(starts)
    for number, text in cells.items():
        if "ones" in text:
            assert snapshot["source_code"][facts[number]["filename"]].rstrip("\n") == text
    sizes = [event["size"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
    assert sizes == [8 * MIB, 16 * MIB]
    assert gpu_notebook.run("%gpumem record stop").stdout == "ipygpumem: recording stopped\n"
    assert not recording()
    result = gpu_notebook.run(allocation(8, "third"))
    assert "recording" not in result.text


@needs_skip_actions
def test_options(gpu_notebook, fake_gpu):
    result = gpu_notebook.run(
        "%gpumem record start --stacks none --max-entries 99 --history skip_actions=\"['free_requested']\""
    )
    assert result.success, result
    assert fake_gpu.history["max_entries"] == 99
    assert fake_gpu.history["context"] is None
    assert fake_gpu.history["skip_actions"] == ("free_requested",)


def test_cells_without_a_report_are_recorded(gpu_notebook, tmp_path):
    gpu_notebook.run("%config GPUMem.report = 'off'")
    gpu_notebook.run("%gpumem record start")
    number = gpu_notebook.shell.execution_count
    assert gpu_notebook.run("1 + 1").texts == []
    gpu_notebook.run("%gpumem 2 + 2")
    gpu_notebook.run("%%gpumem -q\n3 + 3")
    gpu_notebook.run(f"%gpumem record save {tmp_path}/x.pickle")
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    numbers = [cell["number"] for cell in snapshot["ipygpumem"]["cells"]]
    assert numbers[-3:] == [number, number + 1, number + 2]


def test_repeated_saves(gpu_notebook, tmp_path):
    gpu_notebook.run("%gpumem record start")
    for step in range(3):
        gpu_notebook.run(allocation(4, f"x{step}"))
        gpu_notebook.run(f"step = {step}")
        gpu_notebook.run(f"%gpumem record save '{tmp_path}/run {{step:02d}}.pickle'")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["run 00.pickle", "run 01.pickle", "run 02.pickle"]
    counts = [len(pickle.loads((tmp_path / name).read_bytes())["device_traces"][0]) for name in names]
    assert counts == sorted(counts) and counts[0] < counts[2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("record", "%gpumem record: the subcommand must be one of start, save, stop"),
        ("record -x", "%gpumem record: the subcommand must be one of start, save, stop, but got -x"),
        ("record stop", "%gpumem record stop: no recording is running"),
        (
            "record save x.pickle",
            "%gpumem record save: no recording is running: start one with %gpumem record start",
        ),
        ("record save", "%gpumem record save: the following arguments are required: PATH"),
        ("record save a b", "%gpumem record save: unrecognized arguments: b"),
        ("record save 'x", '%gpumem record save: No closing quotation in "\'x"'),
        ("record save no/such/x.pickle", "%gpumem record save: the directory {here}/no/such does not exist"),
        (
            "record start --max-entries 0",
            "%gpumem record start: argument --max-entries: the value must be a positive integer, but got '0'",
        ),
        ("record start now", "%gpumem record start: unrecognized arguments: now"),
        ("record start --snapshot x", "%gpumem record start: unrecognized arguments: --snapshot x"),
    ],
)
def test_invalid_commands(gpu_notebook, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    assert usage(gpu_notebook.run(f"%gpumem {line}")) == message.format(here=tmp_path)
    assert not recording()
    assert list(tmp_path.iterdir()) == []


def test_second_start(gpu_notebook):
    gpu_notebook.run("%gpumem record start")
    line = usage(gpu_notebook.run("%gpumem record start"))
    assert line == "%gpumem record start: a recording is already running; to stop it, run %gpumem record stop"
    assert recording()


def test_user_recording_is_left_unchanged(gpu_notebook, fake_gpu):
    gpu_notebook.run("torch.cuda.memory._record_memory_history(max_entries=500)")
    before = dict(fake_gpu.history)
    line = usage(gpu_notebook.run("%gpumem record start"))
    assert line == (
        "%gpumem record start: your code is already recording allocation history: to stop it, call "
        "torch.cuda.memory._record_memory_history(enabled=None)"
    )
    assert fake_gpu.history == before
    assert usage(gpu_notebook.run("%gpumem record stop")) == "%gpumem record stop: no recording is running"


def test_user_takes_over_recording(gpu_notebook):
    gpu_notebook.run("%gpumem record start")
    gpu_notebook.run("torch.cuda.memory._record_memory_history(max_entries=500)")
    result = gpu_notebook.run(allocation(8))
    assert "the recording across cells has ended: events are missing because the program itself" in result.text
    assert gpu_notebook.run("%gpumem record stop").success
    assert recording()  # events of the user
    assert "recording" not in gpu_notebook.run(allocation(8, "more")).text


def test_snapshot_of_cell_during_recording(gpu_notebook, tmp_path):
    gpu_notebook.run("%gpumem record start")
    gpu_notebook.run(allocation(4))
    result = gpu_notebook.run(f"%%gpumem --snapshot {tmp_path}/cell.pickle\n{allocation(8, 'more')}")
    assert "copied from the recording that was already running" in result.text
    trace = pickle.loads((tmp_path / "cell.pickle").read_bytes())["device_traces"][0]
    assert [event["size"] for event in trace if event["action"] == "alloc"] == [8 * MIB]
    assert recording()
    assert gpu_notebook.run("%gpumem record stop").success
    assert not recording()


def test_without_gpu(notebook):
    notebook.load()
    assert "PyTorch records allocation history only for GPU memory" in usage(notebook.run("%gpumem record start"))


@pytest.mark.parametrize("terminal", [False, True])
def test_statement_in_cell_is_distinct_from_cell(fake_gpu, make_notebook, tmp_path, terminal):
    notebook = make_notebook(terminal=terminal)
    notebook.load()
    notebook.run("import torch")
    cell = f"%%gpumem --snapshot {tmp_path}/x.pickle\n%gpumem -q y = torch.ones(40 << 20, device='cuda')\nz = 1"
    notebook.run(cell)
    snapshot = pickle.loads((tmp_path / "x.pickle").read_bytes())
    [result] = snapshot["ipygpumem"]["cells"]
    frames = {f["filename"] for e in snapshot["device_traces"][0] for f in e.get("frames", ())}
    assert result["filename"] in frames
    assert snapshot["source_code"][result["filename"]] == cell
    texts = {text.strip() for text in snapshot["source_code"].values()}
    assert "y = torch.ones(40 << 20, device='cuda')" in texts


def test_functions_of_earlier_cells_have_their_numbers(gpu_notebook, tmp_path):
    path = tmp_path / "x.pickle"
    number = gpu_notebook.shell.execution_count
    gpu_notebook.run(f"def earlier():\n    {allocation(8)}")
    gpu_notebook.run(f"%%gpumem -q --snapshot {path}\nearlier()")
    snapshot = pickle.loads(path.read_bytes())
    (name,) = (name for name, text in snapshot["source_code"].items() if text.startswith("def earlier"))
    assert snapshot["ipygpumem"]["numbers"][name] == number


def metadata(path):
    events = pickle.loads(path.read_bytes())["device_traces"][0]
    return [event["user_metadata"] for event in events if event["action"] == "alloc"]


@needs_metadata
def test_cells_are_stored_as_user_metadata(gpu_notebook, tmp_path):
    path, get = tmp_path / "run.pickle", torch._C._cuda_getMemoryMetadata
    assert gpu_notebook.run(f"%%gpumem --snapshot {path}\n{allocation(1)}").success
    number = gpu_notebook.shell.execution_count - 1
    assert metadata(path) == [f"In[{number}]"]
    gpu_notebook.run(f"%gpumem --snapshot {path} {allocation(2)}")
    assert metadata(path) == [f"In[{number + 1}]"]
    gpu_notebook.run("%gpumem record start")
    gpu_notebook.run(allocation(3))
    seen = gpu_notebook.run(f"seen = torch.cuda.memory._get_memory_metadata()\n{allocation(4)}\nseen")
    assert seen.value == "", "the program sees the same value as without the extension"
    own = "torch.cuda.memory._set_memory_metadata('mine')"
    gpu_notebook.run(f"{own}\n{allocation(5)}")
    assert gpu_notebook.run(f"{allocation(6)}\ntorch.cuda.memory._get_memory_metadata()").value == "mine"
    gpu_notebook.run("torch.cuda.memory._set_memory_metadata('')\n1/0")
    gpu_notebook.run(f"{allocation(7)}\n%gpumem record save {path}\n%gpumem record stop")
    last = gpu_notebook.shell.execution_count - 1
    cells = [f"In[{number + 3}]", f"In[{number + 4}]", "mine", "mine", f"In[{last}]"]
    assert metadata(path) == cells
    assert get() == ""
    assert torch._C._cuda_getMemoryMetadata == get, "no wrapper remains"


@needs_metadata
def test_own_recordings_of_the_program_contain_no_metadata_of_cells(gpu_notebook, tmp_path):
    gpu_notebook.run("torch.cuda.memory._record_memory_history()")
    path = tmp_path / "cell.pickle"
    gpu_notebook.run(f"%%gpumem --snapshot {path}\n{allocation(1)}")
    assert metadata(path) == [""]


@needs_metadata
def test_unloading_removes_the_metadata(gpu_notebook):
    gpu_notebook.run("%gpumem record start")
    gpu_notebook.run("%unload_ext ipygpumem")
    assert torch._C._cuda_getMemoryMetadata() == ""


def test_interrupt_while_a_recording_starts(gpu_notebook, monkeypatch):
    start = AllocationRecorder.start

    def interrupted(recorder):
        start(recorder)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(AllocationRecorder, "start", interrupted)
        assert isinstance(gpu_notebook.run("%gpumem record start").error, KeyboardInterrupt)
    assert gpu_notebook.run("%gpumem record stop").stdout == "ipygpumem: recording stopped\n"
    assert not recording()
