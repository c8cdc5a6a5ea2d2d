"""The books balance: in every reading and every report, whatever is known and whatever is not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpumem.core.baseline import Baseline
from ipygpumem.core.breakdown import breakdown, imbalance
from ipygpumem.core.reading import DeviceReading, HostReading, Reading
from ipygpumem.core.report import DeviceReport
from ipygpumem.measurement.build_report import build_report

MIB = 1 << 20
amount = st.integers(0, 1 << 40)
unsure = st.none() | amount
SOURCES = ["NVML memory info v2", "NVML memory info v1", "cudaMemGetInfo", None]


@st.composite
def readings(draw, name="cuda:0"):
    """Anything that a probe can make: the allocator known or not, the card by any source, our entry or not."""
    allocator = dict.fromkeys(("allocated", "reserved", "active", "requested"))
    if draw(st.booleans()):
        allocated, pending, cached = draw(amount), draw(amount), draw(amount)
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
    process = draw(amount) if mode == "process" else None
    return DeviceReading(
        name=name,
        context=True,
        **allocator,
        source=source,
        used=draw(amount) if source else None,
        driver_reserved=draw(amount) if source == SOURCES[0] else None,
        total=draw(unsure),
        process=process,
        others=draw(amount) if process is not None else None,
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


@settings(max_examples=300)
@given(readings(), readings())
def test_every_report_balances(before, after):
    report = DeviceReport("cuda:0", before, after)
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
        assert report.outside is None or report.process_wide, "v1, v2 and CUDA's own figure are never subtracted"
        return
    driver = _minus(after.driver_reserved, before.driver_reserved) or 0
    moved = after.used - before.used
    if report.process_wide:
        assert moved == driver + report.process + report.others + report.unattributed
    else:
        assert report.others is report.unattributed is None
        assert moved == driver + reserved + report.outside
        assert report.grades["outside"].trust == "device"


@given(readings(), readings())
def test_what_is_none_is_unknown_with_a_reason_and_the_other_way_round(before, after):
    report = DeviceReport("cuda:0", before, after)
    for name, grade in report.grades.items():
        assert (getattr(report, name) is None) == (grade.trust == "unknown"), name


@given(readings(), readings(), unsure, unsure, st.sampled_from(["cuda:0", "cuda:1", None]))
def test_the_lines_of_the_books_add_up(reading, other, context, kernels, device):
    base = Baseline(Reading(0.0, {"cuda:0": other}, HostReading()), device, "H200", context=context, kernels=kernels)
    for baseline in (None, base):
        lines = {line.label: line for line in breakdown(reading, baseline)}
        amounts = {label: line.nbytes for label, line in lines.items()}
        if reading.reserved is not None:
            parts = ("allocated (tensors)", "pending (freed, wait for a stream)", "cached")
            assert amounts["PyTorch reserved"] == sum(amounts[part] for part in parts)
        if "since the baseline" in amounts:
            parts = ("CUDA context", "first kernels", "rest at the baseline", "at the baseline", "since the baseline")
            assert amounts["outside PyTorch"] == sum(amounts.get(part, 0) for part in parts)
        for line in lines.values():
            assert (line.nbytes is None) == (line.grade.trust == "unknown"), line


def test_the_baseline_has_its_parts_when_they_were_told_apart():
    now = DeviceReading("cuda:0", context=True, allocated=0, reserved=0, active=0, process=1000, mode="process")
    start = replace(now, process=700)
    base = Baseline(Reading(0.0, {"cuda:0": start}, HostReading()), "cuda:0", "H200", context=600, kernels=100)
    lines = [(line.label, line.nbytes) for line in breakdown(now, base)]
    at = lines.index(("outside PyTorch", 1000))
    assert lines[at + 1 : at + 4] == [("CUDA context", 600), ("first kernels", 100), ("since the baseline", 300)]


def test_a_baseline_after_cuda_had_started_names_what_it_can():
    now = DeviceReading("cuda:0", context=True, allocated=0, reserved=0, active=0, process=1000, mode="process")
    start = replace(now, process=700)
    base = Baseline(Reading(0.0, {"cuda:0": start}, HostReading()), "cuda:0", "H200", context=None, kernels=100)
    lines = [(line.label, line.nbytes) for line in breakdown(now, base)]
    at = lines.index(("first kernels", 100))
    assert lines[at + 1 : at + 3] == [("rest at the baseline", 600), ("since the baseline", 300)]


def test_a_baseline_of_another_kind_is_not_subtracted():
    """Attribution by process was lost after the baseline: everybody's memory minus ours alone says nothing."""
    start = DeviceReading("cuda:0", context=True, allocated=0, reserved=0, active=0, process=700, mode="process")
    now = replace(start, process=None, mode="device", used=9000, source=SOURCES[0], driver_reserved=0)
    base = Baseline(Reading(0.0, {"cuda:0": start}, HostReading()), "cuda:0", "H200", context=600, kernels=100)
    labels = [line.label for line in breakdown(now, base)]
    assert "outside PyTorch" in labels
    assert "since the baseline" not in labels


def test_a_device_that_cuda_started_on_in_the_meantime():
    after = DeviceReading(
        "cuda:0", context=True, allocated=10, reserved=20, active=10, requested=9, process=620, others=5,
        used=1300, driver_reserved=600, source=SOURCES[0], mode="process", ooms=1, retries=2, total=2000,
    )  # fmt: skip
    nothing = Reading(1.0, {}, HostReading())
    report = build_report(nothing, Reading(2.0, {"cuda:0": after}, HostReading()), {}, seconds=1.0).devices["cuda:0"]
    assert (report.held, report.cached, report.outside, report.started) == (10, 10, 600, True)
    assert (report.others, report.unattributed) == (None, None), "nobody looked at the card before"
    assert (report.ooms, report.retries) == (1, 2)


def _minus(one, other):
    return None if one is None or other is None else one - other
