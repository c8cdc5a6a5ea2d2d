"""Recordings of allocation history: own recordings, recordings by the program, dropped events, and the saved file."""

from __future__ import annotations

import gc
import json
import linecache
import pickle
import platform
import resource
import time

import pytest
import torch

import ipygpumem
from fakes.builds import needs_skip_actions
from ipygpumem import OptionError, measure
from ipygpumem.measurement.allocation_history import RecordingOptions
from ipygpumem.measurement.recorder import AllocationRecorder, CellInfo
from ipygpumem.measurement.runtime import current

MIB = 1 << 20


def load(path):
    return pickle.loads(path.read_bytes())


def record(**options):
    torch.cuda.memory._record_memory_history(**options)


def test_file_can_be_read_by_torch_and_has_our_keys(fake_gpu, tmp_path):
    from torch.cuda import _memory_viz

    path = tmp_path / "x.pickle"
    fake_gpu.alloc(MIB)
    before = time.time_ns() // 1000
    with measure(snapshot=path) as m:
        fake_gpu.alloc(30 * MIB)
        fake_gpu.free(fake_gpu.alloc(40 * MIB))
    after = time.time_ns() // 1000
    snapshot = load(path)
    assert [event["action"] for event in snapshot["device_traces"][0]] == [
        "segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed", "snapshot",
    ]  # fmt: skip
    assert "fake" not in _memory_viz.segsum(snapshot)
    assert "30" in _memory_viz.trace(snapshot)
    info = m.report.recording
    assert (info.path, info.size, info.events, info.dropped) == (str(path), path.stat().st_size, 7, 0)
    assert (info.own, info.error) == (True, "")

    metadata = snapshot["ipygpumem"]
    assert metadata["schema"] == 1
    assert metadata["version"] == ipygpumem.__version__
    assert metadata["torch"] == torch.__version__
    assert metadata["host"] == platform.node()
    assert before <= metadata["started_us"] <= metadata["ended_us"] <= after
    assert metadata["recording"] == {
        "own": True, "stacks": "python", "context": "alloc", "max_entries": 1_000_000, "dropped": [0],
    }  # fmt: skip
    (cell,) = metadata["cells"]
    assert cell.keys() == {"number", "filename", "start_us", "end_us", "success"}
    assert metadata["started_us"] <= cell["start_us"] <= cell["end_us"]
    assert (cell["number"], cell["success"]) == (None, True)
    (device,) = metadata["devices"]
    assert (device["index"], device["name"], device["uuid"]) == (0, "NVIDIA H200", fake_gpu[0].uuid)
    assert (device["total"], device["limit"]) == ((143_771 - 615) * MIB, None)
    assert metadata["readings"]["before"]["cuda:0"]["allocated"] == MIB
    assert metadata["readings"]["after"]["cuda:0"]["allocated"] == 31 * MIB
    assert metadata["readings"]["after"]["cuda:0"]["outside"] == 612 * MIB
    assert metadata["curves"] == {}
    json.dumps(metadata)
    assert not torch._C._cuda_isHistoryEnabled()


def test_memory_limit_of_the_program_is_saved(fake_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "get_per_process_memory_fraction", lambda index: 0.25, raising=False)
    path = tmp_path / "limit.pickle"
    with ipygpumem.measure(snapshot=path):
        fake_gpu.alloc(MIB)
    limit = (143_771 - 615) * MIB // 4
    assert pickle.loads(path.read_bytes())["ipygpumem"]["devices"][0]["limit"] == limit
    own = ipygpumem.Snapshot.load(path).own
    assert (own.device_limits, own.device_threads) == ({0: limit}, {0: 132 * 2048})


def test_source_of_cells_in_the_stacks_is_saved(fake_gpu, tmp_path):
    cell = "def allocate(gpu):\n    return gpu.alloc(1 << 20)\n"
    for name in ("/kernel/ipykernel_1/12.py", "/kernel/ipykernel_1/13.py"):
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    try:
        space = {}
        exec(compile(cell, "/kernel/ipykernel_1/12.py", "exec"), space)  # noqa: S102 (as a kernel runs a cell)
        with measure(snapshot=tmp_path / "x.pickle"):
            space["allocate"](fake_gpu)
        assert load(tmp_path / "x.pickle")["source_code"] == {"/kernel/ipykernel_1/12.py": cell}
    finally:
        for name in ("/kernel/ipykernel_1/12.py", "/kernel/ipykernel_1/13.py"):
            del linecache.cache[name]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {"context": "alloc", "stacks": "python", "max_entries": 1_000_000}),
        ({"stacks": "all", "max_entries": 7}, {"context": "alloc", "stacks": "all", "max_entries": 7}),
        ({"lines": True}, {"context": "all", "stacks": "python", "max_entries": 1_000_000}),
        ({"stacks": "none"}, {"context": None, "stacks": "python", "max_entries": 1_000_000}),
        pytest.param(
            {"history": {"context": "all", "skip_actions": ["free_requested"]}},
            {"context": "all", "stacks": "python", "max_entries": 1_000_000, "skip_actions": ("free_requested",)},
            marks=needs_skip_actions,
        ),
    ],
)
def test_options_reach_torch(fake_gpu, tmp_path, options, arguments):
    with measure(snapshot=tmp_path / "x.pickle", **options):
        assert fake_gpu.history == {"skip_actions": (), **arguments}


