"""The extension has no side effects: values, recordings and compiled code are the same with and without it."""

import pickle

import pytest

import ipygpumem
from ipygpumem.core.units import MIB

READS = """
import torch
{setup}
out = []
def read(tag):
    s = torch.cuda.memory_stats()
    out.append([tag, torch.cuda.max_memory_allocated() - base, torch.cuda.max_memory_reserved() - base_reserved,
                torch.cuda.memory_allocated() - base])
    if hasattr(torch.accelerator, "max_memory_allocated"):
        assert torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()
    assert s["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated()
u8 = lambda n: torch.empty(n << 20, dtype=torch.uint8, device="cuda")
torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
torch.cuda.synchronize(); torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
base, base_reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
with cell():
    a = u8(100); b = u8(200); del b
    read("in first")
read("after first")
with cell():
    c = u8(30)
read("after second")
with cell():
    torch.cuda.reset_peak_memory_stats()
    read("reset")
    d = u8(50); del d
    read("after reset")
read("between")
with cell():
    with cell():
        e = u8(400); del e
    read("nested")
read("end")
torch.cuda.reset_peak_memory_stats()
read("reset outside")
with cell():
    pass
read("last")
{teardown}
read("unloaded")
f = u8(10)
read("after unload")
emit(out=out, total=torch.cuda.memory_summary().count("|"))
"""


def test_counters_are_equal_with_and_without_extension(run_python):
    reference = run_python(READS.format(setup="import contextlib\ncell = contextlib.nullcontext", teardown=""))
    measured = run_python(
        READS.format(
            setup="import ipygpumem\nipygpumem.preload_pytorch()\ncell = ipygpumem.measure",
            teardown="from ipygpumem.measurement.runtime import current; current().peaks.remove()",
        )
    )
    assert measured["out"] == reference["out"]
    assert measured["total"] == reference["total"]


COMPILED = """
import torch, warnings
{setup}
@torch.compile(dynamic=False)
def f(x):
    y = x * 2
    n = torch.cuda.max_memory_allocated()
    return y.sum() + n * 0
with cell():
    value = float(f(torch.ones(1024, device="cuda")))
emit(value=value)
"""


def test_compiled_code_that_reads_counters(run_python):
    reference = run_python(COMPILED.format(setup="import contextlib\ncell = contextlib.nullcontext"))
    measured = run_python(
        COMPILED.format(setup="import ipygpumem\nipygpumem.preload_pytorch()\ncell = ipygpumem.measure")
    )
    assert measured["value"] == reference["value"] == 2048


def test_own_recording(torch, tmp_path):
    path = tmp_path / "cell.pickle"
    with ipygpumem.measure(snapshot=path) as m:
        tensors = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
    del tensors
    recording = m.report.recording
    raw = path.read_bytes()
    assert raw[:2] == b"\x80\x04"
    snapshot = pickle.loads(raw)
    trace = snapshot["device_traces"][0]
    assert [event["action"] for event in trace].count("alloc") == 10
    assert recording.events == sum(map(len, snapshot["device_traces"]))
    assert (recording.dropped, recording.own, recording.error) == (0, True, "")
    measured = snapshot["ipygpumem"]
    assert measured["schema"] == 1
    cell = measured["cells"][0]
    assert all(cell["start_us"] <= event["time_us"] <= cell["end_us"] for event in trace if event["action"] == "alloc")
    assert measured["devices"][0]["name"] == torch.cuda.get_device_name(0)
    assert (
        measured["readings"]["after"]["cuda:0"]["allocated"] - measured["readings"]["before"]["cuda:0"]["allocated"]
        == 10 * MIB
    )
    assert torch._C._cuda_isHistoryEnabled() is False


def test_torch_readers_accept_the_file(torch, tmp_path):
    from torch.cuda import _memory_viz

    path = tmp_path / "cell.pickle"
    with ipygpumem.measure(snapshot=path, stacks="all"):
        torch.ones(1000, device="cuda").sum().item()
    snapshot = pickle.loads(path.read_bytes())
    assert "cuda" in _memory_viz.segsum(snapshot).lower() or _memory_viz.segsum(snapshot)
    assert _memory_viz.trace(snapshot)
    assert "<html" in _memory_viz.trace_plot(snapshot).lower() or "<script" in _memory_viz.trace_plot(snapshot)


