"""Tests that a test allocation finds the NVML entry of this process with all kinds of drivers and containers."""

from __future__ import annotations

import os

import pynvml
import pytest
import torch

from fakes.cuda import CONTEXT
from fakes.nvml import FakeNvmlDevice
from fakes.reports import imbalance
from ipygpumem.sources import cuda
from ipygpumem.sources import device as device_module
from ipygpumem.sources.device_monitor import DeviceMonitor

MIB = 1 << 20
CODES = [
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_UNKNOWN,
]
LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
MEMORY = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")


def start(gpu, size=100 * MIB):
    """Allocate a block on cuda:0, which initializes CUDA. Return the block and a new monitor."""
    return gpu.alloc(size), DeviceMonitor()


def read_device(monitor, name="cuda:0"):
    device = monitor.read().devices[name]
    assert imbalance(device) in {0, None}
    return device


@pytest.mark.parametrize("regime", ["bare", "A", "C"])
def test_own_entry_is_identified(make_gpu, regime):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime, others={9000001: 300 * MIB})])
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert (device.mode, device.why) == ("process", "NVML entry verified by a test allocation")
    assert device.process == CONTEXT + 100 * MIB
    assert device.outside == CONTEXT
    assert device.others == (0 if regime == "C" else 300 * MIB)
    assert device.unattributed == 8 * MIB + (300 * MIB if regime == "C" else 0)
    assert imbalance(device) == 0
    assert gpu.nvml_device.own == CONTEXT + 100 * MIB, "the test allocation was freed"
    assert gpu[0].allocator.stats["reserved_bytes"]["all"].peak == 100 * MIB, "it was not allocated by PyTorch"


def test_another_process_with_own_pid(make_gpu):
    nvml_device = FakeNvmlDevice(regime="A", others={os.getpid() - 3_000_000: 50 * MIB})
    _, monitor = start(make_gpu(nvml_devices=[nvml_device]))
    device = read_device(monitor)
    assert (device.process, device.others) == (CONTEXT + 100 * MIB, 50 * MIB)


@pytest.mark.parametrize(
    ("regime", "reason"),
    [
        ("B", "NVML reports 0 bytes for this process"),
        ("wsl", "does not report per-process memory usage on this system"),
        ("hidden", "NVML lists no process"),
        ("shared", "several entries"),
    ],
)
def test_own_entry_cannot_be_identified(make_gpu, regime, reason):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime, others={9000001: 300 * MIB})])
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert device.mode == "device"
    assert reason in device.why
    assert (device.process, device.others, device.unattributed) == (None, None, None)
    assert device.outside == CONTEXT + 8 * MIB + 300 * MIB, "of all processes, as the mode says"
    assert imbalance(device) == 0
    assert gpu.raw == {}


def test_this_process_is_not_listed(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime="hidden", drawing={5: 3 * MIB})])
    gpu.nvml_device.processes = lambda: [(9000001, 300 * MIB)]
    _, monitor = start(gpu)
    assert "this process is not in NVML's process list" in read_device(monitor).why


def test_pid_is_used_without_free_memory(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(total=1500 * MIB)])
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert gpu.calls["cudaMalloc"] == 0
    assert device.mode == "process"
    assert device.why == "NVML entry found by process ID (too little free memory for a test allocation)"


def test_host_pids_without_free_memory(make_gpu):
    _, monitor = start(make_gpu(nvml_devices=[FakeNvmlDevice(total=1500 * MIB, regime="A")]))
    device = read_device(monitor)
    assert (device.mode, device.process) == ("device", None)
    assert "too little free memory" in device.why


def test_pid_is_used_without_cuda_runtime(fake_gpu, monkeypatch):
    monkeypatch.setattr(cuda, "_runtime", lambda: None)
    _, monitor = start(fake_gpu)
    device = read_device(monitor)
    assert device.why == "NVML entry found by process ID (the test allocation outside PyTorch failed)"


def test_unchanged_device_is_another_device(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(uuid="GPU-a", regime="hidden"), FakeNvmlDevice(uuid="GPU-b")])
    # a virtualization layer in which NVML lists the devices in another order than CUDA
    gpu[0].nvml_device, gpu[1].nvml_device = gpu[1].nvml_device, gpu[0].nvml_device
    gpu.properties = None
    torch.cuda._get_device_properties = lambda index: _properties("ab"[index])
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert device.why == "the test allocation did not change the memory usage reported by NVML"
    assert device.source == "cudaMemGetInfo"
    assert device.mode == "device"


def _properties(uuid):
    class Properties:
        name, total_memory, major, minor = "NVIDIA H200", 100 * MIB, 9, 0

    Properties.uuid = uuid
    return Properties


def test_devices_are_matched_by_uuid(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(uuid="GPU-a"), FakeNvmlDevice(uuid="GPU-b", others={1: 77 * MIB})])
    gpu.nvml.devices.reverse()
    gpu.alloc(MIB, 1)
    assert read_device(DeviceMonitor(), "cuda:1").others == 77 * MIB


