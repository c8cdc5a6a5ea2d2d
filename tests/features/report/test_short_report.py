"""The line below a cell, and the line that ``%load_ext`` prints."""

from __future__ import annotations

import dataclasses

import pytest

from fakes.reports import MIB, after, before, report
from ipygpumem.core.reading import Baseline, HostReading, Reading
from ipygpumem.core.report import MeasurementLabel, RecordingInfo, build_report
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import baseline_line

GIB = 1024 * MIB


def test_all_metrics():
    assert ShortReport(report()).text() == (
        "cuda:0  +400.0 MiB held · peak +1.2 GiB · cache +64.0 MiB · outside PyTorch +256.0 MiB"
        " · 1.6 of 139.8 GiB used   In [7], 2.31 s"
    )


def test_unchanged_metrics_are_omitted():
    end = before(others=50 * MIB, used=1500 * MIB, active=103 * MIB, allocated=99 * MIB)
    assert ShortReport(report(end=end, peak=100 * MIB, cell=None)).text() == (
        "cuda:0  -1.0 MiB held · pending +4.0 MiB · cache -3.0 MiB · other processes -20.0 MiB"
        " · unattributed +20.0 MiB · 0.9 of 139.8 GiB used   2.31 s"
    )


def test_no_change():
    line = ShortReport(report(end=before(), peak=100 * MIB, seconds=0.0031)).text()
    assert line == "cuda:0  no change · 0.9 of 139.8 GiB used   In [7], 3.1 ms"


def test_bound_of_the_peak_and_value_of_the_whole_device():
    end = after(process=None, others=None, mode="device", why="this user has no permission for the NVML query")
    start = before(process=None, others=None, mode="device", why="this user has no permission for the NVML query")
    assert ShortReport(report(start, end, exact=False)).text() == (
        "cuda:0  +400.0 MiB held · peak at most +1.2 GiB · cache +64.0 MiB"
        " · ~outside PyTorch +256.0 MiB (this process or another) · 1.6 of 139.8 GiB used   In [7], 2.31 s"
    )


def test_cell_that_started_cuda():
    empty_reading = Reading(1.0, {}, HostReading())
    end = Reading(2.0, {"cuda:0": after(allocated=0, active=0, reserved=0, process=612 * MIB)}, HostReading())
    assert ShortReport(build_report(empty_reading, end, {}, seconds=0.5)).text() == (
        "cuda:0  CUDA context and first kernels +612.0 MiB · 1.6 of 139.8 GiB used   500.0 ms"
    )


def test_failed_cell_with_notes():
    end = after(ooms=1, rejections=2, retries=3, busy=True)
    lines = ShortReport(report(end=end, success=False, notes=("a note",))).text().split("\n")
    assert lines[0].endswith("   In [7], 2.31 s, failed")
    assert lines[1:] == [
        (
            "a note; cuda:0 ran out of memory; cuda:0: PyTorch rejected an allocation 2 times without releasing its"
            " cache, because the memory limit would have been exceeded (throw_on_cudamalloc_oom);"
            " torch.cuda.empty_cache()"
            " releases the cache; cuda:0 was full: PyTorch released its cache and retried 3 times;"
            " cuda:0 was still running kernels at the end: memory that is released only when they finish is included"
        )
    ]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            RecordingInfo("/data/x.pickle", 17_500_000, 195_900, 0),
            "snapshot /data/x.pickle: 195,900 events, 16.7 MiB",
        ),
        (
            RecordingInfo("/data/x.pickle", 1 << 20, 10, 1234),
            (
                "snapshot /data/x.pickle: 10 events, 1.0 MiB; "
                "the ring buffer dropped the events of 1,234 allocations: increase max_entries (--max-entries)"
            ),
        ),
        (
            RecordingInfo("/data/x.pickle", 1 << 20, 10, 5, own=False),
            (
                "snapshot /data/x.pickle: 10 events, 1.0 MiB; the ring buffer dropped the events of 5 allocations: "
                "increase max_entries of your own recording; copied from the recording that was already running"
            ),
        ),
        (
            RecordingInfo("/data/x.pickle", 1 << 20, 10, None, own=False),
            (
                "snapshot /data/x.pickle: 10 events, 1.0 MiB; it is unknown whether the ring buffer dropped events; "
                "copied from the recording that was already running"
            ),
        ),
        (RecordingInfo(None, error="the snapshot x was not written: full"), "the snapshot x was not written: full"),
    ],
)
def test_recording(facts, text):
    assert ShortReport(report(recording=facts)).text().split("\n")[1] == text


