"""The sampled peak of memory outside PyTorch on a real GPU."""

import json
import time

import pytest

MIB = 1 << 20

HEAD = """
import ctypes, threading, time
import torch, ipygpumem
from ipygpumem.measurement.runtime import current
MIB = 1 << 20
ipygpumem.preload_pytorch()
library = next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l.rpartition("/")[2])
cudart = ctypes.CDLL(library)
def allocate_briefly(mib, before=0.1, duration=0.06):
    pointer = ctypes.c_void_p()
    time.sleep(before)
    assert cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB)) == 0
    time.sleep(duration)
    cudart.cudaFree(pointer)
def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ipygpumem")]
def sampled_values(device):
    sampled = device.sampled
    if sampled is not None:
        return dict(change=sampled.change, seconds=sampled.seconds, gap=sampled.gap, count=sampled.count)
"""


@pytest.mark.usefixtures("exclusive_gpu")
def test_samples_of_allocations_and_frees(run_python):
    values = run_python(
        HEAD
        + """
rows = []
for torch_mib in (0, 256):
    with ipygpumem.measure() as m:
        allocate_briefly(700)
        tensors = torch.ones(torch_mib * MIB, dtype=torch.uint8, device="cuda")
    rows.append([sampled_values(m.report.devices["cuda:0"]), m.report.devices["cuda:0"].outside])
    del tensors
with ipygpumem.measure() as m:
    time.sleep(0.06); tensors = torch.ones(900 * MIB, dtype=torch.uint8, device="cuda"); time.sleep(0.06)
rows.append([sampled_values(m.report.devices["cuda:0"]), m.report.devices["cuda:0"].outside])
with ipygpumem.measure() as m: pass
rows.append([sampled_values(m.report.devices["cuda:0"]), m.report.devices["cuda:0"].outside])
before = threads(); current().sampler.close(); emit(rows=rows, before=before, after=threads())
"""
    )
    outside_only, with_pytorch, torch_only, short = [row[0] for row in values["rows"]]
    assert abs(outside_only["change"] - 700 * MIB) <= 2 * MIB
    assert 0.09 < outside_only["seconds"] < 0.25
    assert outside_only["gap"] < 0.05
    assert abs(with_pytorch["change"] - (700 - 256) * MIB) <= 16 * MIB, "PyTorch may already have reserved its 256 MiB"
    assert torch_only is None
    assert short is None
    assert values["rows"][0][1] == 0
    assert values["before"] == ["ipygpumem-sampler"]
    assert values["after"] == []


@pytest.mark.usefixtures("exclusive_gpu")
def test_recording_makes_peak_exact_and_has_curves(run_python, tmp_path):
    path = str(tmp_path / "x.pickle")
    values = run_python(
        HEAD
        + f"""
torch.cuda.empty_cache()
with ipygpumem.measure(snapshot={path!r}) as m:
    allocate_briefly(700, duration=0.3)  # the next cudaMalloc may have started 0.1 s before it was recorded
    for _ in range(20):
        tensors = torch.ones(400 * MIB, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
        time.sleep(0.01); del tensors; torch.cuda.empty_cache(); time.sleep(0.01)
from ipygpumem import Snapshot
curves = Snapshot.load({path!r}).own.curves
emit(sampled=sampled_values(m.report.devices["cuda:0"]), curves=curves, base=m.report.devices["cuda:0"].before.outside)
"""
    )
    assert abs(values["sampled"]["change"] - 700 * MIB) <= 2 * MIB
    used, outside_curve = values["curves"]["device used"], values["curves"]["outside PyTorch"]
    assert max(used["bytes"]) - min(used["bytes"]) >= 690 * MIB
    levels = {round((level - values["base"]) / (4 * MIB)) * 4 for level in outside_curve["bytes"]}
    assert levels <= {0, 700, 4, 696, 704}, "the samples contain none of PyTorch's memory, so both clocks agree"


def test_sampling_continues_after_failed_kernel(run_python):
    values = run_python(
        HEAD
        + """
with ipygpumem.measure() as m:
    time.sleep(0.06)
    try:
        torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]; torch.cuda.synchronize()
    except RuntimeError as error:
        failed = type(error).__name__
    time.sleep(0.06)
with ipygpumem.measure() as again:
    time.sleep(0.1)
    window = current().sampler.windows[0]
emit(failed=failed, problem=window.tracks[0].problem, count=window.tracks[0].count, threads=threads())
"""
    )
    assert values["problem"] == ""
    assert values["count"] >= 5
    assert values["threads"] == ["ipygpumem-sampler"]


