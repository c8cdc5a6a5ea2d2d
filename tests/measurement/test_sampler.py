"""The sampler: what it sees, when it sleeps, and that nothing hurts it."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from ipygpumem.core.report import Report
from ipygpumem.core.samples import Sample
from ipygpumem.measurement.runtime import current
from ipygpumem.measurement.sampler import Track
from ipygpumem.measurement.worker_thread import Parked

ASKED = "nvmlDeviceGetMemoryInfo_v2"
LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


@pytest.fixture
def gpu(fake_gpu):
    ipygpumem.preload_pytorch()
    return fake_gpu


def threads():
    return [one.name for one in threading.enumerate() if one.name.startswith("ipygpumem")]


def passing(gpu, size, *, before=0.1, stays=0.06, device=0):
    """Another library takes memory for a moment."""
    time.sleep(before)
    gpu.outside(size, device)
    time.sleep(stays)
    gpu.outside(-size, device)


def files_open():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_last_sample():
    """Wait until the sampler no longer samples the first device."""
    wait_until(lambda: current().sampler.windows[0].tracks[0].over)


def test_what_came_and_went_between_the_readings(gpu):
    with ipygpumem.measure() as block:
        passing(gpu, 1200 * MIB)
    device = block.report.devices["cuda:0"]
    found = device.sampled
    assert device.outside == 0
    assert found.change == device.outside_peak == 1200 * MIB
    assert 0.09 < found.seconds < 0.3
    assert 0.05 <= found.since < 0.1
    assert 0 < found.gap < 0.1
    assert found.count > 3
    assert device.grades["outside_peak"].trust == "sampled"
    assert threads() == ["ipygpumem-sampler"]


def test_a_short_measurement_wakes_nobody(gpu):
    gpu.nvml.calls.clear()
    for _ in range(20):
        with ipygpumem.measure() as block:
            pass
    asked = gpu.nvml.calls[ASKED]
    assert asked == 40, "at both ends"
    assert block.report.devices["cuda:0"].sampled is None
    time.sleep(0.12)
    assert gpu.nvml.calls[ASKED] == asked


def test_it_parks_at_once_and_touches_neither_lists_nor_torch(gpu):
    with ipygpumem.measure():
        time.sleep(0.06)
        gpu.nvml.calls.clear()
        gpu.calls.clear()
        time.sleep(0.06)
        assert gpu.nvml.calls[ASKED] >= 3
        assert [gpu.nvml.calls[one] for one in LISTS] == [0, 0]
        assert not gpu.calls, "no counter of PyTorch's, no call of CUDA's"
    gpu.nvml.calls.clear()
    time.sleep(0.05)
    assert gpu.nvml.calls[ASKED] == 0


def test_parked_it_does_not_even_wake(gpu, monkeypatch):
    """Ten milliseconds after the end at the latest: one look may have been going on."""
    looks = []
    look = current().sampler._thread._work
    monkeypatch.setattr(current().sampler._thread, "_work", lambda: (looks.append(time.monotonic()), look()))
    with ipygpumem.measure():
        wait_until(lambda: len(looks) >= 5)
    end = time.monotonic()
    time.sleep(0.08)
    assert all(one < end + 0.01 for one in looks)


def test_without_a_gpu_there_is_no_thread():
    with ipygpumem.measure():
        time.sleep(0.06)
    assert threads() == []


def test_measurements_nest_and_overlap(gpu):
    outer, inner = ipygpumem.measure(), ipygpumem.measure()
    with outer:
        passing(gpu, 300 * MIB)
        with inner:
            passing(gpu, 100 * MIB)
    assert outer.report.devices["cuda:0"].outside_peak == 300 * MIB
    assert inner.report.devices["cuda:0"].outside_peak == 100 * MIB
    assert inner.report.devices["cuda:0"].sampled.since < 0.05, "somebody was looking already"
    assert current().sampler.windows == ()


def test_each_device_has_its_own(two_gpus):
    import torch

    ipygpumem.preload_pytorch()
    torch.ones(1, device="cuda:1")
    with ipygpumem.measure() as block:
        passing(two_gpus, 200 * MIB, device=1)
    assert block.report.devices["cuda:0"].sampled is None
    assert block.report.devices["cuda:1"].outside_peak == 200 * MIB


def test_memory_that_pytorch_took_meanwhile_is_not_outside(gpu):
    with ipygpumem.measure() as block:
        time.sleep(0.06)
        held = gpu.alloc(900 * MIB)
        time.sleep(0.06)
        gpu.free(held)
    assert block.report.devices["cuda:0"].sampled is None


def test_nvml_that_dies_ends_the_samples_and_nothing_else(gpu):
    with ipygpumem.measure() as block:
        passing(gpu, 64 * MIB)
        gpu.nvml.fail(ASKED, pynvml.NVML_ERROR_GPU_IS_LOST)
        wait_for_last_sample()
        gpu.nvml.heal()
        passing(gpu, 640 * MIB, before=0.01)
    assert block.report.devices["cuda:0"].outside_peak == 64 * MIB
    with ipygpumem.measure() as block:
        passing(gpu, 64 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 64 * MIB


def test_it_goes_on_after_a_failed_kernel(gpu):
    with ipygpumem.measure() as block:
        time.sleep(0.06)
        gpu.break_device()
        gpu.nvml_device.own += 640 * MIB
        time.sleep(0.06)
        gpu.nvml_device.own -= 640 * MIB
    assert block.report.devices["cuda:0"].outside_peak == 640 * MIB


def test_a_child_has_no_thread_and_its_parent_goes_on(gpu):
    with ipygpumem.measure() as block:
        time.sleep(0.06)
        child = os.fork()
        if child == 0:
            current().sampler.shut(current().sampler.windows[0])
            current().sampler.close()
            os._exit(0 if current().sampler.open(()) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        passing(gpu, 64 * MIB, before=0.02)
    assert block.report.devices["cuda:0"].outside_peak == 64 * MIB


def test_an_error_in_the_block_parks_it(gpu):
    with pytest.raises(ZeroDivisionError), ipygpumem.measure():
        time.sleep(0.06)
        1 / 0  # noqa: B018 (an error)
    assert current().sampler.windows == ()


def test_a_track_is_bounded_and_keeps_its_peaks():
    track = Track()
    for i in range(100_000):
        track.add(Sample(i * 0.005, i * 0.005 + 0.001, 9_000_000 if i == 54_321 else i % 1000))
    track.close(1e9)
    assert len(track.samples) < 9_000
    assert track.count == 100_000
    assert max(track.samples, key=lambda one: one.used) == Sample(54_321 * 0.005, 54_321 * 0.005 + 0.001, 9_000_000)
    assert list(track.samples) == sorted(track.samples, key=lambda one: one.begin)


def test_a_level_that_stands_still_is_a_line_with_both_its_ends():
    track = Track()
    for i in range(1000):
        track.add(Sample(i / 200, i / 200, 5 if i < 500 else 7))
    track.close(4.9)
    assert len(track.samples) < 110
    ends = [one.begin for one in track.samples if one.used == 5]
    assert (ends[0], ends[-1]) == (0, 499 / 200)
    assert all(one.end <= 4.9 for one in track.samples)
    assert track.gap == pytest.approx(0.005)


def interrupted(*times):
    """`Parked.set`, and then Ctrl-C."""
    Parked.set(current().sampler._thread, *times)
    raise KeyboardInterrupt


def test_an_interrupt_in_its_beginning_leaves_nothing_open(gpu, monkeypatch):
    monkeypatch.setattr(current().sampler._thread, "set", interrupted)
    with pytest.raises(KeyboardInterrupt), ipygpumem.measure():
        pass
    assert current().sampler.windows == ()
    gpu.nvml.calls.clear()
    time.sleep(0.12)
    assert gpu.nvml.calls[ASKED] == 0
    monkeypatch.undo()
    with ipygpumem.measure() as block:
        passing(gpu, 300 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 300 * MIB


def test_no_thread_to_be_had_is_a_reason_and_no_error(gpu, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    current().sampler._thread.close()
    monkeypatch.setattr(threading.Thread, "start", start)
    files = files_open()
    for _ in range(3):
        with ipygpumem.measure() as block:
            passing(gpu, 300 * MIB)
    device = block.report.devices["cuda:0"]
    assert device.sampled is None
    assert device.grades["outside_peak"].reason.endswith("; no thread for samples (can't start new thread)")
    assert current().sampler.windows == ()
    assert files_open() == files
    monkeypatch.undo()
    with ipygpumem.measure() as block:
        passing(gpu, 300 * MIB)
    assert block.report.devices["cuda:0"].outside_peak == 300 * MIB


def test_one_passing_error_is_told_and_ends_nothing(gpu):
    with ipygpumem.measure() as block:
        time.sleep(0.07)
        gpu.nvml.fail(ASKED, pynvml.NVML_ERROR_UNKNOWN, times=1)
        passing(gpu, 900 * MIB)
    device = block.report.devices["cuda:0"]
    assert device.outside_peak == 900 * MIB
    assert "once no answer: " in device.grades["outside_peak"].reason
    loaded = Report.from_dict(block.report.to_dict()).devices["cuda:0"]
    assert loaded.grades["outside_peak"] == device.grades["outside_peak"]


def test_a_card_that_fails_for_good_is_asked_no_more(gpu):
    with ipygpumem.measure() as block:
        time.sleep(0.08)
        gpu.nvml.fail(ASKED, pynvml.NVML_ERROR_UNKNOWN)
        wait_for_last_sample()
        gpu.nvml.calls.clear()
        time.sleep(0.05)
        asked = gpu.nvml.calls[ASKED]
        gpu.nvml.heal()
    assert asked == 0
    reason = block.report.devices["cuda:0"].grades["outside_peak"].reason
    assert re.search(r"; from \d+\.\d ms on none: ", reason)


def test_process_that_started_and_ended_meanwhile(gpu):
    from ipygpumem.display.table import text_tables
    from ipygpumem.features.report.line import text_line
    from ipygpumem.features.report.table import report_tables

    with ipygpumem.measure() as block:
        time.sleep(0.08)
        gpu.nvml_device.others[77] = 30_000 * MIB
        time.sleep(0.06)
        del gpu.nvml_device.others[77]
    assert block.report.devices["cuda:0"].outside_peak == 30_000 * MIB
    assert "; this process or one that has ended)" in text_line(block.report)
    assert "; this process or one that has ended" in text_tables(report_tables(block.report))
