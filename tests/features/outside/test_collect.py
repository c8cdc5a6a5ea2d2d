"""``measure(outside=True)`` with fake devices and libraries: libraries, pools and errors."""

from __future__ import annotations

import json
import sys
import threading
import types

import pytest
import torch

from fakes.cupti import CTYPES, CUBLAS, CUPY, MANAGED, NCCL, STATIC, TORCH, FakeCupti, use_library
from ipygpumem import Report, measure
from ipygpumem.features.outside.collect import OutsideCollector
from ipygpumem.features.outside.cupti_recorder import cupti_recorder
from ipygpumem.measurement.measurement import Measurement
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import library_pools as pools
from ipygpumem.sources.library_pools import pool_readings

pytest.importorskip("llvmlite")
MIB = 1 << 20


@pytest.fixture
def cupti(monkeypatch):
    library = FakeCupti()
    use_library(monkeypatch, library)
    return library


@pytest.fixture
def gpu(fake_gpu):
    fake_gpu.alloc(MIB)
    return fake_gpu


def allocate(gpu, cupti, address, size, source, **values):
    gpu.outside(size)
    cupti.alloc(address, size, source, **values)


def outside_memory(m):
    (memory,) = m.report.libraries
    return memory


def test_libraries_and_remainder(gpu, cupti):
    threads = set(threading.enumerate())
    with measure(outside=True) as m:
        allocate(gpu, cupti, 0x1000, 388 * MIB, NCCL)
        allocate(gpu, cupti, 0x2000, 64 * MIB, CUBLAS)
        allocate(gpu, cupti, 0x3000, 256 * MIB, CUPY)
        cupti.free(0x3000)
        gpu.outside(-256 * MIB)
        gpu.outside(166 * MIB)
    memory = outside_memory(m)
    assert m.report.devices["cuda:0"].outside == (388 + 64 + 166) * MIB
    assert (memory.named, memory.rest, memory.idle, memory.peak) == (452 * MIB, 166 * MIB, 0, 708 * MIB)
    assert [(library.library, library.change, library.peak, library.allocations) for library in memory.libraries] == [
        ("NCCL", 388 * MIB, 388 * MIB, 1),
        ("cuBLAS", 64 * MIB, 64 * MIB, 1),
        ("CuPy", 0, 256 * MIB, 1),
    ]
    assert memory.grade.trust == "exact"
    assert m.report.notes == ()
    assert {thread for thread in threading.enumerate() if thread.name != "ipygpumem-sampler"} <= threads
    assert Report.from_dict(json.loads(m.report.to_json())) == m.report


def test_managed_memory_and_kernel_variables(gpu, cupti):
    with measure(outside=True) as m:
        cupti.alloc(0x1000, 512 * MIB, CTYPES, memory=MANAGED)
        gpu.nvml_device.unattributed += 512 * MIB
        allocate(gpu, cupti, 0x2000, 8 * MIB, NCCL, memory=STATIC)
    memory = outside_memory(m)
    assert (memory.named, memory.rest) == (8 * MIB, 0)
    assert {(library.library, library.memory) for library in memory.libraries} == {
        ("ctypes", "managed"),
        ("NCCL", "static"),
    }


def test_unused_memory_in_cuda_pool(gpu, cupti, monkeypatch):
    cuda_pool = (0, 0, 0)
    monkeypatch.setattr(pools.cuda, "pool", lambda index, kind: cuda_pool if kind == "stream" else None)
    with measure(outside=True) as m:
        cupti.alloc(0x1000, 40 * MIB, CUBLAS, pooled=True)
        gpu.outside(64 * MIB)
        cuda_pool = (64 * MIB, 40 * MIB, 96 * MIB)
    memory = outside_memory(m)
    assert (memory.named, memory.idle, memory.rest) == (40 * MIB, 24 * MIB, 0)
    (pool,) = memory.pools
    assert (pool.change, pool.used, pool.now, pool.peak) == (64 * MIB, 40 * MIB, 64 * MIB, 96 * MIB)


