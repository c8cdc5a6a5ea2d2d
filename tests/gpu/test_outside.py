"""Memory outside PyTorch by library on a real GPU."""

import os

import pytest

pytest.importorskip("llvmlite")

MIB = 1 << 20
GRANULARITY = 2 * MIB
SECONDS = float(os.environ.get("IPYGPUMEM_STRESS", "60"))

HEAD = """
import collections, ctypes, subprocess, sys, textwrap, threading, time, warnings
import torch, ipygpumem
from fakes.reports import imbalance
MIB = 1 << 20
x = torch.ones(1, device="cuda"); torch.cuda.synchronize(); ipygpumem.reading()
library = next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l.rpartition("/")[2])
cudart, pointer = ctypes.CDLL(library), ctypes.c_void_p()
steps = {}
def step(name, work):
    with ipygpumem.measure(outside=True) as m:
        tensors = work()
        torch.cuda.synchronize()
    device = m.report.devices["cuda:0"]
    (memory,) = [memory for memory in m.report.libraries if memory.device == "cuda:0"]  # JAX uses all devices
    assert imbalance(device.after) == 0
    steps[name] = dict(
        outside=device.outside, unattributed=device.unattributed, others=device.others, held=device.held,
        rest=memory.rest, idle=memory.idle, named=memory.named, peak=memory.peak, grade=memory.grade.trust,
        notes=m.report.notes,
        libraries=[[l.library, l.memory, l.change, l.peak, l.allocated, l.freed, l.allocations]
                   for l in memory.libraries],
        pools={pool.name: [pool.change, pool.used, pool.now, pool.peak] for pool in memory.pools},
    )
    return tensors
"""


def changes(step, memory="device"):
    sums = {}
    for library, kind, change, *_ in step["libraries"]:
        if kind == memory and change:
            sums[library] = sums.get(library, 0) + change
    return sums


def exact_changes(step):
    """Check that the records of a step are exact and add up to NVML's change, and return the changes by library."""
    assert step["grade"] == "exact", step
    assert step["notes"] == [], step
    assert step["named"] + step["idle"] + step["rest"] == step["outside"]
    return changes(step)


LIBRARY_STEPS = (
    HEAD
    + """
a = torch.ones(2048, 2048, device="cuda")
step("matmul", lambda: a @ a)
step("svd", lambda: torch.linalg.svd(a[:512, :512]))
net, image = torch.nn.Conv2d(3, 64, 7).cuda(), torch.ones(8, 3, 224, 224, device="cuda")
step("conv", lambda: net(image).sum().backward())
step("fft", lambda: torch.fft.fft2(torch.ones(3000, 3001, device="cuda")))
step("tensors", lambda: torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"))
step("raw", lambda: cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB)))
step("raw, freed", lambda: cudart.cudaFree(pointer))
def spike():
    for size in (100, 300, 200):
        cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size * MIB)); cudart.cudaFree(pointer)
step("spike", spike)
managed = ctypes.c_void_p()
def touch():
    cudart.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(512 * MIB), 1)
    cudart.cudaMemset(managed, 1, ctypes.c_size_t(512 * MIB))
step("managed", touch)
cudart.cudaFree(managed)
step("pinned", lambda: torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True))
step("stream pool", lambda: cudart.cudaMallocAsync(ctypes.byref(pointer), ctypes.c_size_t(256 * MIB), None))
step("stream pool, freed", lambda: cudart.cudaFreeAsync(pointer, None))
step("stack limit", lambda: (cudart.cudaDeviceSetLimit(0, ctypes.c_size_t(8192)), x + 1))
cudart.cudaDeviceSetLimit(0, ctypes.c_size_t(1024)); x + 1; torch.cuda.synchronize()
def graph():
    y = torch.ones(1024, device="cuda")
    with torch.cuda.graph(g):
        for _ in range(100):
            y = y * 2
g = torch.cuda.CUDAGraph()
step("graph", graph)
step("cache released", torch.cuda.empty_cache)
code = '''
import torch, sys
x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
print("ready", flush=True); sys.stdin.readline()
'''
def other():
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    return child
child = step("another process", other)
child.communicate("x")
try:
    import cupy
except ImportError:
    pass
else:
    tensors = step("cupy", lambda: cupy.zeros(256 * MIB, dtype=cupy.uint8))
    def drop():
        global tensors
        tensors = None
        cupy.get_default_memory_pool().free_all_blocks()
    step("cupy, freed", drop)
emit(steps=steps, threads=[t.name for t in threading.enumerate() if t.name != "ipygpumem-sampler"])
"""
)


