"""The line, word for word."""

from __future__ import annotations

import dataclasses

import pytest

from fakes.facts import MIB, after, before, report
from ipygpumem.core.baseline import Baseline
from ipygpumem.core.reading import HostReading, Reading
from ipygpumem.core.report import RecordingFacts
from ipygpumem.features.report.line import text_line
from ipygpumem.features.report.table import baseline_line
from ipygpumem.measurement.build_report import build_report

GIB = 1024 * MIB


def test_a_cell_that_moved_everything():
    assert text_line(report()) == (
        "cuda:0  +400.0 MiB held · peak +1.2 GiB · cache +64.0 MiB · outside PyTorch +256.0 MiB"
        " · 1.6 of 139.8 GiB used   In [7], 2.31 s"
    )


def test_what_did_not_move_is_left_out_and_what_others_did_is_named():
    end = before(others=50 * MIB, used=1500 * MIB, active=103 * MIB, allocated=99 * MIB)
    assert text_line(report(end=end, peak=100 * MIB, cell=None)) == (
        "cuda:0  -1.0 MiB held · pending +4.0 MiB · cache -3.0 MiB · other processes -20.0 MiB"
        " · unattributed +20.0 MiB · 885.0 of 143156.0 MiB used   2.31 s"
    ).replace("885.0 of 143156.0 MiB", "0.9 of 139.8 GiB")


def test_a_cell_that_moved_nothing():
    line = text_line(report(end=before(), peak=100 * MIB, seconds=0.0031))
    assert line == "cuda:0  nothing moved · 0.9 of 139.8 GiB used   In [7], 3.1 ms"


def test_a_peak_that_is_a_bound_and_a_card_that_is_everybodys():
    end = after(process=None, others=None, mode="device", why="no permission for the NVML query")
    start = before(process=None, others=None, mode="device", why="no permission for the NVML query")
    assert text_line(report(start, end, exact=False)) == (
        "cuda:0  +400.0 MiB held · peak at most +1.2 GiB · cache +64.0 MiB"
        " · ~outside PyTorch +256.0 MiB (this process or another) · 1.6 of 139.8 GiB used   In [7], 2.31 s"
    )


def test_the_cell_that_started_cuda():
    nothing = Reading(1.0, {}, HostReading())
    end = Reading(2.0, {"cuda:0": after(allocated=0, active=0, reserved=0, process=612 * MIB)}, HostReading())
    assert text_line(build_report(nothing, end, {}, seconds=0.5)) == (
        "cuda:0  CUDA context and first kernels +612.0 MiB · 1.6 of 139.8 GiB used   500.0 ms"
    )


def test_a_failed_cell_out_of_memory_with_notes():
    end = after(ooms=1, retries=3, busy=True)
    lines = text_line(report(end=end, success=False, notes=("a note",))).split("\n")
    assert lines[0].endswith("   In [7], 2.31 s, failed")
    assert lines[1:] == [
        (
            "a note; cuda:0 ran out of memory; cuda:0 was full: PyTorch gave its cache back and tried again 3 times;"
            " cuda:0 was still at work when read: memory that this work frees shows later"
        )
    ]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            RecordingFacts("/data/x.pickle", 17_500_000, 195_900, 0),
            "snapshot /data/x.pickle: 195,900 events, 16.7 MiB",
        ),
        (
            RecordingFacts("/data/x.pickle", 1 << 20, 10, 1234),
            "snapshot /data/x.pickle: 10 events, 1.0 MiB; the ring dropped 1,234 allocations: raise --max-entries",
        ),
        (
            RecordingFacts("/data/x.pickle", 1 << 20, 10, 5, own=False),
            (
                "snapshot /data/x.pickle: 10 events, 1.0 MiB; the ring dropped 5 allocations: raise its max_entries; "
                "cut out of the recording that was on"
            ),
        ),
        (
            RecordingFacts("/data/x.pickle", 1 << 20, 10, None, own=False),
            (
                "snapshot /data/x.pickle: 10 events, 1.0 MiB; whether the ring dropped events is not known; "
                "cut out of the recording that was on"
            ),
        ),
        (RecordingFacts(None, error="the snapshot x was not written: full"), "the snapshot x was not written: full"),
    ],
)
def test_what_became_of_a_recording(facts, text):
    assert text_line(report(recording=facts)).split("\n")[1] == text


def test_many_devices_show_the_two_largest():
    names = [f"cuda:{index}" for index in range(8)]
    low = Reading(1.0, {name: before(name) for name in names}, HostReading())
    high = Reading(
        2.0,
        {name: after(name, allocated=(200 + index) * MIB, reserved=584 * MIB) for index, name in enumerate(names)},
        HostReading(),
    )
    lines = text_line(build_report(low, high, {}, seconds=1.0)).split("\n")
    assert len(lines) == 3
    assert lines[2] == "6 more devices  %gpumem shows them"


