"""The baseline, and the current reading."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import ipygpumem
from fakes.builds import NO_GPU
from fakes.cuda import CONTEXT, KERNELS, WORKSPACE
from fakes.nvml import FakeNvmlDevice
from ipygpumem import measure
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import baseline_line
from ipygpumem.measurement.runtime import current

MIB = 1 << 20


def test_context_kernels_and_workspace(fake_gpu):
    baseline = ipygpumem.preload_pytorch()
    assert (baseline.device, baseline.label, baseline.note) == ("cuda:0", "NVIDIA H200", "")
    assert (baseline.context, baseline.kernels, baseline.workspace) == (CONTEXT, KERNELS, WORKSPACE)
    assert baseline.outside == CONTEXT + KERNELS
    assert current().baseline is baseline
    assert json.loads(json.dumps(baseline.to_dict()))["outside"] == CONTEXT + KERNELS
    assert ipygpumem.preload_pytorch().workspace == WORKSPACE, "known after another preload"
    assert current().preload("context").workspace == WORKSPACE
    with measure() as m:
        x = torch.full((64, 64), 1.0, device="cuda")
        x @ x
    assert m.report.devices["cuda:0"].outside == 0, "the first matmul is not counted"


def test_parts_of_the_baseline_in_mode_device(make_gpu):
    make_gpu(nvml_devices=[FakeNvmlDevice(regime="hidden", others={1: 500 * MIB})])
    baseline = ipygpumem.preload_pytorch()
    assert (baseline.context, baseline.kernels) == (CONTEXT + 8 * MIB, KERNELS)
    assert "known only for the whole device" in baseline_line(baseline)


def test_context_is_unknown_if_cuda_had_started(fake_gpu):
    fake_gpu.alloc(100 * MIB)
    baseline = ipygpumem.preload_pytorch()
    assert (baseline.context, baseline.kernels, baseline.outside) == (None, KERNELS, CONTEXT + KERNELS)


def test_only_the_current_device_is_started(two_gpus):
    torch.cuda.init()
    two_gpus.current = 1
    baseline = ipygpumem.preload_pytorch()
    assert baseline.device == "cuda:1"
    assert [device.context for device in two_gpus.devices] == [False, True]


def test_peaks_of_the_program_do_not_include_the_first_kernels(fake_gpu):
    fake_gpu.free(fake_gpu.alloc(10 * MIB))
    ipygpumem.preload_pytorch()
    assert torch.cuda.max_memory_allocated() == max(10 * MIB, WORKSPACE)
    current().peaks.remove()
    assert torch.cuda.max_memory_allocated() == max(10 * MIB, WORKSPACE)


def test_preload_during_a_block(fake_gpu):
    with measure() as m:
        ipygpumem.preload_pytorch()
    device = m.report.devices["cuda:0"]
    assert (device.held, device.started) == (WORKSPACE, True)


@pytest.mark.parametrize(("mode", "kernels"), [("context", 0), ("kernels", KERNELS)])
def test_preload_modes(fake_gpu, mode, kernels):
    baseline = current().preload(mode)
    assert (baseline.context, baseline.kernels) == (CONTEXT, kernels)


def test_preload_off_does_not_touch_cuda(fake_gpu):
    baseline = current().preload("off")
    assert baseline.note == "preload is off"
    assert not torch.cuda.is_initialized()
    assert (fake_gpu.initialized, fake_gpu[0].context) == (False, False)


def test_no_first_kernels_during_a_recording(fake_gpu):
    torch.cuda.memory._record_memory_history()
    baseline = ipygpumem.preload_pytorch()
    assert "recording PyTorch's allocation history" in baseline.note
    assert fake_gpu[0].allocator.trace == []


def test_cuda_does_not_start(fake_gpu):
    def fail():
        raise RuntimeError("CUDA driver initialization failed\nand a stack")

    torch._C._cuda_init = fail
    baseline = ipygpumem.preload_pytorch()
    assert baseline.note == "CUDA cannot be initialized: CUDA driver initialization failed"
    assert baseline_line(baseline).count("\n") == 0


def test_baseline_without_a_gpu_or_torch(monkeypatch):
    assert ipygpumem.preload_pytorch().note == NO_GPU
    monkeypatch.setitem(sys.modules, "torch", None)
    baseline = ipygpumem.preload_pytorch()
    assert "torch cannot be imported" in baseline.note
    assert baseline.reading.host.rss > 0


def test_reading(fake_gpu):
    fake_gpu.alloc(100 * MIB)
    fake_gpu.nvml_device.others[1] = 70 * MIB
    reading = ipygpumem.reading()
    device = reading.devices["cuda:0"]
    assert (device.allocated, device.reserved, device.cached) == (100 * MIB, 100 * MIB, 0)
    assert (device.process, device.outside, device.others) == (CONTEXT + 100 * MIB, CONTEXT, 70 * MIB)
    assert (device.used, device.total) == ((612 + 100 + 70 + 8 + 615) * MIB, 143_771 * MIB)
    assert reading.host.rss > 0
    assert reading.host.available > 0
    json.dumps(reading.to_dict())


def test_no_reports_yet():
    assert ipygpumem.last is None
    assert len(ipygpumem.reports) == 0


def test_context_on_another_device(make_gpu):
    gpu = make_gpu(3)
    ipygpumem.preload_pytorch()
    with ipygpumem.measure() as m:
        gpu.outside(5 * MIB, device=1)
    assert m.report.devices["cuda:1"].started
    assert (
        "cuda:1: a copy between devices, NCCL, or another CUDA call created a CUDA context"
        in ShortReport(m.report).text()
    )
    assert list(m.report.devices) == ["cuda:0", "cuda:1"]
    assert not gpu[2].context, "the third device is not touched"
