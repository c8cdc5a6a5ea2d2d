"""Settings that change the order of devices or the allocator, each in its own process."""

import json
import os

import pytest

from ipygpumem.core.units import MIB

READ_DEVICE = """
import torch, ipygpumem
baseline = ipygpumem.preload_pytorch()
with ipygpumem.measure() as m:
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
from fakes.reports import imbalance
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import baseline_line
device = m.report.devices["cuda:0"]
uuid = ipygpumem.measurement.runtime.current().monitor.devices[0].uuid
emit(mode=device.after.mode, why=device.after.why, held=device.held, outside=device.outside, uuid=str(uuid),
     imbalance=imbalance(device.after), count=torch.cuda.device_count(), line=baseline_line(baseline),
     torch_why=device.after.torch_why, text=ShortReport(m.report).text(), process=device.after.process,
     context=baseline.context, kernels=baseline.kernels, workspace=baseline.workspace)
"""


def uuids():
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]


def test_device_by_index_and_uuid(torch, run_python):
    index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    for visible in (index, uuids()[0], uuids()[0][:12]):
        values = run_python(READ_DEVICE, CUDA_VISIBLE_DEVICES=visible)
        assert (values["mode"], values["held"], values["imbalance"]) == ("process", 64 * MIB, 0)
        assert f"GPU-{values['uuid']}" == uuids()[0]
        assert "test allocation" in values["why"]


