"""Polling of memory levels: correct figures, few calls, no side effects."""

from __future__ import annotations

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from ipygpumem.features.live import poller as module
from ipygpumem.features.live.poller import Poller
from ipygpumem.measurement.runtime import current

LIST = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


@pytest.fixture
def follower(gpu, monkeypatch):
    monkeypatch.setattr(module, "_MIN_INTERVAL", 0.0)
    return Poller(current().monitor)


def test_levels_equal_a_reading(gpu, follower):
    gpu.nvml_device.others[1] = 300 * MIB
    gpu.alloc(100 * MIB)
    gpu.outside(50 * MIB)
    (level,) = follower.levels().devices
    reading = current().reading().devices["cuda:0"]
    assert (level.allocated, level.reserved, level.outside) == (reading.allocated, reading.reserved, reading.outside)
    assert level.others == reading.others + reading.unattributed
    assert (level.used, level.capacity, level.own) == (reading.in_use, reading.capacity, True)
    assert level.used == level.allocated + level.cached + level.outside + level.others


def test_processes_are_listed_only_after_a_change_outside_pytorch(gpu, follower):
    first = follower.levels().devices[0]
    gpu.nvml.calls.clear()
    gpu.alloc(500 * MIB)
    for _ in range(5):
        follower.levels()
    assert gpu.nvml.calls[LIST] == 0
    gpu.nvml_device.others[1] = 300 * MIB
    gpu.outside(20 * MIB)
    second = follower.levels().devices[0]
    assert gpu.nvml.calls[LIST] == 1
    assert (second.others - first.others, second.outside - first.outside) == (300 * MIB, 20 * MIB)
    follower.levels()
    assert gpu.nvml.calls[LIST] == 1


def test_no_cuda_calls(gpu, follower):
    gpu.calls.clear()
    follower.levels()
    assert set(gpu.calls) == {"memoryStats"}
    with gpu.capture():
        follower.levels()
    assert gpu.violations == []


def test_without_attribution_outside_includes_other_processes(make_gpu):
    gpu = make_gpu()
    gpu.nvml_device.regime = "hidden"
    gpu.nvml_device.others[1] = 300 * MIB
    ipygpumem.preload_pytorch()
    (level,) = Poller(current().monitor).levels().devices
    assert (level.own, level.others) == (False, None)
    assert level.outside > 300 * MIB


def test_failed_readings_are_unknown(gpu, follower):
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    (level,) = follower.levels().devices
    assert level.allocated is not None
    assert (level.outside, level.others, level.used) == (None, None, None)
    gpu.nvml.heal()
    gpu.break_device()
    assert follower.levels().devices[0].outside is not None


def test_allocator_without_counters(make_gpu):
    make_gpu(backend="pluggable")
    ipygpumem.preload_pytorch()
    (level,) = Poller(current().monitor).levels().devices
    assert (level.allocated, level.cached, level.outside) == (None, None, None)
    assert level.used is not None


def test_host_without_a_gpu():
    levels = Poller(current().monitor).levels()
    assert levels.devices == ()
    assert 0 < levels.rss < levels.total


def test_polling_improves_the_sampled_peak(gpu, follower):
    """600 MiB that PyTorch reserves at the end hide an earlier peak of 300 MiB, unless levels are polled before."""
    import time

    def turns(*, looks):
        with ipygpumem.measure() as block:
            time.sleep(0.06)
            if looks:
                follower.levels()
            gpu.outside(300 * MIB)
            time.sleep(0.03)
            gpu.outside(-300 * MIB)
            if looks:
                follower.levels()
            held = gpu.alloc(600 * MIB)
        gpu.free(held)
        gpu[0].allocator.empty_cache()
        return block.report.devices["cuda:0"].outside_peak

    assert turns(looks=False) is None
    assert turns(looks=True) == 300 * MIB
