"""``measure(outside=True)``: libraries by name, pools' own counts, what cannot be had; on the fake machine."""

from __future__ import annotations

import json
import sys
import threading
import types

import pytest
import torch

from fakes.cupti import CTYPES, CUBLAS, CUPY, MANAGED, NCCL, STATIC, TORCH, FakeCupti, put_under
from ipygpumem import Report, measure
from ipygpumem.features.outside.collect import OutsideQuestion
from ipygpumem.features.outside.cupti_records import outside_records
from ipygpumem.measurement.measurement import Measurement
from ipygpumem.sources import library_pools as pools
from ipygpumem.sources.cuda import CudaPool
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.sources.library_pools import pool_readings

pytest.importorskip("llvmlite")
MIB = 1 << 20


@pytest.fixture
def cupti(monkeypatch):
    library = FakeCupti()
    put_under(monkeypatch, library)
    return library


@pytest.fixture
def gpu(fake_gpu):
    """CUDA has started."""
    fake_gpu.alloc(MIB)
    return fake_gpu


def take(gpu, cupti, address, size, source, **facts):
    gpu.outside(size)
    cupti.alloc(address, size, source, **facts)


def told(m):
    (one,) = m.report.libraries
    return one


def test_each_library_and_the_rest(gpu, cupti):
    others = set(threading.enumerate())
    with measure(outside=True) as m:
        take(gpu, cupti, 0x1000, 388 * MIB, NCCL)
        take(gpu, cupti, 0x2000, 64 * MIB, CUBLAS)
        take(gpu, cupti, 0x3000, 256 * MIB, CUPY)
        cupti.free(0x3000)
        gpu.outside(-256 * MIB)
        gpu.outside(166 * MIB)
    one = told(m)
    assert m.report.devices["cuda:0"].outside == (388 + 64 + 166) * MIB
    assert (one.named, one.rest, one.idle, one.peak) == (452 * MIB, 166 * MIB, 0, 708 * MIB)
    assert [(each.library, each.change, each.peak, each.allocations) for each in one.libraries] == [
        ("NCCL", 388 * MIB, 388 * MIB, 1),
        ("cuBLAS", 64 * MIB, 64 * MIB, 1),
        ("CuPy", 0, 256 * MIB, 1),
    ]
    assert one.grade.trust == "exact"
    assert m.report.notes == ()
    assert {one for one in threading.enumerate() if one.name != "ipygpumem-sampler"} <= others
    assert Report.from_dict(json.loads(m.report.to_json())) == m.report


def test_managed_memory_and_kernels_variables(gpu, cupti):
    with measure(outside=True) as m:
        cupti.alloc(0x1000, 512 * MIB, CTYPES, memory=MANAGED)
        gpu.nvml_device.unattributed += 512 * MIB
        take(gpu, cupti, 0x2000, 8 * MIB, NCCL, memory=STATIC)
    one = told(m)
    assert (one.named, one.rest) == (8 * MIB, 0)
    assert {(each.library, each.memory) for each in one.libraries} == {("ctypes", "managed"), ("NCCL", "static")}


def test_cudas_own_pool_may_hold_more_than_is_in_use(gpu, cupti, monkeypatch):
    held = CudaPool(0, 0, 0, 0)
    monkeypatch.setattr(pools.cuda, "stream_pool", lambda index: held)
    with measure(outside=True) as m:
        cupti.alloc(0x1000, 40 * MIB, CUBLAS, pooled=True)
        gpu.outside(64 * MIB)
        held = CudaPool(64 * MIB, 40 * MIB, 96 * MIB, 40 * MIB)
    one = told(m)
    assert (one.named, one.idle, one.rest) == (40 * MIB, 24 * MIB, 0)
    (pool,) = one.pools
    assert (pool.change, pool.used, pool.now, pool.peak) == (64 * MIB, 40 * MIB, 64 * MIB, 96 * MIB)


def test_devices_are_apart(two_gpus, cupti):
    for device in (0, 1):
        two_gpus.alloc(MIB, device)
    with measure(outside=True) as m:
        two_gpus.outside(10 * MIB, 1)
        cupti.alloc(0x1000, 10 * MIB, CUPY, device=1)
    assert {one.device: (one.named, one.rest) for one in m.report.libraries} == {
        "cuda:0": (0, 0),
        "cuda:1": (10 * MIB, 0),
    }


def test_pytorchs_own_segments_by_record_and_by_count(gpu, cupti):
    with measure(outside=True) as m:
        block = gpu.alloc(100 * MIB)
        for segment in torch.cuda.memory_snapshot():
            if segment["total_size"] >= 100 * MIB:
                cupti.alloc(segment["address"], segment["total_size"], TORCH)
    assert told(m).libraries == ()
    assert m.report.notes == ()
    with measure(outside=True) as m:
        gpu.free(block)
        torch.cuda.empty_cache()  # and no record of it
    (note,) = m.report.notes
    assert note == (
        "cuda:0: records do not agree with PyTorch's own count (+100.0 MiB apart): another profiler may have taken some"
    )


