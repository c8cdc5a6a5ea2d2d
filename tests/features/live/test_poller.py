"""Polling of memory usage: correct values, few calls and no side effects."""

from __future__ import annotations

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from ipygpumem.features.live import monitor
from ipygpumem.features.live.monitor import MemoryPoller
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.nvml import DeviceMemory

LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


@pytest.fixture
def poller(gpu, monkeypatch):
    monkeypatch.setattr(monitor, "_MIN_INTERVAL", 0.0)
    return MemoryPoller(current().monitor)


def test_values_equal_those_of_a_reading(gpu, poller):
    gpu.nvml_device.others[1] = 300 * MIB
    gpu.alloc(100 * MIB)
    gpu.outside(50 * MIB)
    (polled,) = poller.read().devices.values()
    reading = current().reading().devices["cuda:0"]
    assert (polled.allocated, polled.reserved, polled.outside) == (reading.allocated, reading.reserved, reading.outside)
    assert polled.others == reading.others + reading.unattributed
    assert (polled.in_use, polled.capacity, polled.mode) == (reading.in_use, reading.capacity, "process")
    assert polled.in_use == polled.allocated + polled.cached + polled.outside + polled.others


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
    (polled,) = MemoryPoller(current().monitor).read().devices.values()
    assert (polled.process, polled.others) == (None, None)
    assert polled.outside > 300 * MIB


def test_failed_readings_are_unknown(gpu, poller):
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    (polled,) = poller.read().devices.values()
    assert polled.allocated is not None
    assert (polled.outside, polled.others, polled.used) == (None, None, None)
    gpu.nvml.heal()
    gpu.break_device()
    assert poller.read().devices["cuda:0"].outside is not None


def test_memory_in_use_is_at_least_reserved_memory(gpu, poller, monkeypatch):
    gpu.alloc(100 * MIB)
    memory = DeviceMemory(140 << 30, 50 * MIB, 0, "NVML")
    monkeypatch.setattr(monitor, "device_memory", lambda nvml, handle: memory)
    (polled,) = poller.read().devices.values()
    assert (polled.in_use, polled.outside) == (polled.reserved, 0)


def test_allocator_without_counters(make_gpu):
    make_gpu(backend="pluggable")
    ipygpumem.preload_pytorch()
    (polled,) = MemoryPoller(current().monitor).read().devices.values()
    assert (polled.allocated, polled.cached, polled.outside) == (None, None, None)
    assert polled.used is not None


def test_host_without_a_gpu():
    polled = MemoryPoller(current().monitor).read()
    assert polled.devices == {}
    assert 0 < polled.host.rss < polled.host.total


def test_polling_improves_the_sampled_peak(gpu, poller):
    def outside_peak(*, poll):
        with ipygpumem.measure() as block:
            gpu.wait_for_samples()
            if poll:
                poller.read()
            gpu.outside(300 * MIB)
            gpu.wait_for_samples()
            gpu.outside(-300 * MIB)
            if poll:
                poller.read()
            allocation = gpu.alloc(600 * MIB)
        gpu.free(allocation)
        gpu[0].allocator.empty_cache()
        return block.report.devices["cuda:0"].outside_peak

    assert outside_peak(poll=False) is None
    assert outside_peak(poll=True) == 300 * MIB