_RESULTS = {}


@pytest.fixture
def library_steps(run_python):
    if not _RESULTS:
        _RESULTS.update(run_python(LIBRARY_STEPS))
    assert _RESULTS["threads"] == ["MainThread"]
    return _RESULTS["steps"]


def test_matmul_is_cublas(library_steps):
    libraries = exact_changes(library_steps["matmul"])
    assert set(libraries) <= {"cuBLAS", "cuBLASLt"}
    assert 64 * MIB <= libraries["cuBLAS"] <= 65 * MIB
    assert 0 <= library_steps["matmul"]["rest"] <= 8 * MIB  # kernel code


def test_svd_is_cublas_and_cusolver(library_steps):
    libraries = exact_changes(library_steps["svd"])
    assert 64 * MIB <= libraries["cuBLAS"] <= 65 * MIB
    assert 32 * MIB <= libraries["cuSOLVER"] <= 33 * MIB


def test_conv_and_fft(library_steps):
    assert 0 < exact_changes(library_steps["conv"])["cuDNN"] < MIB
    assert 10 * MIB < exact_changes(library_steps["fft"])["cuFFT"] < 13 * MIB


def test_tensors_are_not_outside_pytorch(library_steps):
    assert exact_changes(library_steps["tensors"]) == {}
    assert abs(library_steps["tensors"]["rest"]) <= GRANULARITY
    assert exact_changes(library_steps["cache released"]).get("allocated before recording began", 0) == 0


def test_raw_memory_belongs_to_ctypes(library_steps):
    assert exact_changes(library_steps["raw"]) == {"ctypes": 512 * MIB}
    assert abs(library_steps["raw"]["rest"]) <= GRANULARITY
    assert library_steps["raw"]["peak"] == 512 * MIB
    assert library_steps["raw, freed"]["named"] == -512 * MIB
    assert exact_changes(library_steps["spike"]) == {}
    assert library_steps["spike"]["peak"] == 300 * MIB
    ((library, _, change, peak, allocated, freed, count),) = library_steps["spike"]["libraries"]
    assert (library, change, peak, allocated, freed, count) == ("ctypes", 0, 300 * MIB, 600 * MIB, 600 * MIB, 3)


def test_managed_and_pinned_memory(library_steps):
    step = library_steps["managed"]
    assert exact_changes(step) == {}
    assert changes(step, "managed") == {"ctypes": 512 * MIB}
    assert abs(step["unattributed"] - 512 * MIB) <= GRANULARITY
    assert sum(changes(library_steps["pinned"], "pinned").values()) == 32 * MIB
    assert abs(library_steps["pinned"]["rest"]) <= GRANULARITY


def test_cuda_pool(library_steps):
    step = library_steps["stream pool"]
    assert exact_changes(step) == {"ctypes": 256 * MIB}
    assert abs(step["rest"]) <= GRANULARITY
    assert step["pools"]["CUDA's default memory pool"][:2] == [256 * MIB, 256 * MIB]
    assert abs(library_steps["stream pool, freed"]["rest"]) <= GRANULARITY


def test_memory_without_recorded_allocation_is_the_remainder(library_steps):
    assert exact_changes(library_steps["stack limit"]) == {}
    assert library_steps["stack limit"]["rest"] > 1000 * MIB
    assert library_steps["graph"]["rest"] > 20 * MIB
    step = library_steps["another process"]
    assert exact_changes(step) == {}
    assert step["others"] > 256 * MIB
    assert abs(step["rest"]) <= GRANULARITY


def test_records_and_pool_of_cupy(library_steps):
    if "cupy" not in library_steps:
        pytest.skip("CuPy is not installed")
    step = library_steps["cupy"]
    assert exact_changes(step) == {"CuPy": 256 * MIB}
    assert abs(step["rest"]) <= GRANULARITY
    assert step["pools"]["CuPy's pool"][:3] == [256 * MIB, 256 * MIB, 256 * MIB]
    assert library_steps["cupy, freed"]["named"] == -256 * MIB


