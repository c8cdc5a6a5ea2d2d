"""Limits: exceeded limits are reported, and so are limits that could not be checked."""

from __future__ import annotations

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.core.reading import DeviceReading, HostReading
from ipygpumem.core.report import DeviceReport, HostReport, PeakCounters, Report
from ipygpumem.features.limits.model import ExceededLimit, MemoryLimits

MIB = 1 << 20


def report(peak=3, held=1, outside=2, *, exact=True, mode="process", started=False, host=(100, 100, 130)):
    def reading(allocated, process):
        return DeviceReading(
            "cuda:0", context=not (started and not process), allocated=allocated, reserved=0, active=allocated,
            used=process, process=process if mode == "process" else None, mode=mode, why="no pid", source="NVML",
        )  # fmt: skip

    high = PeakCounters(peak * MIB, 0, peak * MIB, peak * MIB, exact=exact)
    device = DeviceReport(reading(0, 0), reading(held * MIB, outside * MIB), high)
    rss, mark, after = (MIB * mib for mib in host)
    return Report({"cuda:0": device}, HostReport(HostReading(rss, mark), HostReading(rss, after)), 0.1)


def over(limits, *arguments, **options):
    excesses, notes = limits.check(report(*arguments, **options))
    return [(excess.where, excess.kind, excess.amount) for excess in excesses], notes


def test_each_metric_has_its_own_limit():
    assert over(MemoryLimits()) == ([], ())
    assert over(MemoryLimits(peak=3 * MIB, held=MIB, outside=2 * MIB)) == ([], ()), (
        "a value equal to the limit is allowed"
    )
    assert over(MemoryLimits(peak=3 * MIB - 1)) == ([("cuda:0", "peak", 3 * MIB)], ())
    assert over(MemoryLimits(held=0)) == ([("cuda:0", "held", MIB)], ())
    assert over(MemoryLimits(held=0), held=0) == ([], ())
    assert over(MemoryLimits(outside=0)) == ([("cuda:0", "outside", 2 * MIB)], ())
    assert over(MemoryLimits(host=29 * MIB)) == ([("host", "peak", 30 * MIB)], ())


def test_bound_above_limit_does_not_exceed_a_limit():
    assert over(MemoryLimits(peak=3 * MIB), exact=False) == ([], ()), "at most 3 MiB is within 3 MiB"
    excesses, (note,) = over(MemoryLimits(peak=2 * MIB), exact=False)
    assert excesses == []
    assert note.startswith("the limit of 2.0 MiB (cuda:0, peak) was not checked: the peak counters were not reset")
    excesses, (note,) = over(MemoryLimits(host=29 * MIB), host=(100, 130, 130))
    assert excesses == []
    assert "reached its peak resident memory before" in note


def test_memory_of_unknown_process_does_not_exceed_a_limit():
    excesses, (note,) = over(MemoryLimits(outside=0), mode="device")
    assert excesses == []
    assert note.startswith("the limit of 0 (cuda:0, outside PyTorch) was not checked: may include the memory of other")


def test_cuda_context_does_not_exceed_a_limit():
    excesses, (note,) = over(MemoryLimits(outside=0), started=True)
    assert excesses == []
    assert "preload_pytorch" in note


def test_text():
    assert str(ExceededLimit("cuda:0", "peak", 3 * MIB, 2 * MIB)) == "cuda:0 peak +3.0 MiB, over the limit of 2.0 MiB"
    assert str(ExceededLimit("cuda:0", "held", 512, 0)) == "cuda:0 held +512 bytes, over the limit of 0 bytes"
    assert (
        str(ExceededLimit("cuda:1", "outside", 2 * MIB + 512, 2 * MIB))
        == "cuda:1 memory outside PyTorch +2,097,664 bytes, over the limit of 2,097,152 bytes"
    )


def test_limits_are_sizes():
    assert MemoryLimits.parse("2 GiB", 0, "1.5MiB", "3G") == MemoryLimits(2 << 30, 0, 3 * MIB // 2, 3 << 30)
    assert not MemoryLimits.parse(None, None)
    assert MemoryLimits.parse(None, 0)
    for value in ("much", "-1", -1, True, 1.5):
        with pytest.raises(OptionError):
            MemoryLimits.parse(value)
