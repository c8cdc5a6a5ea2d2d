"""Polling of memory levels: correct figures, few calls, no side effects."""

from __future__ import annotations

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from ipygpumem.core.reading import DeviceMemory
from ipygpumem.features.live import poller as poller_module
from ipygpumem.features.live.poller import Poller
from ipygpumem.measurement.runtime import current

LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


@pytest.fixture
def poller(gpu, monkeypatch):
    monkeypatch.setattr(poller_module, "_MIN_INTERVAL", 0.0)
    return Poller(current().monitor)


def test_levels_equal_a_reading(gpu, poller):
    gpu.nvml_device.others[1] = 300 * MIB
    gpu.alloc(100 * MIB)
    gpu.outside(50 * MIB)
    (level,) = poller.read().devices.values()
    reading = current().reading().devices["cuda:0"]
    assert (level.allocated, level.reserved, level.outside) == (reading.allocated, reading.reserved, reading.outside)
    assert level.others == reading.others + reading.unattributed
    assert (level.in_use, level.capacity, level.mode) == (reading.in_use, reading.capacity, "process")
    assert level.in_use == level.allocated + level.cached + level.outside + level.others


def test_processes_are_listed_only_after_a_change_outside_pytorch(gpu, poller):
    first = poller.read().devices["cuda:0"]
    gpu.nvml.calls.clear()
    gpu.alloc(500 * MIB)
    for _ in range(5):
        poller.read()
    assert gpu.nvml.calls[LIST] == 0
    gpu.nvml_device.others[1] = 300 * MIB
    gpu.outside(20 * MIB)
    second = poller.read().devices["cuda:0"]
    assert gpu.nvml.calls[LIST] == 1
    assert (second.others - first.others, second.outside - first.outside) == (300 * MIB, 20 * MIB)
    poller.read()
    assert gpu.nvml.calls[LIST] == 1


def test_no_cuda_calls(gpu, poller):
    gpu.calls.clear()
    poller.read()
    assert set(gpu.calls) == {"memoryStats"}
    with gpu.capture():
        poller.read()
    assert gpu.violations == []


def test_without_attribution_outside_includes_other_processes(make_gpu):
    gpu = make_gpu()
    gpu.nvml_device.regime = "hidden"
    gpu.nvml_device.others[1] = 300 * MIB
    ipygpumem.preload_pytorch()
    (level,) = Poller(current().monitor).read().devices.values()
    assert (level.process, level.others) == (None, None)
    assert level.outside > 300 * MIB


def test_failed_readings_are_unknown(gpu, poller):
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    (level,) = poller.read().devices.values()
    assert level.allocated is not None
    assert (level.outside, level.others, level.used) == (None, None, None)
    gpu.nvml.heal()
    gpu.break_device()
    assert poller.read().devices["cuda:0"].outside is not None


def test_memory_in_use_is_at_least_reserved_memory(gpu, poller, monkeypatch):
    """The device's counter is read first, and PyTorch may reserve memory in between."""
    gpu.alloc(100 * MIB)
    memory = DeviceMemory(140 << 30, 50 * MIB, 0, "NVML")
    monkeypatch.setattr(poller_module, "device_memory", lambda nvml, handle: memory)
    (level,) = poller.read().devices.values()
    assert (level.in_use, level.outside) == (level.reserved, 0)


def test_allocator_without_counters(make_gpu):
    make_gpu(backend="pluggable")
    ipygpumem.preload_pytorch()
    (level,) = Poller(current().monitor).read().devices.values()
    assert (level.allocated, level.cached, level.outside) == (None, None, None)
    assert level.used is not None


def test_host_without_a_gpu():
    levels = Poller(current().monitor).read()
    assert levels.devices == {}
    assert 0 < levels.host.rss < levels.host.total


def test_polling_improves_the_sampled_peak(gpu, poller):
    """600 MiB that PyTorch reserves at the end hide an earlier peak of 300 MiB, unless levels are polled before."""
    import time

    def outside_peak(*, poll):
        with ipygpumem.measure() as block:
            time.sleep(0.06)
            if poll:
                poller.read()
            gpu.outside(300 * MIB)
            time.sleep(0.03)
            gpu.outside(-300 * MIB)
            if poll:
                poller.read()
            allocation = gpu.alloc(600 * MIB)
        gpu.free(allocation)
        gpu[0].allocator.empty_cache()
        return block.report.devices["cuda:0"].outside_peak

    assert outside_peak(poll=False) is None
    assert outside_peak(poll=True) == 300 * MIB
