"""The rows of the memory breakdown, compared with counters of the device and of PyTorch."""

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ipygpumem
from fakes.reports import imbalance
from ipygpumem.core.units import MIB

GRANULARITY = 2 * MIB
"""The unit in which CUDA allocates device memory, and therefore the tolerance for values from NVML."""


def check_balance(report):
    for device in report.devices.values():
        assert imbalance(device.before) == 0
        assert imbalance(device.after) == 0
        parts = (device.held, device.pending, device.cached, device.outside, device.others, device.unattributed)
        driver = device.after.driver_reserved - device.before.driver_reserved
        assert device.after.used - device.before.used == driver + sum(parts)


def test_nvml_entry_of_this_process_is_verified(torch):
    reading = ipygpumem.reading().devices["cuda:0"]
    assert reading.mode == "process"
    assert "test allocation" in reading.why
    assert reading.process >= torch.cuda.memory_reserved()
    assert imbalance(reading) == 0


def test_held_is_exact(torch):
    before = torch.cuda.memory_allocated()
    with ipygpumem.measure() as m:
        tensors = torch.empty(100 * MIB + 1, dtype=torch.uint8, device="cuda")
    device = m.report.devices["cuda:0"]
    assert device.held == torch.cuda.memory_allocated() - before == 100 * MIB + 512
    assert device.peak == device.held
    assert device.grades["held"].trust == device.grades["peak"].trust == "exact"
    assert abs(device.outside) <= GRANULARITY
    check_balance(m.report)
    del tensors


def test_peak_matches_counter(torch):
    def work():
        a = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
        b = torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
        del a
        return torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"), b

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tensors = work()
    expected = torch.cuda.max_memory_allocated() - before
    del tensors
    with ipygpumem.measure() as outer:
        with ipygpumem.measure() as first:
            tensors = work()
        del tensors
        with ipygpumem.measure() as second:
            small = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    assert first.report.devices["cuda:0"].peak == expected == 350 * MIB
    assert second.report.devices["cuda:0"].peak == 30 * MIB
    assert outer.report.devices["cuda:0"].peak == 350 * MIB
    del small


def test_cache_and_empty_cache(torch):
    with ipygpumem.measure() as fill:
        tensors = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del tensors
    device = fill.report.devices["cuda:0"]
    assert (device.held, device.peak, device.cached) == (0, 64 * MIB, 64 * MIB)
    with ipygpumem.measure() as drain:
        torch.cuda.empty_cache()
    assert drain.report.devices["cuda:0"].cached <= -64 * MIB
    check_balance(fill.report)
    check_balance(drain.report)


def test_pending_frees_are_not_cache(torch):
    side = torch.cuda.Stream()
    with ipygpumem.measure() as m:
        data = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000_000)
            data.add_(1)
        data.record_stream(side)
        del data
    device = m.report.devices["cuda:0"]
    assert device.pending == 40 * MIB
    assert device.held == 0
    check_balance(m.report)


def test_reading_says_whether_kernels_are_running(torch):
    with ipygpumem.measure() as m:
        torch.cuda._sleep(1_000_000_000)
    assert m.report.devices["cuda:0"].after.busy is True
    with ipygpumem.measure(synchronize=True) as m:
        torch.cuda._sleep(1_000_000)
    assert m.report.devices["cuda:0"].after.busy is False


def test_allocation_with_cudart_is_outside_pytorch(torch):
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in maps if "libcudart" in line.rpartition("/")[2])
    cudart = ctypes.CDLL(library)
    pointer = ctypes.c_void_p()
    with ipygpumem.measure() as m:
        assert cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(64 * MIB)) == 0
    device = m.report.devices["cuda:0"]
    assert abs(device.outside - 64 * MIB) <= GRANULARITY
    assert device.held == 0
    assert device.grades["outside"].trust == "exact"
    with ipygpumem.measure() as m:
        assert cudart.cudaFree(pointer) == 0
    assert abs(m.report.devices["cuda:0"].outside + 64 * MIB) <= GRANULARITY
    check_balance(m.report)


def test_cupy_is_outside_pytorch(torch):
    cupy = pytest.importorskip("cupy")
    cupy.cuda.runtime.getDeviceCount()
    with ipygpumem.measure() as m:
        tensors = cupy.empty(256 * MIB, dtype=cupy.uint8)
    assert abs(m.report.devices["cuda:0"].outside - 256 * MIB) <= GRANULARITY
    del tensors
    cupy.get_default_memory_pool().free_all_blocks()


