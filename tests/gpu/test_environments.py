"""Processes with settings that change the order of devices and the allocator."""

import json
import os

import pytest

from ipygpumem.core.units import MIB

READ_DEVICE = """
import torch, ipygpumem
baseline = ipygpumem.preload_pytorch()
with ipygpumem.measure() as m:
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
from fakes.facts import imbalance
from ipygpumem.features.report.line import text_line
from ipygpumem.features.report.table import baseline_line
device = m.report.devices["cuda:0"]
uuid = ipygpumem.measurement.runtime.current().monitor.devices[0].uuid
tell(mode=device.after.mode, why=device.after.why, held=device.held, outside=device.outside, uuid=str(uuid),
     imbalance=imbalance(device.after), count=torch.cuda.device_count(), line=baseline_line(baseline),
     torch_why=device.after.torch_why, text=text_line(m.report), process=device.after.process,
     context=baseline.context, kernels=baseline.kernels, workspace=baseline.workspace)
"""


def uuids():
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]


def test_device_by_index_and_uuid(torch, fresh):
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    for visible in (index, uuids()[0], uuids()[0][:12]):
        facts = fresh(READ_DEVICE, CUDA_VISIBLE_DEVICES=visible)
        assert (facts["mode"], facts["held"], facts["imbalance"]) == ("process", 64 * MIB, 0)
        assert f"GPU-{facts['uuid']}" == uuids()[0]
        assert "test allocation" in facts["why"]