def test_graph_capture_while_sampling(run_python):
    values = run_python(
        HEAD
        + """
x = torch.ones(1 << 20, device="cuda")
with ipygpumem.measure() as m:
    time.sleep(0.06)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        time.sleep(0.1)
    graph.replay(); torch.cuda.synchronize()
emit(value=float(y[0]), count=0 if m.report.devices["cuda:0"].sampled is None else 1)
"""
    )
    assert values["value"] == 2


def test_concurrent_threads_allocate_and_read_counters(run_python):
    values = run_python(
        HEAD
        + """
end = time.monotonic() + 10
def torch_work():
    while time.monotonic() < end:
        x = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda"); del x; torch.cuda.empty_cache()
def raw_work():
    while time.monotonic() < end:
        allocate_briefly(20, 0, 0)
def poll():
    while time.monotonic() < end:
        torch.cuda.memory_stats()
workers = [threading.Thread(target=work) for work in (torch_work, torch_work, torch_work, raw_work, raw_work, poll)]
for thread in workers: thread.start()
count = 0
while time.monotonic() < end:
    with ipygpumem.measure():
        time.sleep(0.2)
        count += current().sampler.windows[0].tracks[0].count
for thread in workers: thread.join()
emit(count=count)
""",
        timeout=60,
    )
    assert values["count"] > 100


def test_records_take_precedence(run_python):
    pytest.importorskip("llvmlite")
    values = run_python(
        HEAD
        + """
with ipygpumem.measure(outside=True) as m:
    allocate_briefly(700)
device, (memory,) = m.report.devices["cuda:0"], m.report.libraries
emit(sampled=sampled_values(device), peak=memory.peak, trust=memory.grade.trust)
"""
    )
    if values["trust"] != "exact":
        pytest.skip("CUPTI is not available")
    assert values["peak"] == 700 * MIB
    assert values["sampled"] is None


LIVE = """
import json, sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
def cell(code, stdin=True):
    content = dict(code=code, silent=False, store_history=True, allow_stdin=stdin)
    message = client.session.msg("execute_request", content)
    message["metadata"] = {"cellId": "c1"}  # as a notebook does; consoles have no live display
    client.shell_channel.send(message)
    request, outputs = message["header"]["msg_id"], []
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != request: continue
        kind, content = message["msg_type"], message["content"]
        if kind in ("display_data", "update_display_data"): outputs.append([kind, content["data"]["text/plain"]])
        if kind == "error": outputs.append([kind, content["evalue"]])
        if content.get("execution_state") == "idle": return outputs
cell("%load_ext ipygpumem")
cell("import torch, time")
live = cell("x = torch.ones(900 << 20, dtype=torch.uint8, device='cuda'); time.sleep(4)")
batch = cell("y = torch.ones(900 << 20, dtype=torch.uint8, device='cuda'); time.sleep(3)", stdin=False)
client.stop_channels(); manager.shutdown_kernel(now=True)
emit(live=live, batch=batch)
"""


def test_live_display_in_kernel(run_python):
    pytest.importorskip("jupyter_client")
    values = run_python(LIVE)
    kinds = [kind for kind, _ in values["live"]]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert 3 <= len(kinds) <= 10
    assert values["live"][0][1].startswith("cuda:0  allocated 932.0 MiB · reserved 9")
    assert "running for 2 s" in values["live"][0][1]
    assert values["live"][-1][1].startswith("cuda:0  +900.0 MiB held")
    assert [kind for kind, _ in values["batch"]] == ["display_data"]


def test_polled_values_equal_a_reading(torch):
    from ipygpumem.features.live.monitor import MemoryPoller
    from ipygpumem.measurement.runtime import current

    tensors = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda")
    reading = current().reading().devices["cuda:0"]
    polled = MemoryPoller(current().monitor).read().devices["cuda:0"]
    assert (polled.allocated, polled.reserved) == (reading.allocated, reading.reserved)
    assert abs(polled.outside - reading.outside) <= 2 * MIB
    assert polled.in_use == reading.in_use
    start = time.perf_counter()
    for _ in range(100):
        MemoryPoller(current().monitor).read()
    print(json.dumps({"us for one poll, with the list of processes": (time.perf_counter() - start) * 1e4}))
    del tensors