def test_several_devices(two_gpus, cupti):
    for device in (0, 1):
        two_gpus.alloc(MIB, device)
    with measure(outside=True) as m:
        two_gpus.outside(10 * MIB, 1)
        cupti.alloc(0x1000, 10 * MIB, CUPY, device=1)
    assert {memory.device: (memory.named, memory.rest) for memory in m.report.libraries} == {
        "cuda:0": (0, 0),
        "cuda:1": (10 * MIB, 0),
    }


def test_missing_records_of_pytorch_segments(gpu, cupti):
    with measure(outside=True) as m:
        block = gpu.alloc(100 * MIB)
        for segment in torch.cuda.memory_snapshot():
            if segment["total_size"] >= 100 * MIB:
                cupti.alloc(segment["address"], segment["total_size"], TORCH)
    assert outside_memory(m).libraries == ()
    assert m.report.notes == ()
    with measure(outside=True) as m:
        gpu.free(block)
        torch.cuda.empty_cache()  # without a record
    (note,) = m.report.notes
    assert note == (
        "cuda:0: the change in reserved memory that CUPTI recorded differs from PyTorch's counter by +100.0 MiB, "
        "possibly because another profiler received some of the records"
    )


def test_block_that_raises(gpu, cupti):
    with pytest.raises(ZeroDivisionError), measure(outside=True) as m:
        allocate(gpu, cupti, 0x1000, 10 * MIB, CUPY)
        raise ZeroDivisionError
    assert outside_memory(m).named == 10 * MIB


def test_nested_measurements(gpu, cupti):
    with measure(outside=True) as outer:
        allocate(gpu, cupti, 0x1000, 10 * MIB, CUPY)
        with measure(outside=True) as inner:
            allocate(gpu, cupti, 0x2000, 5 * MIB, NCCL)
    assert outside_memory(inner).named == 5 * MIB
    assert outside_memory(outer).named == 15 * MIB
    assert not cupti.enabled


def test_no_libraries_unless_requested(gpu, cupti):
    with measure() as m:
        allocate(gpu, cupti, 0x1000, 10 * MIB, CUPY)
    assert m.report.libraries == ()
    assert cupti.calls == []


def test_note_about_another_profiler(gpu, cupti):
    cupti.refuses["cuptiActivityEnable"] = 39
    with measure(outside=True) as m:
        gpu.outside(10 * MIB)
    memory = outside_memory(m)
    assert (memory.grade.trust, memory.libraries, memory.peak, memory.rest) == ("unknown", (), None, 10 * MIB)
    (note,) = m.report.notes
    assert note.startswith("memory outside PyTorch by library: another profiler or debugger is using CUPTI")


def test_without_cupti(gpu, no_cupti):
    with measure(outside=True) as m:
        gpu.outside(10 * MIB)
    assert outside_memory(m).grade.trust == "unknown"
    assert m.report.notes == (
        "memory outside PyTorch by library: the CUPTI library is not loaded: only CUDA builds of PyTorch load it",
    )


def test_without_gpu():
    with measure(outside=True) as m:
        pass
    assert m.report.libraries == ()


def test_profiler_in_block(gpu, cupti):
    with measure(outside=True) as m:
        cupti_recorder().pause()
        gpu.outside(10 * MIB)
        cupti.alloc(0x1000, 10 * MIB, CUPY)
        cupti_recorder().resume()
        allocate(gpu, cupti, 0x2000, 6 * MIB, NCCL)
    memory = outside_memory(m)
    assert (memory.named, memory.rest, memory.grade.trust) == (6 * MIB, 10 * MIB, "sampled")
    assert memory.seconds > 0
    assert "while torch.profiler used CUPTI" in m.report.notes[0]


def test_collector_that_was_not_started(gpu, cupti):
    collector = OutsideCollector()
    collector.stop()
    collector.stop()
    measurement = Measurement(current())
    collector.attach(measurement)
    assert cupti.enabled
    measurement.observers.append(types.SimpleNamespace(cost=0.0, start=lambda: 1 / 0, stop=lambda: None))
    with pytest.raises(ZeroDivisionError):
        measurement.begin()
    measurement.abandon()
    assert not cupti.enabled