def test_reversed_device_order(two, fresh):
    for visible, first in (("0,1", 0), ("1,0", 1), ("1", 1), (f"{uuids()[1]},{uuids()[0]}", 1)):
        facts = fresh(READ_DEVICE, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert f"GPU-{facts['uuid']}" == uuids()[first]
        assert (facts["mode"], facts["held"], facts["imbalance"]) == ("process", 64 * MIB, 0)


def test_expandable_segments(torch, fresh):
    facts = fresh(READ_DEVICE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert (facts["mode"], facts["held"], facts["imbalance"]) == ("process", 64 * MIB, 0)
    assert abs(facts["outside"]) <= 4 * MIB


def test_cuda_malloc_async(torch, fresh, tmp_path):
    facts = fresh(
        READ_DEVICE
        + f"""
try:
    ipygpumem.measure(snapshot={str(tmp_path / "x.pickle")!r})
except ipygpumem.RecordingError as error:
    tell(refused=str(error))
""",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert facts["held"] == 64 * MIB
    assert "default memory pool" in facts["torch_why"]
    assert "cudaMallocAsync" in facts["refused"]
    assert facts["imbalance"] == 0


def test_pluggable_allocator(torch, fresh, tmp_path):
    import shutil
    import subprocess

    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = tmp_path / "alloc.cu"
    source.write_text(
        "#include <cuda_runtime.h>\n#include <sys/types.h>\n"
        'extern "C" void* take(ssize_t size, int device, cudaStream_t stream)'
        "{ void* p; cudaMalloc(&p, size); return p; }\n"
        'extern "C" void give(void* p, ssize_t size, int device, cudaStream_t stream) { cudaFree(p); }\n'
    )
    library = tmp_path / "alloc.so"
    subprocess.run([compiler, "-shared", "-Xcompiler", "-fPIC", "-o", library, source], check=True, timeout=200)
    facts = fresh(
        f"""
        import torch, ipygpumem
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "take", "give"))
        from ipygpumem.features.report.line import text_line
        ipygpumem.preload_pytorch()
        with ipygpumem.measure() as m:
            x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        device = m.report.devices["cuda:0"]
        tell(held=device.held, process=device.process, why=device.after.torch_why, mode=device.after.mode,
             grade=device.grades["held"].trust, text=text_line(m.report))
        """
    )
    assert facts["held"] is None
    assert facts["grade"] == "unknown"
    assert facts["mode"] == "process"
    assert facts["process"] == pytest.approx(64 * MIB, abs=2 * MIB)


FIRST_USES = """
import torch, ipygpumem
ipygpumem.preload_pytorch()
a = {}
def first(name, work):
    with ipygpumem.measure(synchronize=True) as m:
        work()
    a[name] = m.report.devices["cuda:0"].outside
f = lambda *s: torch.ones(*s, device="cuda")
h = lambda *s: torch.ones(*s, device="cuda", dtype=torch.bfloat16)
first("matmul", lambda: f(1024, 1024) @ f(1024, 1024))
first("matmul bf16", lambda: h(2048, 512) @ h(512, 1024))
first("softmax", lambda: torch.softmax(f(512, 1000), -1))
first("layer norm", lambda: torch.nn.functional.layer_norm(f(64, 768), (768,)))
first("sum", lambda: f(1000, 1000).sum().item())
first("copy", lambda: f(1000, 1000).cpu())
linear = torch.nn.Linear(512, 512).cuda()
with torch.no_grad():
    first("linear", lambda: torch.nn.functional.gelu(linear(f(64, 512))))
tell(**a)
"""


def test_first_kernels_are_in_baseline(torch, fresh):
    facts = fresh(FIRST_USES)
    used = {name: value for name, value in facts.items() if isinstance(value, int) and name != "returncode"}
    assert len(used) == 7
    assert all(abs(value) <= 4 * MIB for value in used.values()), str({k: v / MIB for k, v in used.items()})


def test_preload_adds_up(torch, fresh):
    facts = fresh(READ_DEVICE)
    total = (facts["context"] + facts["kernels"]) / MIB
    assert facts["context"] > 300 * MIB
    assert 0 < facts["kernels"] < 200 * MIB
    assert f"baseline {round(total)} MiB (context " in facts["line"]
    assert "cuBLAS workspace" in facts["line"]


def test_preload_leaves_no_trace(torch, fresh):
    """Random state, default flags and peak counters are unchanged."""
    facts = fresh(
        """
        import torch, ipygpumem
        torch.manual_seed(7)
        state = torch.get_rng_state().clone()
        ipygpumem.preload_pytorch()
        same_cpu = bool((torch.get_rng_state() == state).all())
        value = torch.rand(3, device="cuda").tolist()
        tell(same_cpu=same_cpu, value=value, peak=torch.cuda.max_memory_allocated(),
             now=torch.cuda.memory_allocated())
        """
    )
    bare = fresh(
        """
        import torch
        torch.manual_seed(7)
        tell(value=torch.rand(3, device="cuda").tolist())
        """
    )
    assert facts["same_cpu"]
    assert facts["value"] == bare["value"]
    # the random numbers take 512 bytes besides the workspace
    assert 0 <= facts["peak"] - facts["now"] <= 2 * MIB


def test_no_context_on_unused_device(two, fresh):
    facts = fresh(
        """
        import torch, ipygpumem
        ipygpumem.preload_pytorch()
        with ipygpumem.measure():
            torch.ones(10, device="cuda:0")
        tell(other=bool(torch._C._cuda_hasPrimaryContext(1)))
        with ipygpumem.measure() as m:
            torch.ones(64 << 20, dtype=torch.uint8, device="cuda:1")
            x = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:1")
        device = m.report.devices["cuda:1"]
        tell(held=device.held, started=device.started, outside=device.outside, mode=device.after.mode,
             idle=m.report.devices["cuda:0"].held)
        """
    )
    assert facts["other"] is False
    assert facts["held"] == 64 * MIB
    assert facts["started"] is True
    assert facts["outside"] > 200 * MIB
    assert facts["mode"] == "process"
    assert facts["idle"] == 0


def test_warning_of_deprecated_package_is_hidden(torch, fresh):
    facts = fresh("import ipygpumem\nr = ipygpumem.preload_pytorch()\ntell(ok=r.device)")
    assert "FutureWarning" not in facts["stderr"]
    assert json.dumps(facts["ok"]) == '"cuda:0"'


def test_preload_context_only(torch, fresh):
    facts = fresh(
        """
        import torch
        from ipygpumem.measurement.runtime import current
        baseline = current().preload("context")
        device = baseline.reading.devices["cuda:0"]
        tell(context=baseline.context, kernels=baseline.kernels, reserved=device.reserved, mode=device.mode)
        """
    )
    assert facts["context"] > 300 * MIB
    assert (facts["kernels"], facts["reserved"], facts["mode"]) == (0, 0, "process")


def test_test_allocation_is_outside_pytorch(torch, fresh):
    """The test allocation uses the loaded runtime, and does not change PyTorch's allocator."""
    facts = fresh(
        """
        import torch, ipygpumem
        ipygpumem.preload_pytorch()
        before = torch.cuda.memory_stats()["segment.all.allocated"]
        device = ipygpumem.measurement.runtime.current().monitor.devices[0]
        device.verify(torch, torch.cuda.memory_reserved())
        tell(mode=device.mode, why=device.reason,
             moved=torch.cuda.memory_stats()["segment.all.allocated"] - before)
        """
    )
    assert (facts["mode"], facts["moved"]) == ("process", 0)
    assert "test allocation" in facts["why"]
