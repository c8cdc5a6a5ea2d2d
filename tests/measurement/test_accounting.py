"""NVML's accounting mode, in which the driver records the highest memory of each process."""

from __future__ import annotations

import pynvml
import pytest

import ipygpumem
from fakes.cuda import MIB
from fakes.nvml import FakeNvmlDevice
from ipygpumem.core.report import Report
from ipygpumem.core.tables import text_tables
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import report_tables

QUERY = "nvmlDeviceGetAccountingStats"


@pytest.fixture
def gpu(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(highest=0)])
    ipygpumem.preload_pytorch()
    return gpu


def short_allocation(gpu, size):
    """Measure an allocation outside PyTorch that is too short for any sample."""
    with ipygpumem.measure() as block:
        gpu.outside(size)
        gpu.outside(-size)
    return block.report


def test_peak_between_samples_from_accounting(gpu):
    report = short_allocation(gpu, 1200 * MIB)
    device = report.devices["cuda:0"]
    assert device.sampled is None
    assert device.outside_peak == device.accounting_bound == 1200 * MIB
    assert device.grades["outside_peak"].reason.startswith("peak recorded by NVML for this process")
    assert "outside PyTorch, at least +1200.0 MiB (from NVML's accounting mode)" in ShortReport(report).text().replace(
        "+1.2 GiB", "+1200.0 MiB"
    )
    assert "at least: peak recorded by NVML" in text_tables(report_tables(report))
    assert Report.from_dict(report.to_dict()).devices["cuda:0"].accounting_bound == 1200 * MIB


def test_accounting_is_preferred_to_samples(gpu):
    with ipygpumem.measure() as block:
        gpu.wait_for_samples()
        gpu.outside(1200 * MIB)
        gpu.wait_for_samples()
        gpu.outside(-1200 * MIB)
    device = block.report.devices["cuda:0"]
    assert device.sampled.change == device.accounting_bound
    assert "(from NVML's accounting mode)" in ShortReport(block.report).text()
    assert "that has ended" not in ShortReport(block.report).text() + text_tables(report_tables(block.report))


def test_earlier_peak_does_not_count(gpu):
    short_allocation(gpu, 1200 * MIB)
    device = short_allocation(gpu, 900 * MIB).devices["cuda:0"]
    assert device.before.highest == device.after.highest
    assert device.outside_peak is None


def test_memory_of_pytorch_does_not_count(gpu):
    with ipygpumem.measure() as block:
        gpu.free(gpu.alloc(3000 * MIB))
    assert block.report.devices["cuda:0"].outside_peak is None


def test_other_processes_do_not_count(gpu):
    with ipygpumem.measure() as block:
        gpu.nvml_device.others[77] = 9000 * MIB
        del gpu.nvml_device.others[77]
    assert block.report.devices["cuda:0"].outside_peak is None


def test_no_query_if_accounting_is_off(fake_gpu):
    ipygpumem.preload_pytorch()
    fake_gpu.nvml.calls.clear()
    assert short_allocation(fake_gpu, 1200 * MIB).devices["cuda:0"].outside_peak is None
    assert fake_gpu.nvml.calls[QUERY] == 0


def test_query_without_permission(gpu):
    gpu.nvml.fail(QUERY, pynvml.NVML_ERROR_NO_PERMISSION)
    assert short_allocation(gpu, 1200 * MIB).devices["cuda:0"].accounting_bound is None
