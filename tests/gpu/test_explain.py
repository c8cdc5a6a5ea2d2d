"""Waterfall charts and other processes on a real GPU."""

import shutil

import pytest

MIB = 1 << 20
GRANULARITY = 2 * MIB

HEAD = """
import ctypes, gc, os, subprocess, sys, time
import torch, ipygpumem
from fakes.reports import waterfall_imbalance
MIB = 1 << 20
ipygpumem.preload_pytorch()
def explain_steps():
    (waterfall,) = ipygpumem.explain(device=[0]).devices
    assert waterfall_imbalance(waterfall) == 0
    steps = waterfall.steps
    return {step.label: step.amount for step in steps}, [step.grade.trust for step in steps], waterfall.summary
library = next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l.rpartition("/")[2])
cudart, pointer = ctypes.CDLL(library), ctypes.c_void_p()
OTHER = '''
import torch, sys
x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
print("ready", flush=True); sys.stdin.readline()
'''
def other(**variables):
    child = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **variables})
    child.stdout.readline()
    return child
"""


@pytest.mark.usefixtures("exclusive_gpu")
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_freed_by_empty_cache(run_python, settings):
    values = run_python(
        HEAD
        + """
tensors = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 3, 30, 7, 100, 1, 64)]
g, y = torch.cuda.CUDAGraph(), torch.ones(4 * MIB, device="cuda")
with torch.cuda.graph(g):
    for _ in range(5):
        y = y * 2
del y
for i in (1, 2, 4):
    tensors[i] = None
gc.collect()
torch.cuda.synchronize()
before, trusts, summary = explain_steps()
reserved = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
freed = reserved - torch.cuda.memory_reserved()
after, _, _ = explain_steps()
emit(before=before, after=after, freed=freed, allocated=torch.cuda.memory_allocated(), summary=summary, trusts=trusts)
""",
        PYTORCH_ALLOC_CONF=settings,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    before, after = values["before"], values["after"]
    assert values["freed"] == before["cached, can be released"] > 0
    assert "cached, can be released" not in after
    assert after["cached in private pools"] == before["cached in private pools"] > 0
    assert after["allocated (tensors)"] == values["allocated"]
    drop = before["nvidia-smi shows"] - after["nvidia-smi shows"]
    assert abs(drop - values["freed"]) <= GRANULARITY
    assert {"CUDA context", "first kernels", "this process"} <= set(before)
    assert "torch.cuda.empty_cache() would release" in values["summary"]


@pytest.mark.usefixtures("exclusive_gpu")
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="nvidia-smi is not installed")
def test_first_step_matches_nvidia_smi(run_python):
    values = run_python(
        HEAD
        + """
x = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
uuid = str(torch.cuda.get_device_properties(0).uuid)
query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", f"GPU-{uuid}"]
shown = subprocess.run(query, capture_output=True, text=True, check=True).stdout
sizes, _, _ = explain_steps()
emit(shown=int(shown) * MIB, sizes=sizes["nvidia-smi shows"])
"""
    )
    assert abs(values["shown"] - values["sizes"]) <= GRANULARITY


@pytest.mark.usefixtures("exclusive_gpu")
def test_libraries_and_managed_memory(run_python):
    pytest.importorskip("llvmlite")
    values = run_python(
        HEAD
        + """
from ipygpumem.features.outside.cupti_recorder import cupti_recorder
cupti_recorder().acquire()
base, _, _ = explain_steps()
cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB))
managed = ctypes.c_void_p()
cudart.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(128 * MIB), 1)
cudart.cudaMemset(managed, 1, ctypes.c_size_t(128 * MIB))
torch.cuda.synchronize()
sizes, trusts, _ = explain_steps()
cudart.cudaFree(pointer); cudart.cudaFree(managed)
sizes_after, _, _ = explain_steps()
cupti_recorder().release()
emit(base=base, sizes=sizes, after=sizes_after, trusts=trusts)
"""
    )
    assert values["sizes"]["ctypes"] == 512 * MIB
    assert abs(values["sizes"]["managed memory"] - 128 * MIB) <= GRANULARITY
    assert "ctypes" not in values["after"] and "managed memory" not in values["after"]
    kernels = "kernel code, local memory, CUDA graphs"
    assert abs(values["sizes"].get(kernels, 0) - values["base"].get(kernels, 0)) <= GRANULARITY


def test_start_and_end_of_another_process(run_python):
    values = run_python(
        HEAD
        + """
with ipygpumem.measure() as m:
    child = other(JPY_SESSION_NAME="/home/me/other.ipynb", JPY_PARENT_PID="1")
(began,) = [change for change in m.report.neighbours if change.event == "began"]
sizes, _, _ = explain_steps()
(device, *_) = ipygpumem.processes()
from ipygpumem.features.report.short_report import ShortReport
line = ShortReport(m.report).text()
with ipygpumem.measure() as m:
    child.communicate("x")
    time.sleep(0.5)
ended = [change for change in m.report.neighbours if change.neighbour.pid == began.neighbour.pid]
process = device.neighbours[0]
emit(pid=child.pid, began=[began.neighbour.pid, began.neighbour.relation, began.change, began.event],
     sizes=sizes, line=line, ended=[[e.neighbour.pid, e.event, e.change] for e in ended],
     process=[process.pid, process.relation, process.amount, process.why, process.command],
     own=[device.pid, device.why],
     sum=device.own + (device.unattributed or 0) + sum(n.amount or 0 for n in device.neighbours), used=device.used,
     here=os.getpid())
"""
    )
    if values["own"][0] != values["here"]:
        # in a container with its own process IDs, the names of processes are unknown
        assert values["process"][1] == "unknown" and values["process"][3]
        return
    pid, kind, change, event = values["began"]
    assert (pid, kind, event) == (values["pid"], "child", "began")
    assert change > 256 * MIB
    assert values["ended"] == [[values["pid"], "ended", -change]]
    assert f"pid {pid} (python" in values["line"] and "child of this process) started" in values["line"]
    assert values["sum"] == values["used"]
    assert any(label.startswith(f"pid {pid} (") for label in values["sizes"])


def test_reading_time(run_python):
    values = run_python(
        HEAD
        + """
import statistics
child = other()
def cost(work, count=200):
    times = []
    for _ in range(count):
        start = time.perf_counter(); work(); times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6
def empty():
    with ipygpumem.measure():
        pass
ipygpumem.explain()
emit(measure=cost(empty), explain=cost(lambda: ipygpumem.explain(device=[0])), processes=cost(ipygpumem.processes))
child.communicate("x")
"""
    )
    print({name: f"{values[name]:.0f} us" for name in ("measure", "explain", "processes")})
    assert values["measure"] > 0


def test_text_without_ipython(run_python):
    values = run_python("import ipygpumem\nipygpumem.preload_pytorch()\nemit(text=str(ipygpumem.explain()))")
    assert values["text"].splitlines()[0].startswith("cuda:0, ")
    assert "▒" in values["text"]