def test_mig_instance_is_read_by_its_own_handle(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(uuid="MIG-a", total=10_000 * MIB)])
    gpu.nvml.devices.append(FakeNvmlDevice(uuid="GPU-parent", mig=True))
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert (device.mode, device.total) == ("process", 10_000 * MIB)


def test_whole_gpu_of_mig_instance_is_not_used(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(uuid="GPU-a", mig=True)])
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert device.mode == "device"
    assert "cannot query this MIG instance" in device.why
    assert device.source == "cudaMemGetInfo"


def test_entry_smaller_than_pytorch_memory_is_not_used(fake_gpu):
    _, monitor = start(fake_gpu)
    assert read_device(monitor).mode == "process"
    fake_gpu.nvml_device.own = 99 * MIB
    device = read_device(monitor)
    assert (device.mode, device.process, device.others) == ("device", None, None)
    assert device.why == "NVML reports less memory for this process than PyTorch has reserved"


@pytest.fixture
def list_is_always_read(monkeypatch):
    """Let NVML's process list be read even if the memory usage of the device is unchanged."""
    monkeypatch.setattr(device_module, "_LIST_LIFETIME", -1.0)


@pytest.mark.usefixtures("list_is_always_read")
def test_entry_that_disappears_or_becomes_zero(fake_gpu):
    _, monitor = start(fake_gpu)
    read_device(monitor)
    for regime in ("hidden", "B"):
        fake_gpu.nvml_device.regime = regime
        device = read_device(monitor)
        assert (device.mode, device.process) == ("device", None)
        assert device.why == "this process is not in NVML's process list"
    fake_gpu.nvml_device.regime = "bare"
    assert read_device(monitor).mode == "process", "the entry is present again"


def test_process_list_is_read_again_only_after_a_change(fake_gpu, monkeypatch):
    monkeypatch.setattr(device_module, "_LIST_LIFETIME", 1000.0)
    _, monitor = start(fake_gpu)
    others = fake_gpu.nvml_device.others
    others[77] = 30 * MIB
    calls = fake_gpu.nvml.calls

    def read(expected_lists):
        earlier = calls[LISTS[0]]
        device = read_device(monitor)
        assert calls[LISTS[0]] - earlier == expected_lists
        assert (device.process, device.others) == (fake_gpu.nvml_device.own, sum(others.values()))
        assert dict(device.listed) == others
        return device

    read_device(monitor)
    assert read(0) is read(0)
    others[77] += 2 * MIB
    read(1)
    fake_gpu.outside(4 * MIB)
    read(1)
    read(0)
    used = fake_gpu.nvml_device.used
    others[77] -= 20 * MIB
    fake_gpu.alloc(20 * MIB)
    assert fake_gpu.nvml_device.used == used, "the new segment has the size that the other process has freed"
    assert read(1).outside == CONTEXT + 4 * MIB
    monkeypatch.setattr(device_module, "_LIST_LIFETIME", -1.0)
    read(1)


@pytest.mark.parametrize("functions", [LISTS, MEMORY])
def test_process_list_after_errors_of_nvml(fake_gpu, monkeypatch, functions):
    monkeypatch.setattr(device_module, "_LIST_LIFETIME", 1000.0)
    _, monitor = start(fake_gpu)
    expected = read_device(monitor)
    fake_gpu.outside(4 * MIB)
    for name in functions:
        fake_gpu.nvml.fail(name, pynvml.NVML_ERROR_UNKNOWN)
    failed = read_device(monitor)
    assert (failed.process is None) == (functions == LISTS)
    fake_gpu.nvml.heal()
    device = read_device(monitor)
    assert (device.process, device.why) == (expected.process + 4 * MIB, expected.why)


def test_peak_of_accounting_mode_is_read_with_an_unchanged_list(make_gpu, monkeypatch):
    monkeypatch.setattr(device_module, "_LIST_LIFETIME", 1000.0)
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(highest=0)])
    _, monitor = start(gpu)
    before = read_device(monitor)
    gpu.nvml_device.highest += 64 * MIB
    assert read_device(monitor).highest == before.highest + 64 * MIB


def test_graphics_processes_are_counted_once(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(drawing={9: 40 * MIB})])
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert (device.others, imbalance(device)) == (40 * MIB, 0)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("functions", [LISTS, MEMORY, LISTS + MEMORY, ("nvmlDeviceGetHandleByUUID",)])
def test_nvml_errors_at_start(make_gpu, functions, code):
    gpu = make_gpu()
    for name in functions:
        gpu.nvml.fail(name, code)
    if functions == ("nvmlDeviceGetHandleByUUID",):
        gpu.nvml.fail("nvmlDeviceGetHandleByPciBusId_v2", code)
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert device.allocated == 100 * MIB
    assert device.used is not None or functions == MEMORY
    assert device.why
    if functions == MEMORY:
        assert (device.mode, device.process) == ("process", CONTEXT + 100 * MIB), "as on machines with unified memory"
    else:
        assert (device.mode, device.process) == ("device", None)
        assert device.source == ("cudaMemGetInfo" if functions != LISTS else "NVML memory info v2")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("functions", [LISTS, MEMORY, LISTS + MEMORY])
