"""The sampler: its samples, when it is paused, and errors."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from fakes.workers import exit_status_of_child
from ipygpumem.core.report import Report
from ipygpumem.core.samples import MemorySample
from ipygpumem.measurement import sampler
from ipygpumem.measurement.periodic_thread import PeriodicThread
from ipygpumem.measurement.runtime import current
from ipygpumem.measurement.sampler import DeviceSamples

MEMORY_QUERY = "nvmlDeviceGetMemoryInfo_v2"
LIST_QUERIES = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ipygpumem")]


def short_allocation(gpu, size, *, device=0, wait=None):
    """Allocate memory outside PyTorch and free it as soon as it has been sampled."""
    wait = wait or gpu.wait_for_samples
    wait()
    gpu.outside(size, device)
    wait()
    gpu.outside(-size, device)


def files_open():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_last_sample():
    """Wait until the sampler no longer samples the first device."""
    wait_until(lambda: current().sampler.windows[0].tracks[0].stopped)


def test_peak_between_the_readings(gpu):
    with ipygpumem.measure() as block:
        short_allocation(gpu, 1200 * MIB)
    device = block.report.devices["cuda:0"]
    sampled = device.sampled
    assert device.outside == 0
    assert sampled.change == device.outside_peak == 1200 * MIB
    assert 0.05 <= sampled.since < sampled.seconds
    assert sampled.gap > 0
    assert sampled.count > 3
    assert device.grades["outside_peak"].trust == "sampled"
    assert threads() == ["ipygpumem-sampler"]


def test_short_measurement_is_not_sampled(gpu, monkeypatch):
    monkeypatch.setattr(sampler, "_FIRST", 60.0)  # the measurements are shorter on any machine
    gpu.nvml.calls.clear()
    for _ in range(20):
        with ipygpumem.measure() as block:
            pass
    queries = gpu.nvml.calls[MEMORY_QUERY]
    assert queries == 40, "at both ends"
    assert block.report.devices["cuda:0"].sampled is None
    assert current().sampler._thread._next is None, "paused"


def test_sampling_stops_at_the_end_and_uses_no_other_query(gpu):
    with ipygpumem.measure():
        gpu.wait_for_samples()
        gpu.nvml.calls.clear()
        gpu.calls.clear()
        gpu.wait_for_samples()
        assert [gpu.nvml.calls[query] for query in LIST_QUERIES] == [0, 0]
        assert not gpu.calls, "sampling reads no PyTorch counters and calls no CUDA functions"
    gpu.nvml.calls.clear()
    time.sleep(0.05)
    assert gpu.nvml.calls[MEMORY_QUERY] <= 1, "one sample may have been due"


def test_paused_thread_does_not_wake(gpu, monkeypatch):
    times = []
    sample = current().sampler._thread._work
    monkeypatch.setattr(current().sampler._thread, "_work", lambda: (times.append(time.monotonic()), sample()))
    with ipygpumem.measure():
        wait_until(lambda: len(times) >= 5)
    count = len(times)
    time.sleep(0.08)
    assert len(times) <= count + 1, "one sample may have been due"


def test_without_a_gpu_there_is_no_thread():
    with ipygpumem.measure():
        time.sleep(0.06)
    assert threads() == []


def test_measurements_nest_and_overlap(gpu, monkeypatch):
    outer, inner = ipygpumem.measure(), ipygpumem.measure()
    with outer:
        short_allocation(gpu, 300 * MIB)
        monkeypatch.setattr(sampler, "_FIRST", 60.0)
        with inner:
            short_allocation(gpu, 100 * MIB)
    assert outer.report.devices["cuda:0"].outside_peak == 300 * MIB
    assert inner.report.devices["cuda:0"].outside_peak == 100 * MIB
    assert current().sampler.windows == ()


def test_two_devices(two_gpus):
    import torch

    ipygpumem.preload_pytorch()
    torch.ones(1, device="cuda:1")
    with ipygpumem.measure() as block:
        short_allocation(two_gpus, 200 * MIB, device=1)
    assert block.report.devices["cuda:0"].sampled is None
    assert block.report.devices["cuda:1"].outside_peak == 200 * MIB


def test_memory_of_pytorch_is_not_outside(gpu):
    with ipygpumem.measure() as block:
        gpu.wait_for_samples()
        tensor = gpu.alloc(900 * MIB)
        gpu.wait_for_samples()
        gpu.free(tensor)
    assert block.report.devices["cuda:0"].sampled is None


def test_nvml_fails(gpu):
    with ipygpumem.measure() as block:
        short_allocation(gpu, 64 * MIB)
        gpu.nvml.fail(MEMORY_QUERY, pynvml.NVML_ERROR_GPU_IS_LOST)
        wait_for_last_sample()
        gpu.nvml.heal()
        short_allocation(gpu, 640 * MIB, wait=lambda: time.sleep(0.02))
    assert block.report.devices["cuda:0"].outside_peak == 64 * MIB
    with ipygpumem.measure() as block:
        short_allocation(gpu, 64 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 64 * MIB


def test_failed_kernel(gpu):
    with ipygpumem.measure() as block:
        gpu.wait_for_samples()
        gpu.break_device()
        gpu.nvml_device.own += 640 * MIB
        gpu.wait_for_samples()
        gpu.nvml_device.own -= 640 * MIB
    assert block.report.devices["cuda:0"].outside_peak == 640 * MIB


def test_forked_child(gpu):
    with ipygpumem.measure() as block:
        gpu.wait_for_samples()

        def end_and_begin():
            current().sampler.end(current().sampler.windows[0])
            current().sampler.close()
            return current().sampler.begin(()) is None

        assert exit_status_of_child(end_and_begin) == 0
        short_allocation(gpu, 64 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 64 * MIB


def test_error_in_the_block(gpu):
    with pytest.raises(ZeroDivisionError), ipygpumem.measure():
        gpu.wait_for_samples()
        1 / 0  # noqa: B018 (an error)
    assert current().sampler.windows == ()


def test_number_of_stored_samples_is_limited():
    track = DeviceSamples()
    for i in range(100_000):
        track.add(MemorySample(i * 0.005, i * 0.005 + 0.001, 9_000_000 if i == 54_321 else i % 1000))
    track.end(1e9)
    assert len(track.samples) < 9_000
    assert track.count == 100_000
    assert max(track.samples, key=lambda sample: sample.used) == MemorySample(
        54_321 * 0.005, 54_321 * 0.005 + 0.001, 9_000_000
    )
    assert list(track.samples) == sorted(track.samples, key=lambda sample: sample.begin)


def test_constant_usage_is_stored_with_both_ends():
    track = DeviceSamples()
    for i in range(1000):
        track.add(MemorySample(i / 200, i / 200, 5 if i < 500 else 7))
    track.end(4.9)
    assert len(track.samples) < 110
    ends = [sample.begin for sample in track.samples if sample.used == 5]
    assert (ends[0], ends[-1]) == (0, 499 / 200)
    assert all(sample.end <= 4.9 for sample in track.samples)
    assert track.gap == pytest.approx(0.005)


def interrupted(*times):
    """Start the thread, and then raise `KeyboardInterrupt` as if the user had pressed Ctrl-C."""
    PeriodicThread.start(current().sampler._thread, *times)
    raise KeyboardInterrupt


def test_interrupt_at_the_beginning(gpu, monkeypatch):
    monkeypatch.setattr(current().sampler._thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), ipygpumem.measure():
        pass
    assert current().sampler.windows == ()
    gpu.nvml.calls.clear()
    time.sleep(0.12)
    assert gpu.nvml.calls[MEMORY_QUERY] == 0
    monkeypatch.undo()
    with ipygpumem.measure() as block:
        short_allocation(gpu, 300 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 300 * MIB


def test_thread_cannot_start(gpu, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    current().sampler._thread.close()
    monkeypatch.setattr(threading.Thread, "start", start)
    files = files_open()
    for _ in range(3):
        with ipygpumem.measure() as block:
            short_allocation(gpu, 300 * MIB, wait=lambda: time.sleep(0.05))
    device = block.report.devices["cuda:0"]
    assert device.sampled is None
    assert device.grades["outside_peak"].reason.endswith("; no samples: can't start new thread")
    assert current().sampler.windows == ()
    assert files_open() <= files
    monkeypatch.undo()
    with ipygpumem.measure() as block:
        short_allocation(gpu, 300 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 300 * MIB


def test_single_error_is_reported(gpu):
    with ipygpumem.measure() as block:
        gpu.wait_for_samples()
        gpu.nvml.fail(MEMORY_QUERY, pynvml.NVML_ERROR_UNKNOWN, times=1)
        short_allocation(gpu, 900 * MIB)
    device = block.report.devices["cuda:0"]
    assert device.outside_peak == 900 * MIB
    assert "1 sample failed: " in device.grades["outside_peak"].reason
    restored = Report.from_dict(block.report.to_dict()).devices["cuda:0"]
    assert restored.grades["outside_peak"] == device.grades["outside_peak"]


def test_device_that_keeps_failing_is_not_sampled_any_more(gpu):
    with ipygpumem.measure() as block:
        gpu.wait_for_samples()
        gpu.nvml.fail(MEMORY_QUERY, pynvml.NVML_ERROR_UNKNOWN)
        wait_for_last_sample()
        gpu.nvml.calls.clear()
        time.sleep(0.05)
        queries = gpu.nvml.calls[MEMORY_QUERY]
        gpu.nvml.heal()
    assert queries == 0
    reason = block.report.devices["cuda:0"].grades["outside_peak"].reason
    assert re.search(r"; no samples after [\d.]+ m?s: ", reason)


def test_process_that_starts_and_ends_between_samples(gpu):
    from ipygpumem.core.tables import text_tables
    from ipygpumem.features.report.short_report import ShortReport
    from ipygpumem.features.report.table import report_tables

    with ipygpumem.measure() as block:
        gpu.wait_for_samples()
        gpu.nvml_device.others[77] = 30_000 * MIB
        gpu.wait_for_samples()
        del gpu.nvml_device.others[77]
    assert block.report.devices["cuda:0"].outside_peak == 30_000 * MIB
    assert "; this process or one that has ended)" in ShortReport(block.report).text()
    assert "; the memory may belong to this process or to a process that has ended" in text_tables(
        report_tables(block.report)
    )