def test_dropped_events_are_counted(torch, tmp_path):
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle", max_entries=10) as m:
        for _ in range(50):
            torch.empty(MIB, dtype=torch.uint8, device="cuda")
    recording = m.report.recording
    assert recording.events == 10
    recorded = sum(
        event["action"] == "alloc" for event in pickle.loads((tmp_path / "x.pickle").read_bytes())["device_traces"][0]
    )
    assert recording.dropped == 50 - recorded


def test_recording_within_user_recording(torch, tmp_path):
    torch.cuda.memory._record_memory_history(max_entries=5000, stacks="python")
    try:
        early = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        with ipygpumem.measure(snapshot=tmp_path / "x.pickle") as m:
            tensors = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        late_tensor = torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")
        assert torch._C._cuda_isHistoryEnabled() is True
        user_sizes = [e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
        assert user_sizes == [3 * MIB, 5 * MIB, 7 * MIB]
        measured = pickle.loads((tmp_path / "x.pickle").read_bytes())
        assert [e["size"] for e in measured["device_traces"][0] if e["action"] == "alloc"] == [5 * MIB]
        assert m.report.recording.own is False
        assert m.report.recording.dropped == 0
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del early, tensors, late_tensor


def test_user_takes_over_recording(torch, tmp_path):
    with (
        pytest.warns(RuntimeWarning, match="started or stopped"),
        ipygpumem.measure(snapshot=tmp_path / "x.pickle") as m,
    ):
        torch.cuda.memory._record_memory_history(max_entries=777)
    assert torch._C._cuda_isHistoryEnabled() is True
    assert "started or stopped" in m.report.recording.error
    torch.cuda.memory._record_memory_history(enabled=None)


FAILED_KERNEL = """
import torch, ipygpumem
ipygpumem.preload_pytorch()
x = torch.zeros(10, device="cuda")
try:
    with ipygpumem.measure() as m:
        x[torch.tensor([100], device="cuda")]
        torch.cuda.synchronize()
except Exception as error:
    emit(error=type(error).__name__)
with ipygpumem.measure() as m:
    pass
device = m.report.devices["cuda:0"]
emit(held=device.held, used=device.after.used, mode=device.after.mode)
"""


def test_reports_after_failed_kernel(run_python):
    values = run_python(FAILED_KERNEL)
    assert values["error"] in {"RuntimeError", "AcceleratorError"}
    assert values["held"] == 0
    assert values["used"] > 0


def test_forked_child_does_nothing(run_python, tmp_path):
    values = run_python(
        f"""
        import os, torch, ipygpumem
        ipygpumem.preload_pytorch()
        with ipygpumem.measure(snapshot={str(tmp_path / "x.pickle")!r}) as m:
            pid = os.fork()
            if pid == 0:
                m.__exit__(None, None, None)
                os._exit(0 if not os.path.exists({str(tmp_path / "x.pickle")!r}) else 1)
            status = os.waitpid(pid, 0)[1]
            x = torch.ones(1000, device="cuda")
        emit(child=status, saved=os.path.exists({str(tmp_path / "x.pickle")!r}))
        """
    )
    assert values["child"] == 0
    assert values["saved"] is True


def test_peaks_without_reset_are_bounds_below_and_exact_above_record(torch):
    torch.cuda.reset_peak_memory_stats()
    spike = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    del spike
    record = torch.cuda.max_memory_allocated()
    with ipygpumem.measure(peaks="untouched") as below_record:
        torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() == record
    assert below_record.report.devices["cuda:0"].grades["peak"].trust == "bound"
    assert below_record.report.devices["cuda:0"].peak == 200 * MIB
    with ipygpumem.measure(peaks="untouched") as above_record:
        torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    assert above_record.report.devices["cuda:0"].grades["peak"].trust == "exact"
    assert above_record.report.devices["cuda:0"].peak == 300 * MIB


def test_additional_recording_option(torch, tmp_path):
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle", history={"context": "alloc"}) as m:
        torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert m.report.recording.error == ""
    with pytest.raises(ipygpumem.OptionError, match="'nonsense' is not an additional recording option"):
        ipygpumem.measure(snapshot=tmp_path / "x.pickle", history={"nonsense": 1})
