"""Tests of device names, and of readings of all devices, even if values change during a reading."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch

from fakes.builds import NO_GPU
from ipygpumem.core.errors import DeviceError
from ipygpumem.sources import pytorch
from ipygpumem.sources.device_monitor import DeviceMonitor

MIB = 1 << 20


def test_reading_does_not_initialize_cuda(fake_gpu):
    reading = DeviceMonitor().read()
    assert reading.devices == {}
    assert reading.host.rss > MIB
    assert not torch.cuda.is_initialized()
    assert not fake_gpu.initialized


def test_every_device_has_its_reading(two_gpus):
    two_gpus.alloc(3 * MIB, 0)
    two_gpus.alloc(30 * MIB, 1)
    devices = DeviceMonitor().read().devices
    assert {name: device.allocated for name, device in devices.items()} == {"cuda:0": 3 * MIB, "cuda:1": 30 * MIB}
    assert list(DeviceMonitor(selected=["cuda:1"]).read().devices) == ["cuda:1"]


def test_readings_share_equal_values(fake_gpu):
    """A session keeps thousands of reports, whose readings contain mostly the same values."""
    monitor = DeviceMonitor()

    def read(*, busy):
        return monitor.read(busy=busy).devices["cuda:0"]

    fake_gpu.alloc(3 * MIB)
    before, after, next_before = read(busy=False), read(busy=True), read(busy=False)
    assert next_before is before
    assert (before.busy, after.busy) == (None, False)
    assert after.used is before.used
    fake_gpu.alloc(5 * MIB)
    changed = read(busy=True)
    assert changed.allocated == 8 * MIB
    assert changed.total is before.total
    assert read(busy=False).used is changed.used
    for others, busy in (({77: MIB}, False), ({88: MIB}, True), ({77: MIB}, False)):
        fake_gpu.nvml.devices[0].others = others
        before = read(busy=busy)
    assert read(busy=True).listed is before.listed


def test_recent_values_are_used_again(fake_gpu):
    fake_gpu.alloc(3 * MIB)
    monitor = DeviceMonitor()
    monitor.read()
    calls = dict(fake_gpu.nvml.calls)
    previous = monitor.read()
    used = fake_gpu.nvml.calls["nvmlDeviceGetMemoryInfo_v2"] - calls["nvmlDeviceGetMemoryInfo_v2"]
    assert used == 1
    calls = dict(fake_gpu.nvml.calls)
    fake_gpu.alloc(2 * MIB)  # in the segment that exists
    reading = monitor.read(busy=False, previous=previous)
    assert dict(fake_gpu.nvml.calls) == calls
    before, now = previous.devices["cuda:0"], reading.devices["cuda:0"]
    assert (now.allocated - before.allocated, now.process, now.used) == (2 * MIB, before.process, before.used)
    assert (before.busy, now.busy) == (False, None)
    assert reading.host is previous.host
    assert reading.time > previous.time


@pytest.mark.parametrize("change", ["segment", "time", "clock", "no device"])
def test_values_that_may_have_changed_are_read_again(fake_gpu, change):
    fake_gpu.alloc(3 * MIB)
    monitor = DeviceMonitor()
    previous = monitor.read()
    before = previous.devices["cuda:0"]
    fake_gpu.outside(8 * MIB)
    if change == "segment":
        fake_gpu.alloc(64 * MIB)
    elif change == "time":
        previous = replace(previous, time=previous.time - 0.06)
    elif change == "clock":
        previous = replace(previous, time=previous.time + 60)
    else:
        previous = replace(previous, devices={})
    now = monitor.read(previous=previous).devices["cuda:0"]
    assert now.outside - before.outside == 8 * MIB
    assert now.busy is False or change == "segment"


@pytest.mark.parametrize("name", ["1", "cuda:1", " cuda:1 ", "cuda:01", 1])
def test_device_specifications(two_gpus, name):
    assert DeviceMonitor().parse_devices([name, name]) == ("cuda:1",)


def test_cuda_without_index_is_first_device(two_gpus):
    assert DeviceMonitor().parse_devices(["cuda"]) == ("cuda:0",)


@pytest.mark.parametrize("name", ["cuda:2", "7", "cpu", "-1", "cuda:-1", "", "cuda:a", "xcuda:0", "1.0"])
def test_invalid_devices(two_gpus, name):
    with pytest.raises(DeviceError) as exc_info:
        DeviceMonitor().parse_devices([name])
    assert "\n" not in str(exc_info.value)


def test_reading_is_repeated_if_segments_change(fake_gpu, monkeypatch):
    fake_gpu.alloc(MIB)
    monitor = DeviceMonitor()
    monitor.read()
    original, at = fake_gpu.nvml.nvmlDeviceGetMemoryInfo_v2, []

    def another_thread(*arguments):
        code = original(*arguments)
        if not at:
            at.append(fake_gpu.alloc(500 * MIB))
        return code

    fake_gpu.nvml.nvmlDeviceGetMemoryInfo_v2 = another_thread
    device = monitor.read().devices["cuda:0"]
    assert device.reserved == 502 * MIB
    assert device.outside == 612 * MIB


def test_values_of_failed_reading_are_none(fake_gpu, monkeypatch):
    fake_gpu.alloc(MIB)
    monitor = DeviceMonitor()
    monitor.read()
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", _raise)
    device = monitor.read().devices["cuda:0"]
    assert (device.allocated, device.used, device.why) == (None, None, "driver shut down")


def _raise(*_):
    raise RuntimeError("driver shut down\nand a traceback of C++")


def test_cuda_malloc_async(make_gpu):
    gpu = make_gpu(backend="cudaMallocAsync")
    gpu.alloc(MIB)
    device = DeviceMonitor().read().devices["cuda:0"]
    assert device.reserved == 2 * MIB
    assert device.torch_why.startswith("cudaMallocAsync")


def test_values_of_pluggable_allocator_are_none(make_gpu):
    gpu = make_gpu(backend="pluggable")
    torch.cuda.init()
    gpu.outside(500 * MIB)
    device = DeviceMonitor().read().devices["cuda:0"]
    assert (device.allocated, device.reserved, device.outside) == (None, None, None)
    assert device.torch_why.startswith("PyTorch's counters cannot be read")
    assert device.process == 1112 * MIB


def test_rejected_allocations(fake_gpu):
    fake_gpu.alloc(MIB)
    fake_gpu.devices[0].allocator.rejections = 3
    counted = "num_oom_rejections" in torch._C._cuda_memoryStats(0)  # since PyTorch 2.12
    assert DeviceMonitor().read().devices["cuda:0"].rejections == (3 if counted else None)


@pytest.mark.skipif(
    not hasattr(torch.cuda, "host_memory_stats"), reason="PyTorch 2.7 added statistics of pinned memory"
)
def test_pinned_memory(fake_gpu, monkeypatch):
    fake_gpu.alloc(MIB)
    fake_gpu.pinned = 7 * MIB
    assert DeviceMonitor().read().host.pinned == 7 * MIB
    monkeypatch.delattr(torch._C, "_cuda_hostMemoryStats")
    assert DeviceMonitor().read().host.pinned is None


def test_busy_query_does_not_wait(fake_gpu):
    fake_gpu.alloc(MIB)
    monitor = DeviceMonitor()
    monitor.read()
    fake_gpu[0].busy = True
    assert monitor.read().devices["cuda:0"].busy is True
    assert (fake_gpu.calls["synchronize"], fake_gpu.calls["cudaStreamSynchronize"]) == (0, 0)
    pytorch.synchronize()
    assert monitor.read().devices["cuda:0"].busy is False


def test_torch_errors(monkeypatch, fake_gpu):
    assert pytorch.problem(load=True) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.3.1+cu121")
        assert pytorch.problem(load=True) == "torch 2.3.1+cu121 is too old: 2.4 or later is required"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.14.0a0+git1234")
        assert pytorch.problem(load=True) is None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0)
        assert pytorch.problem(load=True) == "torch finds no NVIDIA GPU"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        assert "torch cannot be imported" in pytorch.problem(load=True)
        assert DeviceMonitor().read().devices == {}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        assert pytorch.module() is None, "during its own import"


def test_without_gpu():
    assert pytorch.problem(load=True) == NO_GPU
    assert DeviceMonitor().read().devices == {}
    with pytest.raises(DeviceError, match="this process sees 0 devices"):
        DeviceMonitor().parse_devices(["0"])