def free_with_stacks(path):
    """Return whether the events that free memory have stacks."""
    (trace,) = load(path)["device_traces"]
    frees = [event for event in trace if event["action"] in {"free_requested", "free_completed", "segment_free"}]
    assert len(frees) == 3
    (have_stacks,) = {"frames" in event for event in frees}
    return have_stacks


@pytest.mark.parametrize("context", ["alloc", "all"])
def test_allocation_stacks_are_not_stacks_of_frees(fake_gpu, tmp_path, context):
    with measure(snapshot=tmp_path / "own.pickle", history={"context": context}):
        fake_gpu.free(fake_gpu.alloc(30 * MIB))
        torch.cuda.empty_cache()
    assert free_with_stacks(tmp_path / "own.pickle") == (context == "all")
    record(enabled="all", context=context)
    block = fake_gpu.alloc(30 * MIB)
    time.sleep(0.002)
    with measure(snapshot=tmp_path / "program.pickle"):
        fake_gpu.free(block)
        torch.cuda.empty_cache()
    record(enabled=None)
    assert free_with_stacks(tmp_path / "program.pickle") == (context == "all")


def test_unsupported_option(fake_gpu):
    with pytest.raises(
        OptionError, match=r"^'color' is not an additional recording option of .*: choose from .*context"
    ):
        AllocationRecorder(current(), RecordingOptions(extra={"color": "red"}))


def test_dropped_allocations_are_counted(fake_gpu, tmp_path):
    fake_gpu.alloc(MIB)
    with measure(snapshot=tmp_path / "x.pickle", max_entries=10) as m:
        for _ in range(20):
            fake_gpu.free(fake_gpu.alloc(MIB))
    snapshot = load(tmp_path / "x.pickle")
    recorded = sum(event["action"] == "alloc" for event in snapshot["device_traces"][0])
    assert len(snapshot["device_traces"][0]) == 10
    assert m.report.recording.dropped == 20 - recorded
    assert snapshot["ipygpumem"]["recording"]["dropped"] == [20 - recorded]


@needs_skip_actions
def test_dropped_allocations_are_unknown_if_allocations_are_skipped(fake_gpu, tmp_path):
    with measure(snapshot=tmp_path / "x.pickle", history={"skip_actions": ["alloc"]}) as m:
        fake_gpu.alloc(MIB)
    assert m.report.recording.dropped is None


def test_dropped_allocations_are_unknown_after_a_reset(fake_gpu, tmp_path):
    fake_gpu.alloc(MIB)
    with measure(snapshot=tmp_path / "x.pickle") as m:
        torch.cuda.reset_accumulated_memory_stats()
    assert m.report.recording.dropped is None


def test_events_of_an_earlier_recording_are_not_saved(fake_gpu, tmp_path):
    record(enabled="all")
    fake_gpu.alloc(MIB)
    fake_gpu.history = None  # torch leaves its trace after enabled="state"
    fake_gpu[0].allocator.history = None
    with measure(snapshot=tmp_path / "x.pickle"):
        pass
    assert [event["action"] for event in load(tmp_path / "x.pickle")["device_traces"][0]] == ["snapshot"]


def test_recording_of_the_program_continues(fake_gpu, tmp_path):
    record(enabled="all", context="alloc", stacks="all", max_entries=777)
    options = dict(fake_gpu.history)
    fake_gpu.alloc(MIB)
    time.sleep(0.002)
    calls = fake_gpu.calls["record_memory_history"]
    with measure(snapshot=tmp_path / "x.pickle") as m:
        fake_gpu.alloc(30 * MIB)
    assert fake_gpu.calls["record_memory_history"] == calls
    assert fake_gpu.history == options
    assert torch._C._cuda_isHistoryEnabled()
    snapshot = load(tmp_path / "x.pickle")
    assert [event["action"] for event in snapshot["device_traces"][0]] == ["segment_alloc", "alloc", "snapshot"]
    assert snapshot["ipygpumem"]["recording"] == {
        "own": False, "stacks": None, "context": None, "max_entries": None, "dropped": [0],
    }  # fmt: skip
    assert (m.report.recording.own, m.report.recording.dropped) == (False, 0)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert len([event for event in trace if event["action"] == "alloc"]) == 2, "it has all events"