def test_nccl_is_outside_pytorch(run_python):
    values = run_python(
        """
        import torch, torch.distributed as dist, ipygpumem
        ipygpumem.preload_pytorch()
        x = torch.ones(1024, device="cuda")
        with ipygpumem.measure() as m:
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29517", rank=0, world_size=1)
            dist.all_reduce(x)
            torch.cuda.synchronize()
        device = m.report.devices["cuda:0"]
        emit(outside=device.outside, held=device.held, grade=device.grades["outside"].trust)
        dist.destroy_process_group()
        """
    )
    assert values["outside"] > 300 * MIB
    assert values["grade"] == "exact"


def test_another_process_is_not_counted(torch):
    code = """
        import torch, sys
        x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        print("ready", flush=True)
        sys.stdin.readline()
    """
    with ipygpumem.measure() as m:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline().strip() == "ready"
    device = m.report.devices["cuda:0"]
    assert device.others > 256 * MIB
    assert abs(device.outside) <= GRANULARITY
    assert device.held == 0
    check_balance(m.report)
    process.communicate("\n", timeout=60)


def test_out_of_memory_error_is_raised_as_usual(torch, tmp_path):
    path = tmp_path / "oom.pickle"
    with pytest.raises(torch.cuda.OutOfMemoryError), ipygpumem.measure(snapshot=path) as m:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    report = m.report
    assert report.success is False
    assert report.devices["cuda:0"].ooms == 1
    assert report.recording.path == str(path)
    assert path.stat().st_size == report.recording.size > 0
    assert torch._C._cuda_isHistoryEnabled() is False


def test_graph_capture(torch):
    x = torch.ones(1024, device="cuda")
    (x * 2).sum().item()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), ipygpumem.measure() as m:
        y = x * 2
    graph.replay()
    torch.cuda.synchronize()
    assert y.sum().item() == 2048
    assert m.report.devices["cuda:0"].held >= 0


MEASURE_DURING_CAPTURE = """
import torch, ipygpumem
ipygpumem.preload_pytorch()
x = torch.ones(1024, device="cuda")
(x * 2).sum().item()
torch.cuda.synchronize()
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.stream(side):
    graph.capture_begin()
for synchronize in (False, True):
    with ipygpumem.measure(synchronize=synchronize) as m:
        pass
with torch.cuda.stream(side):
    y = x * 2
    graph.capture_end()
graph.replay()
torch.cuda.synchronize()
emit(value=y.sum().item(), mode=m.report.devices["cuda:0"].after.mode)
"""


def test_capture_on_another_stream(run_python):
    values = run_python(MEASURE_DURING_CAPTURE)
    assert values["value"] == 2048
    assert values["mode"] == "process"


def test_pinned_host_memory_is_counted(torch):
    with ipygpumem.measure() as m:
        tensors = torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True)
    assert m.report.host.pinned >= 32 * MIB
    del tensors


def test_replacements_for_ipyexperiments(torch):
    from ipygpumem.compat import ipyexperiments as mem

    total, free, used = mem.gpu_mem_get_mbs()
    assert abs(total - free - used) <= 1
    free_before = mem.gpu_mem_get_free_no_cache_mbs()
    tensors = mem.gpu_mem_allocate_mbs(500)
    assert abs(free_before - mem.gpu_mem_get_free_mbs() - 500) <= 2
    del tensors
    assert mem.gpu_mem_allocate_mbs(total * 2) is None
    with pytest.raises(torch.cuda.OutOfMemoryError):
        mem.gpu_mem_allocate_mbs(total * 2, fatal=True)
    tensors = mem.gpu_mem_leave_free_mbs(2000)
    assert abs(mem.gpu_mem_get_free_mbs() - 2000) <= 2
    del tensors
    assert abs(mem.gpu_mem_get_free_no_cache_mbs() - free_before) <= 2


@pytest.mark.parametrize("attempt", range(5))
def test_requested_memory_stays_free_in_new_process(run_python, attempt):
    values = run_python(
        """
        from ipygpumem.mem import gpu_mem_get_free_mbs, gpu_mem_leave_free_mbs, preload_pytorch
        preload_pytorch()
        before = gpu_mem_get_free_mbs()
        tensor = gpu_mem_leave_free_mbs(before - 10)
        after = gpu_mem_get_free_mbs()
        emit(before=before, after=after, ones=tensor.min().item() == tensor.max().item() == 1)
        """
    )
    assert abs(values["after"] - (values["before"] - 10)) <= 1
    assert values["ones"]


def test_replacements_for_zeta(torch, tmp_path, capsys):
    with ipygpumem.print_cuda_memory_usage():
        tensors = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
    assert capsys.readouterr().out == "CUDA memory usage: 0.39 GB\n"
    del tensors
    with ipygpumem.save_memory_snapshot(tmp_path / "run"):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert (tmp_path / "run" / "snapshot.pickle").stat().st_size > 0
    assert torch._C._cuda_isHistoryEnabled() is False