@pytest.mark.usefixtures("list_is_always_read")
def test_nvml_errors_later(fake_gpu, functions, code):
    _, monitor = start(fake_gpu)
    assert read_device(monitor).mode == "process"
    for name in functions:
        fake_gpu.nvml.fail(name, code)
    device = read_device(monitor)
    assert device.allocated == 100 * MIB
    assert device.why != "NVML entry verified by a test allocation"
    assert (device.process is None) == (functions != MEMORY)
    if functions == LISTS + MEMORY:
        assert (device.mode, device.source) == ("device", "cudaMemGetInfo")
    fake_gpu.nvml.heal()
    assert read_device(monitor).mode == "process"


@pytest.mark.parametrize(
    ("present", "code", "reason"),
    [
        (False, None, "the NVIDIA driver library"),
        (True, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (True, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "the versions of the driver and of NVML differ"),
    ],
)
def test_cuda_is_queried_without_nvml(make_gpu, present, code, reason):
    gpu = make_gpu()
    gpu.nvml.present = present
    if code:
        gpu.nvml.fail("nvmlInitWithFlags", code)
    _, monitor = start(gpu)
    device = read_device(monitor)
    assert (device.mode, device.source) == ("device", "cudaMemGetInfo")
    assert reason in device.why
    assert device.driver_reserved is None
    assert device.outside == CONTEXT + 8 * MIB


def test_no_cuda_call_on_device_without_context(two_gpus):
    two_gpus.nvml.present = False
    _, monitor = start(two_gpus)
    for _ in range(3):
        device = read_device(monitor, "cuda:1")
    assert not two_gpus[1].context
    assert (device.context, device.process, device.used, device.mode) == (False, 0, None, "torch-only")
    assert device.total is not None, "from its properties"


def test_device_without_context_is_read_with_nvml(two_gpus):
    two_gpus[1].nvml_device.others[5] = 50 * MIB
    _, monitor = start(two_gpus)
    device = read_device(monitor, "cuda:1")
    assert (device.used, device.process, device.mode) == (665 * MIB, 0, "device")
    assert not two_gpus[1].context


@pytest.mark.parametrize("stream", ["current", "side"])
def test_no_forbidden_call_during_capture(two_gpus, stream):
    two_gpus.alloc(MIB, 0)
    two_gpus.alloc(MIB, 1)
    monitor = DeviceMonitor()
    with two_gpus.capture(stream):
        first = read_device(monitor)
    assert two_gpus.violations == []
    assert first.allocated == MIB
    device = read_device(monitor)
    assert device.mode == "process", "the test allocation waited for the end of the capture"
    two_gpus.nvml.present = False
    for name in LISTS + MEMORY:
        two_gpus.nvml.fail(name, pynvml.NVML_ERROR_GPU_IS_LOST)
    with two_gpus.capture(stream):
        read_device(monitor)
    assert two_gpus.violations == []


def test_values_readable_after_failed_kernel(fake_gpu):
    _, monitor = start(fake_gpu)
    read_device(monitor)
    fake_gpu.break_device()
    device = read_device(monitor)
    assert (device.allocated, device.process, device.busy) == (100 * MIB, CONTEXT + 100 * MIB, None)


def test_failed_kernel_before_first_reading(fake_gpu):
    _, monitor = start(fake_gpu)
    fake_gpu.break_device()
    device = read_device(monitor)
    assert device.allocated == 100 * MIB
    assert device.why


def _accompany(gpu, monkeypatch, *processes):
    """Make another process allocate and free the same amount of memory during each test allocation."""
    malloc, free, pending, moved = gpu.malloc, gpu.raw_free, list(processes), []

    def cuda_malloc(size):
        if pending:
            moved.append((pending.pop(0), size))
            gpu.nvml_device.others[moved[-1][0]] += size
        return malloc(size)

    def cuda_free(pointer):
        while moved:
            pid, size = moved.pop()
            gpu.nvml_device.others[pid] -= size
        free(pointer)

    monkeypatch.setattr(gpu, "malloc", cuda_malloc)
    monkeypatch.setattr(gpu, "raw_free", cuda_free)


def test_another_process_changes_once_by_the_same_amount(make_gpu, monkeypatch):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(others={7: 100 * MIB, 8: 100 * MIB})])
    _accompany(gpu, monkeypatch, 7, 8)
    _, monitor = start(gpu)
    assert read_device(monitor).others == 200 * MIB


def test_another_process_changes_by_the_same_amount_while_own_entry_is_hidden(make_gpu, monkeypatch):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(others={7: 100 * MIB}, regime="hidden")])
    gpu.nvml_device.processes = lambda: list(gpu.nvml_device.others.items())
    _accompany(gpu, monkeypatch, 7)
    _, monitor = start(gpu)
    assert read_device(monitor).process is None
