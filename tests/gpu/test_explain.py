"""Waterfalls and other processes on a real GPU."""

import shutil

import pytest

MIB = 1 << 20
GRAIN = 2 * MIB

HEAD = """
import ctypes, gc, os, subprocess, sys, time
import torch, ipygpumem
from fakes.facts import waterfall_imbalance
MIB = 1 << 20
ipygpumem.preload_pytorch()
def steps():
    (fall,) = ipygpumem.explain(device=[0]).devices
    assert waterfall_imbalance(fall) == 0
    return {step.label: step.amount for step in fall.steps}, [step.grade.trust for step in fall.steps], fall.summary
library = next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l.rpartition("/")[2])
cudart, pointer = ctypes.CDLL(library), ctypes.c_void_p()
OTHER = '''
import torch, sys
x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
print("there", flush=True); sys.stdin.readline()
'''
def other(**variables):
    child = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **variables})
    child.stdout.readline()
    return child
"""


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_freed_by_empty_cache(fresh, settings):
    facts = fresh(
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
before, trusts, summary = steps()
reserved = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
freed = reserved - torch.cuda.memory_reserved()
after, _, _ = steps()
tell(before=before, after=after, freed=freed, allocated=torch.cuda.memory_allocated(), summary=summary, trusts=trusts)
""",
        PYTORCH_ALLOC_CONF=settings,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    before, after = facts["before"], facts["after"]
    assert facts["freed"] == before["cached, can be freed"] > 0
    assert "cached, can be freed" not in after
    assert after["unused in private pools of graphs"] == before["unused in private pools of graphs"] > 0
    assert after["allocated (tensors)"] == facts["allocated"]
    drop = before["nvidia-smi shows"] - after["nvidia-smi shows"]
    assert abs(drop - facts["freed"]) <= GRAIN
    assert {"CUDA context", "first kernels", "this process"} <= set(before)
    assert "torch.cuda.empty_cache() frees" in facts["summary"]


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi here")
def test_first_step_matches_nvidia_smi(fresh):
    facts = fresh(
        HEAD
        + """
x = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
uuid = str(torch.cuda.get_device_properties(0).uuid)
query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", f"GPU-{uuid}"]
shown = subprocess.run(query, capture_output=True, text=True, check=True).stdout
sizes, _, _ = steps()
tell(shown=int(shown) * MIB, sizes=sizes["nvidia-smi shows"])
"""
    )
    assert abs(facts["shown"] - facts["sizes"]) <= GRAIN


def test_libraries_and_managed_memory(fresh):
    pytest.importorskip("llvmlite")
    facts = fresh(
        HEAD
        + """
from ipygpumem.features.outside.cupti_records import outside_records
outside_records().acquire()
base, _, _ = steps()
cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB))
managed = ctypes.c_void_p()
cudart.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(128 * MIB), 1)
cudart.cudaMemset(managed, 1, ctypes.c_size_t(128 * MIB))
torch.cuda.synchronize()
sizes, trusts, _ = steps()
cudart.cudaFree(pointer); cudart.cudaFree(managed)
sizes_after, _, _ = steps()
outside_records().release()
tell(base=base, sizes=sizes, after=sizes_after, trusts=trusts)
"""
    )
    assert facts["sizes"]["ctypes"] == 512 * MIB
    assert abs(facts["sizes"]["managed memory"] - 128 * MIB) <= GRAIN
    assert "ctypes" not in facts["after"] and "managed memory" not in facts["after"]
    kernels = "kernel code, stacks, graphs"
    assert abs(facts["sizes"].get(kernels, 0) - facts["base"].get(kernels, 0)) <= GRAIN


def test_start_and_end_of_another_process(fresh):
    facts = fresh(
        HEAD
        + """
with ipygpumem.measure() as m:
    child = other(JPY_SESSION_NAME="/home/me/other.ipynb", JPY_PARENT_PID="1")
(began,) = [change for change in m.report.neighbours if change.event == "began"]
sizes, _, _ = steps()
(device, *_) = ipygpumem.processes()
from ipygpumem.features.report.line import text_line
line = text_line(m.report)
with ipygpumem.measure() as m:
    child.communicate("x")
    time.sleep(0.5)
ended = [change for change in m.report.neighbours if change.neighbour.pid == began.neighbour.pid]
process = device.neighbours[0]
tell(pid=child.pid, began=[began.neighbour.pid, began.neighbour.relation, began.change, began.event],
     sizes=sizes, line=line, ended=[[e.neighbour.pid, e.event, e.change] for e in ended],
     process=[process.pid, process.relation, process.amount, process.why, process.command],
     own=[device.pid, device.why],
     sum=device.own + (device.unattributed or 0) + sum(n.amount or 0 for n in device.neighbours), used=device.used,
     here=os.getpid())
"""
    )
    if facts["own"][0] != facts["here"]:
        # in a container with its own pids, processes are not looked up
        assert facts["process"][1] == "unknown" and facts["process"][3]
        return
    pid, kind, change, event = facts["began"]
    assert (pid, kind, event) == (facts["pid"], "child", "began")
    assert change > 256 * MIB
    assert facts["ended"] == [[facts["pid"], "ended", -change]]
    assert f"pid {pid} (python" in facts["line"] and "child of this process) started" in facts["line"]
    assert facts["sum"] == facts["used"]
    assert any(label.startswith(f"pid {pid} (") for label in facts["sizes"])


def test_reading_time(fresh):
    facts = fresh(
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
tell(measure=cost(empty), explain=cost(lambda: ipygpumem.explain(device=[0])), processes=cost(ipygpumem.processes))
child.communicate("x")
"""
    )
    print({name: f"{facts[name]:.0f} us" for name in ("measure", "explain", "processes")})
    assert facts["measure"] > 0


def test_text_without_ipython(fresh):
    facts = fresh("import ipygpumem\nipygpumem.preload_pytorch()\ntell(text=str(ipygpumem.explain()))")
    assert facts["text"].splitlines()[0].startswith("cuda:0, ")
    assert "▒" in facts["text"]