def test_two_of_many_devices_are_shown():
    names = [f"cuda:{index}" for index in range(8)]
    low = Reading(1.0, {name: before(name) for name in names}, HostReading())
    high = Reading(
        2.0,
        {name: after(name, allocated=(200 + index) * MIB, reserved=584 * MIB) for index, name in enumerate(names)},
        HostReading(),
    )
    lines = ShortReport(build_report(low, high, {}, seconds=1.0)).text().split("\n")
    assert len(lines) == 3
    assert lines[2] == "6 more devices  changed · %gpumem lists all"


def test_host_memory_without_a_gpu():
    low = HostReading(200 * MIB, 200 * MIB, total=24 * GIB)
    high = HostReading(250 * MIB, 300 * MIB, total=24 * GIB)
    empty_reading = Reading(1.0, {}, low)
    on_host = build_report(empty_reading, Reading(2.0, {}, high), {}, seconds=1.5, label=MeasurementLabel(cell=3))
    assert ShortReport(on_host).text() == (
        "host memory (RSS)  +50.0 MiB held · peak +100.0 MiB · 0.2 of 24.0 GiB resident   In [3], 1.50 s"
    )
    earlier_peak = dataclasses.replace(on_host.host, before=HostReading(200 * MIB, 300 * MIB))
    assert "peak" not in ShortReport(dataclasses.replace(on_host, host=earlier_peak)).text(), (
        "the peak was reached before this cell"
    )
    unchanged = build_report(empty_reading, empty_reading, {}, seconds=1.5)
    assert ShortReport(unchanged).text() == "host memory (RSS)  no change · 0.2 of 24.0 GiB resident   1.50 s"


def test_color():
    assert "\x1b" not in ShortReport(report()).text()
    colored = ShortReport(report()).text(color=True)
    assert "\x1b[1m+400.0 MiB held\x1b[0m" in colored
    assert "\x1b[33moutside PyTorch +256.0 MiB\x1b[0m" in colored


def baseline(**options):
    device = before(
        process=806 * MIB, reserved=34 * MIB, allocated=32 * MIB, active=32 * MIB, **options.pop("device", {})
    )
    reading = Reading(1.0, {"cuda:0": device}, HostReading(200 * MIB))
    return Baseline(reading, "cuda:0", "NVIDIA H200", **options)


def test_baseline_line():
    assert baseline_line(baseline(context=621 * MIB, kernels=65 * MIB)) == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 686 MiB (context 621, first kernels 65); "
        "a report follows every cell that changes memory"
    )
    assert baseline_line(baseline(kernels=66 * MIB, workspace=32 * MIB, note="a note"), reports=False) == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 772 MiB outside PyTorch "
        "(the size of the CUDA context is unknown); "
        "cuBLAS workspace 32 MiB in PyTorch; a note; reports are off: use %gpumem on"
    )


def test_baseline_line_without_attribution_by_process():
    device = {
        "process": None,
        "others": None,
        "mode": "device",
        "why": "this user has no permission for the NVML query",
    }
    reading = Reading(1.0, {"cuda:0": before(**device)}, HostReading())
    without_attribution = Baseline(reading, "cuda:0", "NVIDIA H200", context=621 * MIB, kernels=65 * MIB)
    assert baseline_line(without_attribution) == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 686 MiB (context 621, first kernels 65); "
        "memory outside PyTorch is known only for the whole device: this user has no permission for the NVML query; "
        "a report follows every cell that changes memory"
    )


def test_baseline_line_without_a_gpu_and_with_preload_off():
    host = Reading(1.0, {}, HostReading(200 * MIB))
    assert baseline_line(Baseline(host, note="torch finds no NVIDIA GPU")) == (
        "ipygpumem: no GPU (torch finds no NVIDIA GPU): reporting host memory (RSS) instead, baseline 200.0 MiB; "
        "a report follows every cell that changes memory"
    )
    assert baseline_line(Baseline(host, note="preload is off")) == (
        "ipygpumem: CUDA is not initialized; the first cell to use CUDA sets the baseline; "
        "a report follows every cell that changes memory"
    )


def test_context_on_another_device():
    first = report(before(), before(), peak=100 * MIB)
    idle = before("cuda:1", context=False, allocated=0, active=0, reserved=0, requested=0, process=0)
    empty = report(idle, before("cuda:1", allocated=0, active=0, reserved=0, process=600 * MIB), peak=0)
    combined = dataclasses.replace(first, devices={**first.devices, **empty.devices})
    assert ShortReport(combined).text().splitlines()[-1] == (
        "cuda:1: a copy between devices, NCCL, or another CUDA call created a CUDA context, "
        "which exists until the process ends"
    )
    used = report(idle, after("cuda:1", process=1200 * MIB), peak=500 * MIB)
    combined = dataclasses.replace(first, devices={**first.devices, **used.devices})
    assert ShortReport(combined).text().splitlines()[-1] == (
        "cuda:1: its first tensor created a CUDA context, which exists until the process ends"
    )
    assert "stays" not in ShortReport(empty).text(), "a context is expected on the only device of a process"