def test_nccl(run_python):
    values = run_python(
        HEAD
        + """
        import torch.distributed as dist
        y = torch.ones(1024, device="cuda")
        def go():
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29519", rank=0, world_size=1)
            dist.all_reduce(y)
        step("nccl", go)
        step("destroyed", dist.destroy_process_group)
        emit(steps=steps)
        """.replace("\n        ", "\n")
    )
    step = values["steps"]["nccl"]
    libraries = exact_changes(step)
    assert libraries["NCCL"] > 300 * MIB
    assert step["libraries"][0][6] > 100
    assert 0 < step["rest"] < 300 * MIB  # NCCL's kernel code


def test_jax(run_python):
    pytest.importorskip("jax")
    values = run_python(
        HEAD
        + """
        import jax, jax.numpy as jnp
        tensors = step("jax", lambda: jnp.ones(64 * MIB, dtype=jnp.float32).block_until_ready())
        more = step("more", lambda: jnp.ones(16 * MIB, dtype=jnp.float32).block_until_ready())
        emit(steps=steps)
        """.replace("\n        ", "\n"),
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    libraries = exact_changes(values["steps"]["jax"])
    assert libraries["JAX/XLA"] == 256 * MIB
    assert values["steps"]["jax"]["pools"]["JAX's pool"][1] >= 256 * MIB
    more = values["steps"]["more"]
    assert more["pools"]["JAX's pool"][1] == 64 * MIB
    # with several GPUs, JAX extends its pool with memory that CUPTI does not record
    assert (
        exact_changes(more).get("JAX/XLA", 0) >= 64 * MIB or more["rest"] == more["pools"]["JAX's pool"][0] >= 64 * MIB
    )


def test_only_nvml_is_used_without_llvmlite(run_python):
    values = run_python(
        "import sys; sys.modules['llvmlite'] = None\n"
        + HEAD
        + """
cupy = None
step("raw", lambda: cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB)))
try:
    import cupy
    tensors = step("cupy", lambda: cupy.zeros(256 * MIB, dtype=cupy.uint8))
except ImportError:
    pass
emit(steps=steps)
"""
    )
    step = values["steps"]["raw"]
    assert step["grade"] == "unknown"
    assert step["libraries"] == []
    assert abs(step["outside"] - 512 * MIB) <= GRANULARITY
    (note,) = step["notes"]
    assert "pip install 'ipygpumem[outside]'" in note
    if "cupy" in values["steps"]:
        assert values["steps"]["cupy"]["pools"]["CuPy's pool"][0] == 256 * MIB


@pytest.mark.parametrize("settings", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators(run_python, settings):
    values = run_python(
        HEAD
        + """
tensors = step("tensors", lambda: torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"))
step("raw", lambda: cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB)))
emit(steps=steps)
""",
        PYTORCH_ALLOC_CONF=settings,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    assert exact_changes(values["steps"]["tensors"]) == {}
    assert abs(values["steps"]["tensors"]["rest"]) <= GRANULARITY
    assert exact_changes(values["steps"]["raw"]) == {"ctypes": 512 * MIB}


PROFILED = """
import collections, ctypes, torch
from torch.profiler import profile, ProfilerActivity
{setup}
library = next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l.rpartition("/")[2])
cudart, pointer = ctypes.CDLL(library), ctypes.c_void_p()
def pair(size):
    cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size << 20)); cudart.cudaFree(pointer)
x = torch.ones(512, 512, device="cuda"); x @ x; torch.cuda.synchronize()
def profiled():
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        for _ in range(20):
            x @ x
        pair(7)
        torch.cuda.synchronize()
    events = collections.Counter(e.name for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA)
    return [sum(events.values()), sorted(events), "cudaMalloc" in {e.name for e in p.events()}]
events = [profiled()]
with cell() as first:
    pair(3)
    events.append(profiled())
    pair(5)
events.append(profiled())
with cell() as second:
    pair(9)
with profile(activities=[ProfilerActivity.CUDA]) as p:
    with cell() as third:
        pair(11)
with cell() as fourth:
    pair(13)
def summary(m):
    if m is None: return None
    memory = m.report.libraries[0]
    libraries = [[l.library, l.allocations, l.peak] for l in memory.libraries if l.memory == "device"]
    return [memory.grade.trust, libraries, list(m.report.notes)]
emit(events=events, cells=[summary(m) for m in (first, second, third, fourth)])
"""


def test_torch_profiler_before_during_and_after(run_python):
    reference = run_python(PROFILED.replace("{setup}", "import contextlib\ncell = contextlib.nullcontext"))
    measured = run_python(
        PROFILED.replace(
            "{setup}",
            "import functools, ipygpumem\nipygpumem.preload_pytorch()\n"
            "cell = functools.partial(ipygpumem.measure, outside=True)",
        )
    )
    assert measured["events"] == reference["events"]
    assert reference["events"][0][0] > 0 and reference["events"][0][2]
    assert "unknown buffer" not in measured["stderr"]
    first, second, third, fourth = measured["cells"]
    assert first[0] == "sampled" and "torch.profiler used CUPTI" in first[2][0]
    assert first[1] == [["ctypes", 2, 5 * MIB]]  # before and after the profiler
    assert second == ["exact", [["ctypes", 1, 9 * MIB]], []]
    assert third[0] == "sampled" and third[1] == []
    assert fourth == ["exact", [["ctypes", 1, 13 * MIB]], []]


STRESS = (
    HEAD
    + """
import faulthandler
seconds = {seconds}
faulthandler.dump_traceback_later(seconds + 30, exit=True)
try:
    import cupy
except ImportError:
    cupy = None
counts, stop = collections.Counter(), time.time() + seconds
def raw():
    mine = ctypes.c_void_p()
    while time.time() < stop:
        cudart.cudaMalloc(ctypes.byref(mine), ctypes.c_size_t(4 * MIB)); cudart.cudaFree(mine); counts["raw"] += 1
def tensors():
    while time.time() < stop:
        a = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"); del a
        torch.cuda.empty_cache(); counts["torch"] += 1
def pool():
    mine = cupy.cuda.MemoryPool() if cupy else None
    while cupy and time.time() < stop:
        a = mine.malloc(10 * MIB); del a; mine.free_all_blocks(); counts["cupy"] += 1
def poll():
    while time.time() < stop:
        torch.cuda.memory_stats(); counts["poll"] += 1
threads = [threading.Thread(target=f) for f in (raw, raw, tensors, tensors, tensors, pool, poll, poll)]
with ipygpumem.measure(outside=True) as m:
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    torch.cuda.empty_cache()
memory = m.report.libraries[0]
libraries = [library for library in memory.libraries if library.memory == "device"]
emit(counts=counts, grade=str(memory.grade), notes=m.report.notes, rest=memory.rest,
     libraries={library.library: [library.change, library.peak, library.allocations] for library in libraries})
"""
)


def test_eight_threads_for_a_minute(run_python):
    values = run_python(STRESS.replace("{seconds}", str(SECONDS)), timeout=SECONDS + 90)
    libraries, counts = values["libraries"], values["counts"]
    assert values["grade"].startswith("exact"), values
    assert values["notes"] == []
    change, peak, allocations = libraries["ctypes"]
    assert (change, allocations) == (0, counts["raw"]), values
    assert 4 * MIB <= peak <= 12 * MIB
    if "cupy" in counts:
        assert libraries["CuPy"][0] == 0 and libraries["CuPy"][2] == counts["cupy"]
    assert "allocated before recording began" not in libraries
    assert counts["poll"] > 100 * SECONDS


RECORDING_AT_EXIT = (
    HEAD
    + """
import os
m = ipygpumem.measure(outside=True)
m.__enter__()
tensors = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
if os.fork() == 0:
    m.__exit__(None, None, None)
    sys.exit(0)
child = os.wait()[1]
cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 * MIB))
{end}
"""
)


def test_fork_and_exit_while_recording(run_python):
    values = run_python(RECORDING_AT_EXIT.replace("{end}", "emit(child=child)"))
    assert values["child"] == 0
    end = """m.__exit__(None, None, None)
memory = m.report.libraries[0]
emit(grade=memory.grade.trust, named=memory.named)"""
    values = run_python(RECORDING_AT_EXIT.replace("{end}", end))
    assert (values["grade"], values["named"]) == ("exact", 512 * MIB)


def test_nothing_is_loaded_unless_requested(run_python):
    values = run_python(
        HEAD
        + """
with ipygpumem.measure() as m:
    pass
threads = [thread.name for thread in threading.enumerate() if thread.name not in ("MainThread", "ipygpumem-sampler")]
emit(llvmlite="llvmlite" in sys.modules, threads=threads, libraries=len(m.report.libraries))
"""
    )
    assert (values["llvmlite"], values["threads"], values["libraries"]) == (False, [], 0)
