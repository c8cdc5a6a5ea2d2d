"""Tests of the values and grades of a report."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.core.reading import Accuracy, DeviceReading, HostReading, Reading, make_accuracy
from ipygpumem.core.report import DeviceReport, HostReport, MeasurementLabel, PeakCounters, RecordingInfo, build_report

MIB = 1 << 20
V2 = "NVML memory info v2"
START = DeviceReading(
    name="cuda:0", context=True, allocated=100 * MIB, reserved=120 * MIB, active=110 * MIB, requested=99 * MIB,
    inactive_split=0, retries=0, ooms=0, rejections=0, used=2000 * MIB, driver_reserved=600 * MIB, process=800 * MIB,
    others=500 * MIB, total=9000 * MIB, mode="process", why="NVML entry verified by a test allocation", source=V2,
)  # fmt: skip


def report(after, high=None, before=START):
    return DeviceReport(before, dataclasses.replace(before, **after), high)


def test_values_are_changes_in_bytes():
    result = report(
        {"allocated": 150 * MIB, "active": 155 * MIB, "reserved": 200 * MIB, "process": 1000 * MIB, "used": 2300 * MIB},
        PeakCounters(180 * MIB, 200 * MIB, 180 * MIB, 179 * MIB),
    )
    assert (result.held, result.peak, result.pending, result.cached) == (50 * MIB, 80 * MIB, -5 * MIB, 35 * MIB)
    assert (result.outside, result.others, result.unattributed) == (120 * MIB, 0, 100 * MIB)
    assert (result.used, result.total) == (2300 * MIB, 9000 * MIB)


def test_peak_that_is_a_bound():
    result = report({}, PeakCounters(180 * MIB, 0, 0, 0, exact=False))
    assert (result.peak, result.grades["peak"].trust) == (80 * MIB, "bound")
    assert "untouched" in result.grades["peak"].reason


def test_lost_attribution_by_process():
    result = report({"process": None, "others": None, "mode": "device", "why": "GPU is lost", "used": 2100 * MIB})
    assert (result.outside, result.grades["outside"]) == (
        100 * MIB,
        make_accuracy("device", "may include the memory of other processes: GPU is lost"),
    )
    assert (result.others, result.unattributed) == (None, None)


@pytest.mark.parametrize("source", ["NVML memory info v1", "cudaMemGetInfo", None])
def test_sources_are_never_mixed(source):
    used = None if source is None else 1000 * MIB
    after = {"process": None, "others": None, "mode": "device", "source": source, "used": used}
    result = report({**after, "driver_reserved": None})
    assert result.outside is None
    assert result.grades["outside"].trust == "unknown"


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        ({}, False),
        ({"allocated": 101 * MIB}, True),
        ({"allocated": 99 * MIB}, True),
        ({"allocated": 100 * MIB + 1023 * 1024}, False),
        ({"reserved": 121 * MIB, "process": 801 * MIB}, True),
        ({"process": 801 * MIB}, True),
        ({"others": 900 * MIB}, False),
        ({"ooms": 1}, True),
        ({"rejections": 1}, True),
        ({"retries": 1}, True),
        ({"process": None, "mode": "device", "used": 2015 * MIB}, False),
        ({"process": None, "mode": "device", "used": 2016 * MIB}, True),
    ],
)
def test_changes_above_the_threshold(after, changed):
    assert report(after).has_changed(MIB) is changed


def test_exact_peak_is_a_change_and_a_bound_is_not():
    high = PeakCounters(200 * MIB, 0, 0, 0)
    assert report({}, high).has_changed(MIB)
    assert not report({}, dataclasses.replace(high, exact=False)).has_changed(MIB)


def test_to_json_round_trips():
    after = dataclasses.replace(START, allocated=None, process=None)
    recording = RecordingInfo("/data/x.pickle", 10, 3, None)
    report = build_report(
        Reading(1.5, {"cuda:0": START}, HostReading(5, 6)),
        Reading(2.5, {"cuda:0": after}, HostReading(7, 8)),
        {"cuda:0": PeakCounters(1, 2, 3, 4)},
        seconds=1.0,
        label=MeasurementLabel(cell=7, cell_id="a1b"),
        success=False,
        notes=("ä note",),
        recording=recording,
    )
    data = json.loads(report.to_json())
    assert data["devices"]["cuda:0"]["held"] is None
    assert data["devices"]["cuda:0"]["peaks"] == {
        "allocated": 1, "reserved": 2, "active": 3, "requested": 4, "exact": True
    }  # fmt: skip
    assert data["devices"]["cuda:0"]["grades"]["held"]["trust"] == "unknown"
    assert data["devices"]["cuda:0"]["before"]["outside"] == 680 * MIB
    assert data["host"]["held"] == 2
    assert (data["cell"], data["success"], data["notes"]) == (7, False, ["ä note"])


def test_repr():
    report = build_report(
        Reading(1.5, {"cuda:0": START}, HostReading(5, 6)),
        Reading(2.5, {"cuda:0": dataclasses.replace(START, allocated=500 * MIB)}, HostReading(7, 8)),
        {},
        seconds=2.31,
        label=MeasurementLabel(cell=7),
    )
    assert repr(report) == "<Report In [7], 2.31 s: cuda:0 held +400.0 MiB, peak unknown>"


def test_selected_devices():
    two_devices = Reading(1.0, {"cuda:0": START, "cuda:1": dataclasses.replace(START, name="cuda:1")}, HostReading())
    assert list(build_report(two_devices, two_devices, {}, seconds=1, devices=("cuda:1",)).devices) == ["cuda:1"]


def test_dataclasses_are_frozen_and_slotted():
    for facts in (START, report({}), HostReading(), make_accuracy("exact")):
        assert not hasattr(facts, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(facts, dataclasses.fields(facts)[0].name, None)


def host(before, after):
    return HostReport(HostReading(*before), HostReading(*after))


def test_host_peak_is_exact_if_it_was_reached_during_the_measurement():
    new_peak = host((100, 150), (120, 180))
    assert (new_peak.held, new_peak.peak, new_peak.exact) == (20, 80, True)
    at_peak = host((150, 150), (120, 150))
    assert (at_peak.peak, at_peak.exact) == (0, True)
    earlier_peak = host((100, 150), (120, 150))
    assert (earlier_peak.peak, earlier_peak.exact, earlier_peak.grades["peak"].trust) == (50, False, "bound")


@given(*[st.integers(0, 1 << 40)] * 4)
def test_host_peak_is_at_least_the_usage_at_both_times(rss, peak, rss_after, peak_after):
    result = host((rss, peak), (rss_after, max(peak, peak_after)))
    assert result.peak >= max(0, result.held)


def test_host_without_a_peak():
    result = host((100, None), (120, None))
    assert (result.held, result.peak, result.grades["peak"].trust) == (20, None, "unknown")


def test_equal_grades_are_one_object():
    assert make_accuracy("exact", "x") is make_accuracy("exact", "x")
    assert str(Accuracy("bound", "why")) == "bound (why)"
    assert str(Accuracy("exact")) == "exact"