def test_without_a_gpu_the_host_clearly_labelled():
    low = HostReading(200 * MIB, 200 * MIB, total=24 * GIB)
    high = HostReading(250 * MIB, 300 * MIB, total=24 * GIB)
    nothing = Reading(1.0, {}, low)
    one = build_report(nothing, Reading(2.0, {}, high), {}, seconds=1.5, cell=3)
    assert text_line(one) == (
        "host memory (RSS)  +50.0 MiB held · peak +100.0 MiB · 0.2 of 24.0 GiB resident   In [3], 1.50 s"
    )
    older = dataclasses.replace(one.host, before=HostReading(200 * MIB, 300 * MIB))
    assert "peak" not in text_line(dataclasses.replace(one, host=older)), "an older mark says nothing of this cell"
    still = build_report(nothing, nothing, {}, seconds=1.5)
    assert text_line(still) == "host memory (RSS)  nothing moved · 0.2 of 24.0 GiB resident   1.50 s"


def test_colour_only_when_it_is_asked_for():
    assert "\x1b" not in text_line(report())
    coloured = text_line(report(), colour=True)
    assert "\x1b[1m+400.0 MiB held\x1b[0m" in coloured
    assert "\x1b[33moutside PyTorch +256.0 MiB\x1b[0m" in coloured


def baseline(**options):
    device = before(
        process=806 * MIB, reserved=34 * MIB, allocated=32 * MIB, active=32 * MIB, **options.pop("device", {})
    )
    reading = Reading(1.0, {"cuda:0": device}, HostReading(200 * MIB))
    return Baseline(reading, "cuda:0", "NVIDIA H200", **options)


def test_what_the_load_prints():
    assert baseline_line(baseline(context=621 * MIB, kernels=65 * MIB)) == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 686 MiB (context 621, first kernels 65); "
        "a report follows every cell that moves memory"
    )
    assert baseline_line(baseline(kernels=66 * MIB, workspace=32 * MIB, note="a note"), reports=False) == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 772 MiB outside PyTorch (CUDA had started before); "
        "cuBLAS workspace 32 MiB in PyTorch; a note; reports are off (%gpumem on)"
    )


def test_what_the_load_prints_where_nobody_can_tell_processes_apart():
    device = {"process": None, "others": None, "mode": "device", "why": "no permission for the NVML query"}
    device |= {"process": None}
    reading = Reading(1.0, {"cuda:0": before(**device)}, HostReading())
    one = Baseline(reading, "cuda:0", "NVIDIA H200", context=621 * MIB, kernels=65 * MIB)
    assert baseline_line(one) == (
        "ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 686 MiB (context 621, first kernels 65); "
        "outside PyTorch is known for the whole card only: no permission for the NVML query; "
        "a report follows every cell that moves memory"
    )


def test_what_the_load_prints_without_a_gpu_and_with_preload_off():
    host = Reading(1.0, {}, HostReading(200 * MIB))
    assert baseline_line(Baseline(host, note="torch finds no NVIDIA GPU")) == (
        "ipygpumem: no GPU (torch finds no NVIDIA GPU): reporting host memory (RSS) instead, baseline 200.0 MiB; "
        "a report follows every cell that moves memory"
    )
    assert baseline_line(Baseline(host, note="preload is off")) == (
        "ipygpumem: CUDA is left alone; the baseline follows the first cell that starts it; "
        "a report follows every cell that moves memory"
    )


def test_a_context_on_a_further_device_is_told():
    """A copy between devices, NCCL or a call on the wrong device brings one, and nobody asked for it."""
    first = report(before(), before(), peak=100 * MIB)
    idle = before("cuda:1", context=False, allocated=0, active=0, reserved=0, requested=0, process=0)
    empty = report(idle, before("cuda:1", allocated=0, active=0, reserved=0, process=600 * MIB), peak=0)
    both = dataclasses.replace(first, devices={**first.devices, **empty.devices})
    assert text_line(both).splitlines()[-1] == (
        "cuda:1: a CUDA context of this process came without a tensor, and stays: by a copy between devices "
        "(peer access), NCCL, or a call on that device"
    )
    used = report(idle, after("cuda:1", process=1200 * MIB), peak=500 * MIB)
    both = dataclasses.replace(first, devices={**first.devices, **used.devices})
    assert text_line(both).splitlines()[-1] == (
        "cuda:1: this process's CUDA context came with the first tensor there, and stays"
    )
    assert "stays" not in text_line(empty), "of a process's one device that is no news"