def test_reversed_device_order(torch_on_two_gpus, run_python):
    for visible, first in (("0,1", 0), ("1,0", 1), ("1", 1), (f"{uuids()[1]},{uuids()[0]}", 1)):
        values = run_python(READ_DEVICE, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert f"GPU-{values['uuid']}" == uuids()[first]
        assert (values["mode"], values["held"], values["imbalance"]) == ("process", 64 * MIB, 0)


def test_expandable_segments(torch, run_python):
    values = run_python(READ_DEVICE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert (values["mode"], values["held"], values["imbalance"]) == ("process", 64 * MIB, 0)
    assert abs(values["outside"]) <= 4 * MIB


def test_cuda_malloc_async(torch, run_python, tmp_path):
    values = run_python(
        READ_DEVICE
        + f"""
try:
    ipygpumem.measure(snapshot={str(tmp_path / "x.pickle")!r})
except ipygpumem.RecordingError as error:
    emit(refused=str(error))
""",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert values["held"] == 64 * MIB
    assert "default memory pool" in values["torch_why"]
    assert "cudaMallocAsync" in values["refused"]
    assert values["imbalance"] == 0


def test_pluggable_allocator(torch, run_python, tmp_path):
    import shutil
    import subprocess

    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source = tmp_path / "alloc.cu"
    source.write_text(
        "#include <cuda_runtime.h>\n#include <sys/types.h>\n"
        'extern "C" void* allocate(ssize_t size, int device, cudaStream_t stream)'
        "{ void* p; cudaMalloc(&p, size); return p; }\n"
        'extern "C" void release(void* p, ssize_t size, int device, cudaStream_t stream) { cudaFree(p); }\n'
    )
    library = tmp_path / "alloc.so"
    subprocess.run([compiler, "-shared", "-Xcompiler", "-fPIC", "-o", library, source], check=True, timeout=200)
    values = run_python(
        f"""
        import torch, ipygpumem
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "allocate", "release"))
        from ipygpumem.features.report.short_report import ShortReport
        ipygpumem.preload_pytorch()
        with ipygpumem.measure() as m:
            x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        device = m.report.devices["cuda:0"]
        emit(held=device.held, process=device.process, why=device.after.torch_why, mode=device.after.mode,
             grade=device.grades["held"].trust, text=ShortReport(m.report).text())
        """
    )
    assert values["held"] is None
    assert values["grade"] == "unknown"
    assert values["mode"] == "process"
    assert values["process"] == pytest.approx(64 * MIB, abs=2 * MIB)


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
emit(**a)
"""


def test_first_kernels_are_in_baseline(torch, run_python):
    values = run_python(FIRST_USES)
    used = {name: value for name, value in values.items() if isinstance(value, int) and name != "returncode"}
    assert len(used) == 7
    assert all(abs(value) <= 4 * MIB for value in used.values()), str({k: v / MIB for k, v in used.items()})


def test_preload_adds_up(torch, run_python):
    values = run_python(READ_DEVICE)
    total = (values["context"] + values["kernels"]) / MIB
    assert values["context"] > 300 * MIB
    assert 0 < values["kernels"] < 200 * MIB
    assert f"baseline {round(total)} MiB (context " in values["line"]
    assert "cuBLAS workspace" in values["line"]


def test_preload_has_no_side_effects(torch, run_python):
    values = run_python(
        """
        import torch, ipygpumem
        torch.manual_seed(7)
        state = torch.get_rng_state().clone()
        ipygpumem.preload_pytorch()
        same_cpu = bool((torch.get_rng_state() == state).all())
        value = torch.rand(3, device="cuda").tolist()
        emit(same_cpu=same_cpu, value=value, peak=torch.cuda.max_memory_allocated(),
             now=torch.cuda.memory_allocated())
        """
    )
    bare = run_python(
        """
        import torch
        torch.manual_seed(7)
        emit(value=torch.rand(3, device="cuda").tolist())
        """
    )
    assert values["same_cpu"]
    assert values["value"] == bare["value"]
    # the random numbers need 512 bytes in addition to the workspace
    assert 0 <= values["peak"] - values["now"] <= 2 * MIB


def test_no_context_on_unused_device(torch_on_two_gpus, run_python):
    values = run_python(
        """
        import torch, ipygpumem
        ipygpumem.preload_pytorch()
        with ipygpumem.measure():
            torch.ones(10, device="cuda:0")
        emit(other=bool(torch._C._cuda_hasPrimaryContext(1)))
        with ipygpumem.measure() as m:
            torch.ones(64 << 20, dtype=torch.uint8, device="cuda:1")
            x = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:1")
        device = m.report.devices["cuda:1"]
        emit(held=device.held, started=device.started, outside=device.outside, mode=device.after.mode,
             idle=m.report.devices["cuda:0"].held)
        """
    )
    assert values["other"] is False
    assert values["held"] == 64 * MIB
    assert values["started"] is True
    assert values["outside"] > 200 * MIB
    assert values["mode"] == "process"
    assert values["idle"] == 0


def test_warning_of_deprecated_package_is_hidden(torch, run_python):
    values = run_python("import ipygpumem\nr = ipygpumem.preload_pytorch()\nemit(ok=r.device)")
    assert "FutureWarning" not in values["stderr"]
    assert json.dumps(values["ok"]) == '"cuda:0"'


def test_preload_context_only(torch, run_python):
    values = run_python(
        """
        import torch
        from ipygpumem.measurement.runtime import current
        baseline = current().preload("context")
        device = baseline.reading.devices["cuda:0"]
        emit(context=baseline.context, kernels=baseline.kernels, reserved=device.reserved, mode=device.mode)
        """
    )
    assert values["context"] > 300 * MIB
    assert (values["kernels"], values["reserved"], values["mode"]) == (0, 0, "process")


def test_test_allocation_is_outside_pytorch(torch, run_python):
    values = run_python(
        """
        import torch, ipygpumem
        ipygpumem.preload_pytorch()
        before = torch.cuda.memory_stats()["segment.all.allocated"]
        device = ipygpumem.measurement.runtime.current().monitor.devices[0]
        device.verify(torch, torch.cuda.memory_reserved())
        emit(mode=device.mode, why=device.reason,
             new_segments=torch.cuda.memory_stats()["segment.all.allocated"] - before)
        """
    )
    assert (values["mode"], values["new_segments"]) == ("process", 0)
    assert "test allocation" in values["why"]
