"""Sampled curves in a snapshot file, which the viewer draws with the allocations."""

from __future__ import annotations

import time

import pytest

import ipygpumem
from fakes.cuda import MIB
from ipygpumem import Snapshot


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


def curve(path, name):
    result = Snapshot.load(path).own.curves[name]
    assert len(result["time_us"]) == len(result["bytes"])
    assert result["time_us"] == sorted(result["time_us"])
    return result


def work(gpu, device=0):
    gpu.wait_for_samples()
    block = gpu.alloc(400 * MIB, device)
    gpu.wait_for_samples()
    gpu.outside(300 * MIB, device)
    gpu.wait_for_samples()
    gpu.outside(-300 * MIB, device)
    gpu.free(block)
    gpu[device].allocator.empty_cache()
    gpu.wait_for_samples()


def test_device_used_and_outside(gpu, tmp_path):
    gpu[0].allocator.empty_cache()
    path = tmp_path / "x.pickle"
    begin = time.time() * 1e6
    base = gpu.nvml_device.own
    with ipygpumem.measure(snapshot=path) as block:
        work(gpu)
    used = curve(path, "device used")
    assert used["device"] == 0
    assert begin < used["time_us"][0] < used["time_us"][-1] < time.time() * 1e6
    used_before = base + gpu.nvml_device.driver_reserved + gpu.nvml_device.unattributed
    assert sorted(set(used["bytes"])) == [used_before, used_before + 400 * MIB, used_before + 700 * MIB]
    outside = curve(path, "outside PyTorch")
    start = block.report.devices["cuda:0"].before.outside
    assert set(outside["bytes"]) == {start, start + 300 * MIB}
    assert set(Snapshot.load(path).own.curves) == {"device used", "outside PyTorch"}


def test_recorded_segments_make_the_bound_exact(gpu, tmp_path):
    """300 MiB outside while PyTorch reserves and frees 400 MiB: without a recording these are not distinguishable."""
    gpu[0].allocator.empty_cache()
    small = gpu.alloc(512)

    def work():
        gpu.wait_for_samples()
        gpu.outside(300 * MIB)
        gpu.wait_for_samples()
        gpu.outside(-300 * MIB)
        gpu.free(gpu.alloc(512))  # an event: the next cudaMalloc began after it
        block = gpu.alloc(400 * MIB)
        gpu.free(block)
        gpu[0].allocator.empty_cache()

    with ipygpumem.measure() as unrecorded:
        work()
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle") as recorded:
        work()
    assert unrecorded.report.devices["cuda:0"].sampled is None
    assert recorded.report.devices["cuda:0"].outside_peak == 300 * MIB
    gpu.free(small)


def test_several_devices_and_a_short_block(two_gpus, tmp_path):
    import torch

    ipygpumem.preload_pytorch()
    torch.ones(1, device="cuda:1")
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle"):
        work(two_gpus, 1)
    names = {"device used, cuda:0", "device used, cuda:1", "outside PyTorch, cuda:0", "outside PyTorch, cuda:1"}
    assert set(Snapshot.load(tmp_path / "x.pickle").own.curves) == names
    assert curve(tmp_path / "x.pickle", "device used, cuda:1")["device"] == 1
    with ipygpumem.measure(snapshot=tmp_path / "y.pickle"):
        pass
    assert Snapshot.load(tmp_path / "y.pickle").own.curves == {}


def test_name_without_attribution_by_process(make_gpu, tmp_path):
    gpu = make_gpu()
    gpu.nvml_device.regime = "hidden"
    ipygpumem.preload_pytorch()
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle"):
        work(gpu)
    assert set(Snapshot.load(tmp_path / "x.pickle").own.curves) == {
        "device used",
        "outside PyTorch + other processes",
    }
