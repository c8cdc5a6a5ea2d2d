"""``ipygpumem.measure`` on a fake machine: values, nesting, errors and forks."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import mmap
import os
import pickle
import re
import signal
import tracemalloc
import weakref

import pynvml
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ipygpumem
from conftest import close_runtime
from fakes.builds import NO_GPU
from fakes.cuda import CONTEXT
from fakes.nvml import FakeNvmlDevice
from fakes.reports import imbalance
from fakes.workers import exit_status_of_child
from ipygpumem import DeviceError, OptionError, RecordingError, measure
from ipygpumem.measurement.runtime import current

MIB = 1 << 20


def test_measured_values(fake_gpu):
    block = fake_gpu.alloc(100 * MIB)
    with measure() as m:
        fake_gpu.alloc(400 * MIB)
        fake_gpu.free(fake_gpu.alloc(800 * MIB))
        fake_gpu.free(block)
        fake_gpu.outside(256 * MIB)
    device = m.report.devices["cuda:0"]
    assert (device.held, device.peak) == (300 * MIB, 1200 * MIB)
    assert (device.cached, device.pending) == (900 * MIB, 0)
    assert (device.outside, device.others, device.unattributed) == (256 * MIB, 0, 0)
    assert m.report.success is True
    assert m.report.cell is None
    assert ipygpumem.last is m.report


def test_pending_blocks(fake_gpu):
    block = fake_gpu.alloc(40 * MIB)
    with measure() as m:
        fake_gpu.free(block, used_by=1)
    device = m.report.devices["cuda:0"]
    assert (device.held, device.pending, device.cached) == (-40 * MIB, 40 * MIB, 0)


def test_other_process(fake_gpu):
    fake_gpu.alloc(MIB)
    with measure() as m:
        fake_gpu.nvml_device.others[9000001] = 3000 * MIB
        fake_gpu.nvml_device.unattributed += 50 * MIB
    device = m.report.devices["cuda:0"]
    assert (device.held, device.outside, device.others, device.unattributed) == (0, 0, 3000 * MIB, 50 * MIB)


def test_block_that_starts_cuda(fake_gpu):
    with measure() as m:
        x = torch.ones(1 << 20, device="cuda")
    device = m.report.devices["cuda:0"]
    assert (device.started, device.held, device.peak, device.outside) == (True, 4 * MIB, 4 * MIB, CONTEXT)
    del x


def test_nested_blocks(fake_gpu):
    fake_gpu.alloc(MIB)
    with measure() as outer:
        fake_gpu.free(fake_gpu.alloc(50 * MIB))
        with measure() as inner:
            fake_gpu.alloc(20 * MIB)
            torch.cuda.reset_peak_memory_stats()
        fake_gpu.alloc(5 * MIB)
    assert inner.report.devices["cuda:0"].peak == 20 * MIB
    assert (outer.report.devices["cuda:0"].held, outer.report.devices["cuda:0"].peak) == (25 * MIB, 50 * MIB)
    assert list(ipygpumem.reports) == [inner.report, outer.report]


def test_exception(fake_gpu):
    fake_gpu.alloc(MIB)
    with pytest.raises(ZeroDivisionError), measure() as m:
        fake_gpu.alloc(30 * MIB)
        raise ZeroDivisionError
    assert m.report.success is False
    assert m.report.devices["cuda:0"].held == 30 * MIB


def test_out_of_memory_error(fake_gpu, tmp_path):
    fake_gpu.alloc(MIB)
    with pytest.raises(torch.OutOfMemoryError), measure(snapshot=tmp_path / "oom.pickle") as m:
        fake_gpu.alloc(1 << 40)
    device = m.report.devices["cuda:0"]
    assert (device.ooms, device.retries) == (1, 1)
    actions = [event["action"] for event in pickle.loads((tmp_path / "oom.pickle").read_bytes())["device_traces"][0]]
    assert actions[-2:] == ["oom", "snapshot"]


def test_report_does_not_keep_values_alive(fake_gpu):
    class Value:
        pass

    value = Value()
    reference = weakref.ref(value)
    with pytest.raises(ValueError, match="x"), measure() as m:
        local = value
        raise ValueError("x", local)
    del value, local
    gc.collect()
    assert reference() is None
    assert m.report.success is False


def test_invalid_options(fake_gpu, tmp_path):
    invalid = [
        {"peaks": "maybe"},
        {"host_peak": "maybe"},
        {"stacks": "java"},
        {"max_entries": 0},
        {"max_entries": -1},
        {"max_entries": "abc"},
        {"max_entries": True},
        {"snapshot": tmp_path / "x", "history": {"color": "red"}},
        {"snapshot": tmp_path / "x", "history": {"enabled": None}},
        {"snapshot": ""},
        {"snapshot": tmp_path},
    ]
    for options in invalid:
        with pytest.raises(OptionError) as exc_info:
            measure(**options)
        assert "\n" not in str(exc_info.value)
    for devices in (["cuda:9"], [9], "cuda:9", ["cpu"]):
        with pytest.raises(DeviceError):
            measure(devices=devices)
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("devices", ["cuda:1", 1, ["cuda:1"], [1], ("cuda:1", 1)])
def test_selected_devices(two_gpus, devices):
    two_gpus.alloc(MIB, 0)
    two_gpus.alloc(MIB, 1)
    with measure(devices=devices) as m:
        two_gpus.alloc(30 * MIB, 0)
        two_gpus.alloc(40 * MIB, 1)
    assert {name: device.held for name, device in m.report.devices.items()} == {"cuda:1": 40 * MIB}


def test_untouched_peaks(fake_gpu):
    fake_gpu.free(fake_gpu.alloc(100 * MIB))
    with measure(peaks="untouched") as below_record:
        fake_gpu.free(fake_gpu.alloc(50 * MIB))
    with measure(peaks="untouched") as above_record:
        fake_gpu.free(fake_gpu.alloc(150 * MIB))
    assert fake_gpu.calls["resetPeakMemoryStats"] == 0
    bound, exact = below_record.report.devices["cuda:0"], above_record.report.devices["cuda:0"]
    assert (bound.peak, bound.grades["peak"].trust) == (100 * MIB, "bound")
    assert (exact.peak, exact.grades["peak"].trust) == (150 * MIB, "exact")


def test_synchronize(fake_gpu):
    fake_gpu.alloc(MIB)
    with measure() as m:
        fake_gpu[0].busy = True
    assert m.report.devices["cuda:0"].after.busy is True
    with measure(synchronize=True) as m:
        fake_gpu[0].busy = True
    assert m.report.devices["cuda:0"].after.busy is False


def test_no_call_that_would_invalidate_a_capture(fake_gpu):
    fake_gpu.alloc(MIB)
    for stream in ("current", "side"):
        with fake_gpu.capture(stream), measure(synchronize=True) as m:
            fake_gpu.alloc(10 * MIB)
        assert m.report.devices["cuda:0"].held == 10 * MIB
    assert fake_gpu.violations == []


@pytest.mark.parametrize("functions", [("nvmlDeviceGetComputeRunningProcesses_v3",), ("nvmlDeviceGetMemoryInfo_v2",)])
def test_nvml_fails_during_the_block(fake_gpu, functions):
    fake_gpu.alloc(MIB)
    with measure():
        pass
    with measure() as m:
        fake_gpu.alloc(30 * MIB)
        for name in functions:
            fake_gpu.nvml.fail(name, pynvml.NVML_ERROR_GPU_IS_LOST)
    device = m.report.devices["cuda:0"]
    assert (device.held, device.peak) == (30 * MIB, 30 * MIB)
    unknown = "others" if "Processes" in functions[0] else "used"
    assert getattr(device, unknown) is None
    assert "GPU is lost" in device.grades[unknown].reason


def test_failed_kernel(fake_gpu):
    fake_gpu.alloc(MIB)
    with measure() as m:
        fake_gpu.alloc(30 * MIB)
        fake_gpu.break_device()
    assert m.report.devices["cuda:0"].held == 30 * MIB


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_other_allocators(make_gpu, backend, tmp_path):
    gpu = make_gpu(backend=backend)
    torch.cuda.init()
    gpu.outside(2 * MIB)
    with measure() as m:
        gpu.outside(100 * MIB)
    device = m.report.devices["cuda:0"]
    if backend == "pluggable":
        assert (device.held, device.peak, device.outside) == (None, None, None)
        assert "counters cannot be read" in device.grades["held"].reason
    else:
        assert (device.held, device.outside) == (0, 100 * MIB)
        assert device.grades["held"].reason.startswith("cudaMallocAsync")
    with pytest.raises(RecordingError, match="cannot record allocation history"):
        measure(snapshot=tmp_path / "x.pickle")
    assert list(tmp_path.iterdir()) == []


def test_host_memory(tmp_path):
    with measure() as m:
        data = mmap.mmap(-1, 32 * MIB)  # new pages: bytes may reuse free memory of the process
        data[::4096] = bytes(32 * MIB // 4096)
    assert m.report.devices == {}
    assert 30 * MIB < m.report.host.held < 42 * MIB
    assert m.report.host.peak >= m.report.host.held
    del data
    with pytest.raises(RecordingError, match=f"PyTorch records .* and {re.escape(NO_GPU)}"):
        measure(snapshot=tmp_path / "x.pickle")


def test_peak_of_host_memory(tmp_path):
    data = bytearray(100 * MIB)
    del data
    with measure(host_peak="reset") as m:
        data = bytearray(40 * MIB)
        del data
    assert m.report.host.exact
    assert 35 * MIB < m.report.host.peak < 60 * MIB


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_forked_child(fake_gpu, tmp_path):
    path = tmp_path / "x.pickle"
    fake_gpu.alloc(MIB)
    read_end, write_end = os.pipe()
    with measure(snapshot=path) as m:
        fake_gpu.alloc(30 * MIB)

        def end():
            calls = dict(fake_gpu.calls)
            m.__exit__(None, None, None)
            facts = [hasattr(m, "report"), path.exists(), len(ipygpumem.reports), dict(fake_gpu.calls) == calls]
            os.write(write_end, json.dumps(facts).encode())

        assert exit_status_of_child(end) == 0
    assert json.loads(os.read(read_end, 1000)) == [False, False, 0, True]
    assert m.report.devices["cuda:0"].held == 30 * MIB
    assert path.exists()


def test_size_of_reports(fake_gpu, monkeypatch):
    monkeypatch.setattr("ipygpumem.measurement.sampler._FIRST", 60.0)  # no block is long enough for samples
    fake_gpu.alloc(MIB)
    blocks = 0
    with measure():
        pass
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(150):
        with measure():
            fake_gpu.nvml_device.others[1] = fake_gpu.nvml_device.others.get(1, 0) + MIB + 512 * blocks
            blocks += 1
            block = fake_gpu.alloc(30 * MIB)
        fake_gpu.free(block)
    gc.collect()
    growth = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(ipygpumem.reports) == 151
    assert growth / 150 < 2560


@settings(max_examples=60)
@given(
    st.sampled_from(["bare", "A", "B", "C", "wsl", "hidden"]),
    st.sampled_from(["v2", "v1", "none"]),
    st.lists(
        st.tuples(st.sampled_from(["alloc", "free", "wait", "outside", "other", "hidden"]), st.integers(1, 60 * MIB)),
        max_size=12,
    ),
)
def test_breakdown_adds_up(regime, source, steps):
    from fakes.cuda import FakeGpu

    gpu = FakeGpu(nvml_devices=[FakeNvmlDevice(regime=regime, others={1: 77 * MIB})]).install()
    if source == "v1":
        gpu.nvml.missing.add("nvmlDeviceGetMemoryInfo_v2")
    gpu.nvml.present = source != "none"
    try:
        live = [gpu.alloc(5 * MIB)]
        changes = {"outside": 0, "other": 0, "hidden": 0}
        with measure() as m:
            for kind, size in steps:
                rounded = -(-size // (2 * MIB)) * 2 * MIB
                if kind == "alloc":
                    live.append(gpu.alloc(size))
                elif kind == "outside":
                    gpu.outside(size)
                elif kind == "other":
                    gpu.nvml_device.others[1] += rounded
                elif kind == "hidden":
                    gpu.nvml_device.unattributed += rounded
                elif live:
                    gpu.free(live.pop(), used_by=1 if kind == "wait" else None)
                if kind in changes:
                    changes[kind] += rounded
        device = m.report.devices["cuda:0"]
        assert imbalance(device.before) == imbalance(device.after) == 0
        stats = gpu[0].allocator.stats
        assert device.held == stats["allocated_bytes"]["all"].current - 5 * MIB
        assert device.held + device.pending + device.cached == stats["reserved_bytes"]["all"].current - 20 * MIB
        if regime in {"bare", "A", "C"} and source != "none":
            unattributed = changes["hidden"] + (changes["other"] if regime == "C" else 0)
            assert device.outside == changes["outside"]
            assert device.others == (0 if regime == "C" else changes["other"])
            assert device.unattributed == unattributed
            assert device.grades["outside"].trust == "exact"
        else:
            assert device.outside == sum(changes.values())
            assert device.others is device.unattributed is None
            assert device.grades["outside"].trust == "device"
        assert json.loads(m.report.to_json()) == m.report.to_dict()
    finally:
        close_runtime()
        gpu.uninstall()


def test_recording_cannot_start(fake_gpu, tmp_path):
    fake_gpu.alloc(MIB)

    def fail(*arguments):
        raise RuntimeError("no recording")

    torch._C._cuda_record_memory_history = fail
    with pytest.raises(RuntimeError, match="no recording"), measure(snapshot=tmp_path / "x.pickle"):
        pass
    assert current().peaks._scopes == []


def test_error_of_the_block_is_not_replaced_by_a_warning(fake_gpu, tmp_path):
    (tmp_path / "here").mkdir()
    with pytest.raises(ZeroDivisionError), measure(snapshot=tmp_path / "here" / "x.pickle") as m:
        (tmp_path / "here").rmdir()
        raise ZeroDivisionError
    assert "was not written" in m.report.recording.error
    (tmp_path / "here").mkdir()
    with pytest.raises(RuntimeWarning, match="was not written"), measure(snapshot=tmp_path / "here" / "x.pickle"):
        (tmp_path / "here").rmdir()


@pytest.mark.parametrize("end", ["before", "after"])
def test_allocation_of_another_thread_during_a_reading(fake_gpu, end):
    fake_gpu.alloc(MIB)
    with measure():
        pass
    fake_gpu.alloc(200 * MIB)  # so that the next reading does not reuse NVML's process list
    original, pending_sizes = fake_gpu.nvml.nvmlDeviceGetComputeRunningProcesses_v3, []

    def another_thread(*arguments):
        code = original(*arguments)
        while pending_sizes:
            fake_gpu.alloc(pending_sizes.pop())
        return code

    fake_gpu.nvml.nvmlDeviceGetComputeRunningProcesses_v3 = another_thread
    pending_sizes += [500 * MIB] if end == "before" else []
    with measure() as m:
        fake_gpu.alloc(30 * MIB)
        pending_sizes += [500 * MIB] if end == "after" else []
    device = m.report.devices["cuda:0"]
    assert device.held == device.peak == (30 if end == "before" else 530) * MIB
    assert (device.outside, device.unattributed) == (0, 0)
    assert imbalance(device.before) == imbalance(device.after) == 0


@pytest.mark.parametrize("options", [{}, {"snapshot": "s.pickle"}])
def test_interrupt_before_the_first_statement_of_exit(fake_gpu, tmp_path, monkeypatch, options):
    """Python checks for signals after a call, but not between the last operator of the block and ``__exit__``."""
    monkeypatch.chdir(tmp_path)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Interrupt:
        __pos__ = staticmethod(functools.partial(ctypes.PyDLL(None)["raise"], signal.SIGINT))

    interrupt, ended = Interrupt(), False
    try:
        with pytest.raises(KeyboardInterrupt) as caught, ipygpumem.measure(**options) as m:
            _ = +interrupt
        ended = True
    finally:
        signal.signal(signal.SIGINT, previous)
    assert ended
    assert caught.traceback[-1].name == "__exit__"
    assert current().open_intervals == set()
    assert current().peaks._scopes == []
    assert m.report is not None
    assert [path.name for path in tmp_path.iterdir()] == list(options.values())
    with ipygpumem.measure(**options) as m:
        assert hasattr(m, "__exit__")
        gc.collect()
        assert current().open_intervals
    assert current().open_intervals == set()