def test_dropped_allocations_of_a_recording_without_events_are_unknown(fake_gpu, tmp_path):
    record(enabled="state")
    with measure(snapshot=tmp_path / "x.pickle") as m:
        fake_gpu.alloc(MIB)
    assert m.report.recording.dropped is None


def test_program_starts_a_recording_during_the_block(fake_gpu, tmp_path):
    original = torch._C._cuda_record_memory_history
    with (
        pytest.warns(RuntimeWarning, match="the program itself started or stopped a recording"),
        measure(snapshot=tmp_path / "x.pickle") as m,
    ):
        fake_gpu.alloc(MIB)
        record(enabled="all", max_entries=55)
        fake_gpu.alloc(30 * MIB)
    assert fake_gpu.history["max_entries"] == 55, "still on, with the program's options"
    assert m.report.recording.dropped is None
    assert (tmp_path / "x.pickle").exists()
    assert torch._C._cuda_record_memory_history is original


def test_program_stops_the_recording_during_the_block(fake_gpu, tmp_path):
    with (
        pytest.warns(RuntimeWarning, match="the program itself started or stopped a recording"),
        measure(snapshot=tmp_path / "x.pickle"),
    ):
        record(enabled=None)
    assert not torch._C._cuda_isHistoryEnabled()
    assert not current().active_recording.running


def test_nested_recordings(fake_gpu, tmp_path):
    with measure(snapshot=tmp_path / "outer.pickle") as outer:
        fake_gpu.alloc(MIB)
        time.sleep(0.002)
        with measure(snapshot=tmp_path / "inner.pickle") as inner:
            fake_gpu.alloc(30 * MIB)
        assert torch._C._cuda_isHistoryEnabled()
        fake_gpu.alloc(3 * MIB)

    def sizes(name):
        trace = load(tmp_path / f"{name}.pickle")["device_traces"][0]
        return [event["size"] for event in trace if event["action"] == "alloc"]

    assert sizes("inner") == [30 * MIB]
    assert sizes("outer") == [MIB, 30 * MIB, 3 * MIB]
    assert (inner.report.recording.own, outer.report.recording.own) == (False, True)
    assert not torch._C._cuda_isHistoryEnabled()


def test_recording_can_be_saved_several_times(fake_gpu, tmp_path):
    recorder = AllocationRecorder(current())
    recorder.start()
    fake_gpu.alloc(MIB)
    recorder.cells.append(CellInfo(3, "/kernel/ipykernel_1/3.py", 10, 20, True))
    first = recorder.save(tmp_path / "x.pickle", sources={}, numbers={})
    recorder.cells.append(CellInfo(4, None, 30, 40, False))
    second = recorder.save(tmp_path / "x.pickle", sources={}, numbers={})
    assert second.events > first.events
    assert [cell["number"] for cell in load(tmp_path / "x.pickle")["ipygpumem"]["cells"]] == [3, 4]
    assert torch._C._cuda_isHistoryEnabled()
    recorder.stop()
    recorder.stop()
    assert not torch._C._cuda_isHistoryEnabled()


@pytest.mark.parametrize("fault", ["directory vanishes", "becomes a directory", "torch fails"])
def test_file_that_cannot_be_written(fake_gpu, tmp_path, fault):
    directory = tmp_path / "here"
    directory.mkdir()
    path = directory / "x.pickle"
    with pytest.warns(RuntimeWarning) as warned, measure(snapshot=path) as m:
        fake_gpu.alloc(MIB)
        if fault == "directory vanishes":
            directory.rmdir()
        elif fault == "becomes a directory":
            (path / "full").mkdir(parents=True)
        else:
            torch._C._cuda_memorySnapshot = _fail
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert m.report.recording.path is None
    assert m.report.recording.error == str(warned[0].message)
    assert m.report.devices["cuda:0"].held == MIB
    assert not torch._C._cuda_isHistoryEnabled()
    files = [file.name for file in directory.iterdir()] if directory.exists() else []
    assert files == (["x.pickle"] if fault == "becomes a directory" else [])


def _fail(*_):
    raise RuntimeError("the driver is gone\nand more")


def test_full_disk_leaves_the_previous_file(tmp_path, fake_gpu):
    path = tmp_path / "x.pickle"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.warns(RuntimeWarning) as warned, measure(snapshot=path) as m:
            for _ in range(2000):
                fake_gpu.free(fake_gpu.alloc(MIB))
            result = 42
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    report = m.report
    assert (result, report.devices["cuda:0"].held, report.recording.path, len(warned)) == (42, 0, None, 1)
    assert report.recording.error == f"the snapshot {path} was not written: File too large"
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.pickle"]


def test_garbage_collector_is_restored(fake_gpu, tmp_path):
    for switch in (gc.disable, gc.enable):
        switch()
        with measure(snapshot=tmp_path / "x.pickle"):
            fake_gpu.alloc(MIB)
        assert gc.isenabled() is (switch is gc.enable)
