"""Tests that the memory breakdown adds up in every reading and report, regardless of which values are known."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.reports import imbalance
from ipygpumem.core.reading import Baseline, DeviceReading, HostReading, Reading, breakdown
from ipygpumem.core.report import DeviceReport, build_report

MIB = 1 << 20
sizes = st.integers(0, 1 << 40)
optional_sizes = st.none() | sizes
SOURCES = ["NVML memory info v2", "NVML memory info v1", "cudaMemGetInfo", None]


@st.composite
def readings(draw, name="cuda:0"):
    """Generate readings from any source, with or without allocator counters and the NVML entry of this process."""
    allocator = dict.fromkeys(("allocated", "reserved", "active", "requested"))
    if draw(st.booleans()):
        allocated, pending, cached = draw(sizes), draw(sizes), draw(sizes)
        allocator = {
            "allocated": allocated,
            "active": allocated + pending,
            "reserved": allocated + pending + cached,
            "requested": allocated,
            "retries": draw(st.integers(0, 3)),
            "ooms": draw(st.integers(0, 3)),
        }
    source = draw(st.sampled_from(SOURCES))
    mode = draw(st.sampled_from(["process", "device", "torch-only"] if source else ["process", "torch-only"]))
    process = draw(sizes) if mode == "process" else None
    return DeviceReading(
        name=name,
        context=True,
        **allocator,
        source=source,
        used=draw(sizes) if source else None,
        driver_reserved=draw(sizes) if source == SOURCES[0] else None,
        total=draw(optional_sizes),
        process=process,
        others=draw(sizes) if process is not None else None,
        mode=mode,
        why="because",
    )


@given(readings())
def test_every_reading_balances(reading):
    assert imbalance(reading) in {0, None}
    if reading.reserved is not None:
        assert reading.reserved == reading.allocated + reading.pending + reading.cached
        if reading.process is not None:
            assert reading.process == reading.reserved + reading.outside
    if reading.unattributed is not None:
        driver = reading.driver_reserved or 0
        assert reading.used == driver + reading.process + reading.others + reading.unattributed
    if reading.mode == "device" and reading.outside is not None:
        assert reading.used == (reading.driver_reserved or 0) + reading.reserved + reading.outside
    if reading.used is None and reading.process is None:
        assert reading.outside is None, "unknown is never 0"


@settings(max_examples=150)
@given(readings(), readings())
def test_every_report_balances(before, after):
    report = DeviceReport(before, after)
    reserved = _minus(after.reserved, before.reserved)
    if reserved is None:
        assert report.held is report.pending is report.cached is report.outside is None
        return
    assert report.held + report.pending + report.cached == reserved
    if report.process is not None:
        assert report.process == reserved + report.outside
    mixed = before.source != after.source or after.source is None
    if mixed:
        assert report.unattributed is None
        assert report.outside is None or report.process_wide, (
            "values of NVML v1, NVML v2 and CUDA are never subtracted from each other"
        )
        return
    driver = _minus(after.driver_reserved, before.driver_reserved) or 0
    used = after.used - before.used
    if report.process_wide:
        assert used == driver + report.process + report.others + report.unattributed
    else:
        assert report.others is report.unattributed is None
        assert used == driver + reserved + report.outside
        assert report.grades["outside"].trust == "device"


@given(readings(), readings())
def test_values_are_none_if_and_only_if_grade_is_unknown(before, after):
    report = DeviceReport(before, after)
    for name, grade in report.grades.items():
        assert (getattr(report, name) is None) == (grade.trust == "unknown"), name


@given(readings(), readings(), optional_sizes, optional_sizes, st.sampled_from(["cuda:0", "cuda:1", None]))
def test_lines_of_the_breakdown_add_up(reading, other_processes, context, kernels, device):
    base = Baseline(
        Reading(0.0, {"cuda:0": other_processes}, HostReading()), device, "H200", context=context, kernels=kernels
    )
    for baseline in (None, base):
        lines = {line.label: line for line in breakdown(reading, baseline)}
        sizes_by_label = {label: line.nbytes for label, line in lines.items()}
        if reading.reserved is not None:
            parts = ("allocated (tensors)", "pending (freed, waiting for another stream)", "cached")
            assert sizes_by_label["PyTorch reserved"] == sum(sizes_by_label[part] for part in parts)
        if "since the baseline" in sizes_by_label:
            parts = (
                "CUDA context",
                "first kernels",
                "other memory at the baseline",
                "at the baseline",
                "since the baseline",
            )
            assert sizes_by_label["outside PyTorch"] == sum(sizes_by_label.get(part, 0) for part in parts)
        for line in lines.values():
            assert (line.nbytes is None) == (line.grade.trust == "unknown"), line


def test_baseline_is_split_into_context_and_first_kernels():
    end = DeviceReading("cuda:0", context=True, allocated=0, reserved=0, active=0, process=1000, mode="process")
    start = replace(end, process=700)
    base = Baseline(Reading(0.0, {"cuda:0": start}, HostReading()), "cuda:0", "H200", context=600, kernels=100)
    lines = [(line.label, line.nbytes) for line in breakdown(end, base)]
    at = lines.index(("outside PyTorch", 1000))
    assert lines[at + 1 : at + 4] == [("CUDA context", 600), ("first kernels", 100), ("since the baseline", 300)]


def test_baseline_taken_after_cuda_had_started():
    end = DeviceReading("cuda:0", context=True, allocated=0, reserved=0, active=0, process=1000, mode="process")
    start = replace(end, process=700)
    base = Baseline(Reading(0.0, {"cuda:0": start}, HostReading()), "cuda:0", "H200", context=None, kernels=100)
    lines = [(line.label, line.nbytes) for line in breakdown(end, base)]
    at = lines.index(("first kernels", 100))
    assert lines[at + 1 : at + 3] == [("other memory at the baseline", 600), ("since the baseline", 300)]


def test_baseline_of_another_mode_is_not_subtracted():
    """The value at the baseline excludes other processes, but the value now includes them."""
    start = DeviceReading("cuda:0", context=True, allocated=0, reserved=0, active=0, process=700, mode="process")
    end = replace(start, process=None, mode="device", used=9000, source=SOURCES[0], driver_reserved=0)
    base = Baseline(Reading(0.0, {"cuda:0": start}, HostReading()), "cuda:0", "H200", context=600, kernels=100)
    labels = [line.label for line in breakdown(end, base)]
    assert "outside PyTorch" in labels
    assert "since the baseline" not in labels


def test_device_on_which_cuda_started_during_the_measurement():
    after = DeviceReading(
        "cuda:0", context=True, allocated=10, reserved=20, active=10, requested=9, process=620, others=5,
        used=1300, driver_reserved=600, source=SOURCES[0], mode="process", ooms=1, retries=2, total=2000,
    )  # fmt: skip
    empty = Reading(1.0, {}, HostReading())
    report = build_report(empty, Reading(2.0, {"cuda:0": after}, HostReading()), {}, seconds=1.0).devices["cuda:0"]
    assert (report.held, report.cached, report.outside, report.started) == (10, 10, 600, True)
    assert (report.others, report.unattributed) == (None, None), "there is no earlier reading of the device"
    assert (report.ooms, report.retries) == (1, 2)


def _minus(after, before):
    return None if after is None or before is None else after - before
