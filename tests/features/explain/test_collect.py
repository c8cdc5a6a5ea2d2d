"""Memory in CUPTI's records and in pools is counted once."""

from __future__ import annotations

import os
import sys
import types

import pytest

import ipygpumem
from fakes.cupti import CUPY, FakeCupti, use_library
from fakes.nvml import FakeNvmlDevice
from fakes.reports import waterfall_imbalance
from fakes.workers import exit_status_of_child
from ipygpumem.core.units import MIB
from ipygpumem.features.outside.cupti_recorder import cupti_recorder


def steps(waterfall):
    return {step.label: step.amount for step in waterfall.steps}


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


@pytest.fixture
def cupti(monkeypatch):
    pytest.importorskip("llvmlite")
    library = FakeCupti()
    use_library(monkeypatch, library)
    return library


@pytest.fixture
def cupy(monkeypatch):
    class Device:
        def __init__(self, index):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    pool = types.SimpleNamespace(total=0, total_bytes=lambda: pool.total, used_bytes=lambda: pool.total)
    module = types.ModuleType("cupy")
    module.get_default_memory_pool = lambda: pool
    module.cuda = types.SimpleNamespace(Device=Device)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return pool


def test_pool_counters_replace_records(gpu, cupy):
    cupy.total = 256 * MIB
    gpu.outside(300 * MIB)
    (waterfall,) = ipygpumem.explain().devices
    amounts = steps(waterfall)
    assert amounts["CuPy's pool"] == 256 * MIB
    assert amounts["libraries, kernel code, local memory, CUDA graphs"] == 44 * MIB
    (step,) = [step for step in waterfall.steps if step.label == "CuPy's pool"]
    assert (step.grade.trust, step.todo) == ("exact", "cupy.get_default_memory_pool().free_all_blocks()")
    assert waterfall_imbalance(waterfall) == 0


def test_memory_in_records_and_pool_is_listed_once(gpu, cupti, cupy):
    cupy.total = 100 * MIB  # before recording
    gpu.outside(100 * MIB)
    cupti_recorder().acquire()
    cupti.alloc(0x1000, 156 * MIB, CUPY)
    gpu.outside(156 * MIB)
    cupy.total = 256 * MIB
    (waterfall,) = ipygpumem.explain().devices
    amounts = steps(waterfall)
    assert (amounts["CuPy"], amounts["CuPy's pool, allocated before recording began"]) == (156 * MIB, 100 * MIB)
    assert "kernel code, local memory, CUDA graphs" not in amounts
    assert waterfall_imbalance(waterfall) == 0
    cupti_recorder().release()


def test_pool_larger_than_used_memory_is_counted_twice(gpu, cupy):
    cupy.total = 512 * MIB
    (waterfall,) = ipygpumem.explain().devices
    assert steps(waterfall)["counted twice"] == -512 * MIB
    assert waterfall_imbalance(waterfall) == 0
    assert str(ipygpumem.explain())
    assert ipygpumem.explain()._repr_html_()


def test_mig_instance_with_only_the_whole_gpu_visible(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(mig=True)])
    gpu.alloc(100 * MIB)
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.totals[-1].amount == 100 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="requires os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child(gpu, cupti):
    cupti_recorder().acquire()
    cupti.alloc(0x1000, 5)
    assert exit_status_of_child(lambda: bool(str(ipygpumem.explain()))) == 0
    cupti_recorder().release()