def test_a_block_that_fails_has_its_libraries(gpu, cupti):
    with pytest.raises(ZeroDivisionError), measure(outside=True) as m:
        take(gpu, cupti, 0x1000, 10 * MIB, CUPY)
        raise ZeroDivisionError
    assert told(m).named == 10 * MIB


def test_nested_questions(gpu, cupti):
    with measure(outside=True) as outer:
        take(gpu, cupti, 0x1000, 10 * MIB, CUPY)
        with measure(outside=True) as inner:
            take(gpu, cupti, 0x2000, 5 * MIB, NCCL)
    assert told(inner).named == 5 * MIB
    assert told(outer).named == 15 * MIB
    assert not cupti.enabled


def test_what_is_not_asked_is_not_there(gpu, cupti):
    with measure() as m:
        take(gpu, cupti, 0x1000, 10 * MIB, CUPY)
    assert m.report.libraries == ()
    assert cupti.calls == []


def test_another_profiler_is_one_note_and_the_figures_stand(gpu, cupti):
    cupti.refuses["cuptiActivityEnable"] = 39
    with measure(outside=True) as m:
        gpu.outside(10 * MIB)
    one = told(m)
    assert (one.grade.trust, one.libraries, one.peak, one.rest) == ("unknown", (), None, 10 * MIB)
    (note,) = m.report.notes
    assert note.startswith("memory outside PyTorch by library: another profiler holds CUPTI")


def test_a_machine_without_cupti(gpu, no_cupti):
    with measure(outside=True) as m:
        gpu.outside(10 * MIB)
    assert told(m).grade.trust == "unknown"
    assert m.report.notes == ("memory outside PyTorch by library: no CUPTI is loaded: CUDA builds of PyTorch bring it",)


def test_a_machine_without_a_gpu():
    with measure(outside=True) as m:
        pass
    assert m.report.libraries == ()


def test_the_profiler_in_the_block(gpu, cupti):
    with measure(outside=True) as m:
        outside_records().pause()
        gpu.outside(10 * MIB)
        cupti.alloc(0x1000, 10 * MIB, CUPY)
        outside_records().resume()
        take(gpu, cupti, 0x2000, 6 * MIB, NCCL)
    one = told(m)
    assert (one.named, one.rest, one.grade.trust) == (6 * MIB, 10 * MIB, "sampled")
    assert one.seconds > 0
    assert "torch.profiler had CUPTI to itself" in m.report.notes[0]


def test_a_question_that_did_not_begin_ends(gpu, cupti):
    question = OutsideQuestion(DeviceMonitor())
    question.stop()
    question.stop()
    measurement = Measurement(DeviceMonitor())
    question.attach(measurement)
    assert cupti.enabled
    measurement.observers.append(types.SimpleNamespace(start=lambda: 1 / 0, stop=lambda: None))
    with pytest.raises(ZeroDivisionError):
        measurement.begin()
    assert not cupti.enabled


class Pool:
    """CuPy's: the one thing of it that is read."""

    total, used = 0, 0

    def total_bytes(self):
        return self.total

    def used_bytes(self):
        return self.used


@pytest.fixture
def cupy(monkeypatch):
    class Device:
        def __init__(self, index):
            assert index == 0, "no context is made"

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


def test_pools_count_themselves(gpu, cupy):
    with measure(outside=True) as m:
        cupy.total, cupy.used = 256 * MIB, 200 * MIB
        gpu.outside(256 * MIB)
    (pool,) = told(m).pools
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
    assert told(m).pools == ()


def test_a_pool_that_fails_keeps_nobody_else_from_answering(gpu, cupy, monkeypatch):
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge.backends_are_initialized = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    assert [one.name for one in pool_readings([0])] == ["CuPy's pool"]


def test_jax_is_asked_only_once_it_has_started(monkeypatch):
    stats = {"pool_bytes": 300, "peak_pool_bytes": 400, "bytes_in_use": 200, "peak_bytes_in_use": 250}
    device = types.SimpleNamespace(platform="gpu", local_hardware_id=0, memory_stats=lambda: stats)
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge.backends_are_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(local_devices=lambda: [device]))
    assert pool_readings([0]) == []
    bridge.backends_are_initialized = lambda: True
    (one,) = pool_readings([0])
    assert (one.name, one.held, one.used, one.peak) == ("JAX's pool", 300, 200, 400)
    assert pool_readings([1]) == []
    del stats["pool_bytes"], stats["peak_pool_bytes"]
    (one,) = pool_readings([0])
    assert (one.held, one.used, one.peak) == (None, 200, 250)


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
    assert {one.name: (one.used, one.peak) for one in pool_readings([0])} == {
        "RMM's allocations": (5, 9),
        "numba's arrays": (14, None),
    }
    eager._context = types.SimpleNamespace(_initialized=True)
    assert "TensorFlow's tensors" in {one.name for one in pool_readings([0])}