class Pool:
    total, used = 0, 0

    def total_bytes(self):
        return self.total

    def used_bytes(self):
        return self.used


@pytest.fixture
def cupy(monkeypatch):
    class Device:
        def __init__(self, index):
            assert index == 0, "no context is created"

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    pool = Pool()
    module = types.ModuleType("cupy")
    module.get_default_memory_pool = lambda: pool
    module.cuda = types.SimpleNamespace(Device=Device)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return pool


def test_counters_of_pools(gpu, cupy):
    with measure(outside=True) as m:
        cupy.total, cupy.used = 256 * MIB, 200 * MIB
        gpu.outside(256 * MIB)
    (pool,) = outside_memory(m).pools
    assert (pool.name, pool.change, pool.used, pool.now, pool.peak) == (
        "CuPy's pool",
        256 * MIB,
        200 * MIB,
        256 * MIB,
        None,
    )
    assert pool.grade.reason == "cupy.get_default_memory_pool()"
    with measure(outside=True) as m:
        pass
    assert outside_memory(m).pools == ()


def test_error_of_one_pool_does_not_affect_others(gpu, cupy, monkeypatch):
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge.backends_are_initialized = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    assert [pool.name for pool in pool_readings([0])] == ["CuPy's pool"]


def test_jax_is_read_only_if_initialized(monkeypatch):
    stats = {"pool_bytes": 300, "peak_pool_bytes": 400, "bytes_in_use": 200, "peak_bytes_in_use": 250}
    device = types.SimpleNamespace(platform="gpu", local_hardware_id=0, memory_stats=lambda: stats)
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge.backends_are_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(local_devices=lambda: [device]))
    assert pool_readings([0]) == []
    bridge.backends_are_initialized = lambda: True
    (pool,) = pool_readings([0])
    assert (pool.name, pool.reserved, pool.used, pool.peak) == ("JAX's pool", 300, 200, 400)
    assert pool_readings([1]) == []
    del stats["pool_bytes"], stats["peak_pool_bytes"]
    (pool,) = pool_readings([0])
    assert (pool.reserved, pool.used, pool.peak) == (None, 200, 250)


def test_rmm_tensorflow_and_numba(monkeypatch):
    counts = types.SimpleNamespace(current_bytes=5, peak_bytes=9)
    inner = types.SimpleNamespace(allocation_counts=counts)
    rmm = types.SimpleNamespace(
        mr=types.SimpleNamespace(get_per_device_resource=lambda index: types.SimpleNamespace(upstream_mr=inner))
    )
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    eager = types.SimpleNamespace(_context=None)
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", eager)
    config = types.SimpleNamespace(get_memory_info=lambda name: {"current": 3, "peak": 4})
    monkeypatch.setitem(
        sys.modules, "tensorflow", types.SimpleNamespace(config=types.SimpleNamespace(experimental=config))
    )
    block = types.SimpleNamespace(size=7)
    manager = types.SimpleNamespace(allocations={1: block, 2: block})
    device = types.SimpleNamespace(id=0, primary_context=types.SimpleNamespace(memory_manager=manager))
    idle = types.SimpleNamespace(id=1, primary_context=None)
    driver = types.SimpleNamespace(driver=types.SimpleNamespace(is_initialized=True))
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv.driver", driver)
    gpus = types.SimpleNamespace(gpus=types.SimpleNamespace(lst=[device, idle]))
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv.devices", gpus)
    assert {pool.name: (pool.used, pool.peak) for pool in pool_readings([0])} == {
        "RMM's allocations": (5, 9),
        "numba's arrays": (14, None),
    }
    eager._context = types.SimpleNamespace(_initialized=True)
    assert "TensorFlow's tensors" in {pool.name for pool in pool_readings([0])}
