"""NVML's accounting mode: where the administrator has it on, the driver itself keeps this process's highest total."""

from __future__ import annotations

import time

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from fakes.nvml import FakeNvmlDevice
from ipygpumem.core.report import Report
from ipygpumem.display.table import text_tables
from ipygpumem.features.report.line import text_line
from ipygpumem.features.report.table import report_tables

ASKED = "nvmlDeviceGetAccountingStats"


@pytest.fixture
def gpu(make_gpu):
    made = make_gpu(nvml_devices=[FakeNvmlDevice(highest=0)])
    ipygpumem.preload_pytorch()
    return made


def passing(gpu, size):
    """Too short for any sample."""
    with ipygpumem.measure() as block:
        gpu.outside(size)
        gpu.outside(-size)
    return block.report


def test_what_no_sample_saw_is_proved_by_the_drivers_own_record(gpu):
    report = passing(gpu, 1200 * MIB)
    device = report.devices["cuda:0"]
    assert device.sampled is None
    assert device.outside_peak == device.accounted == 1200 * MIB
    assert device.grades["outside_peak"].reason.startswith("NVML's accounting of this process rose")
    assert "outside PyTorch, at least +1200.0 MiB (by the driver's accounting)" in text_line(report).replace(
        "+1.2 GiB", "+1200.0 MiB"
    )
    assert "at least: NVML's accounting" in text_tables(report_tables(report))
    assert Report.from_dict(report.to_dict()).devices["cuda:0"].accounted == 1200 * MIB


def test_where_samples_prove_as_much_it_is_told_as_this_processes_own(gpu):
    with ipygpumem.measure() as block:
        time.sleep(0.08)
        gpu.outside(1200 * MIB)
        time.sleep(0.05)
        gpu.outside(-1200 * MIB)
    device = block.report.devices["cuda:0"]
    assert device.sampled.change == device.accounted
    assert "(by the driver's accounting)" in text_line(block.report)
    assert "came and went" not in text_line(block.report) + text_tables(report_tables(block.report))


def test_a_record_of_before_proves_nothing(gpu):
    passing(gpu, 1200 * MIB)
    device = passing(gpu, 900 * MIB).devices["cuda:0"]
    assert device.before.highest == device.after.highest
    assert device.outside_peak is None


def test_what_pytorch_took_is_not_called_outside(gpu):
    with ipygpumem.measure() as block:
        gpu.free(gpu.alloc(3000 * MIB))
    assert block.report.devices["cuda:0"].outside_peak is None


def test_another_process_is_not_in_it(gpu):
    with ipygpumem.measure() as block:
        gpu.nvml_device.others[77] = 9000 * MIB
        del gpu.nvml_device.others[77]
    assert block.report.devices["cuda:0"].outside_peak is None


def test_where_it_is_off_nobody_asks(fake_gpu):
    ipygpumem.preload_pytorch()
    fake_gpu.nvml.calls.clear()
    assert passing(fake_gpu, 1200 * MIB).devices["cuda:0"].outside_peak is None
    assert fake_gpu.nvml.calls[ASKED] == 0


def test_a_driver_that_does_not_tell_is_no_error(gpu):
    gpu.nvml.fail(ASKED, pynvml.NVML_ERROR_NO_PERMISSION)
    assert passing(gpu, 1200 * MIB).devices["cuda:0"].accounted is None
