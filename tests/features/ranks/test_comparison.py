"""Differences between several processes."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from fakes.sessions import cell
from ipygpumem.core.errors import ReportError
from ipygpumem.features.lines.model import AllocationSite
from ipygpumem.features.ranks.comparison import compare_ranks, device_usage, rank_rows, slow_ranks, spreads
from ipygpumem.features.ranks.model import DeviceInfo, RankInfo, RankPeak, RankResult, rank_result_from

MIB = 1 << 20


def member(name, report=None, *, uuid=None, host="a", lines=None, **options):
    origin = RankInfo(int(name), 4, host, 100 + int(name), "0.1.0", (DeviceInfo("cuda:0", uuid, "H200", 1 << 37),))
    peaks = ()
    if lines is not None:
        parts = tuple(AllocationSite(label, mib * MIB, 1) for label, mib in lines.items())
        total = sum(lines.values()) * MIB
        peaks = (RankPeak(0, total, 10, 0, parts, AllocationSite("other lines", 0, 0), ((0.0, total),), 5),)
    return RankResult(name, "missing" if report is None else "done", origin, report, peaks, **options)


def test_spread_names_ranks():
    members = [
        member("0", cell(1, peak=100)),
        member("1", cell(1, peak=900)),
        member("2", cell(1, peak=200)),
        member("3"),
    ]
    (peak,) = [spread for spread in spreads(rank_rows(members)) if spread.metric == "peak"]
    assert (peak.lowest, peak.lowest_owner) == (100 * MIB, ("0", "cuda:0"))
    assert (peak.highest, peak.highest_owner) == (900 * MIB, ("1", "cuda:0"))
    assert peak.median == 200 * MIB


def test_no_spread_of_a_single_rank():
    assert spreads(rank_rows([member("0", cell(1)), member("1")])) == []
    assert slow_ranks([member("0", cell(1))])[1] == {}


def test_slow_ranks():
    times = {"0": 2.0, "1": 2.2, "2": 9.0, "3": 2.9}
    median, slow = slow_ranks(member(name, cell(1, seconds=seconds)) for name, seconds in times.items())
    assert (median, slow) == (pytest.approx(2.55), {"2": 9.0})


def test_shared_device_is_counted_once():
    first, second = cell(1, held=10), cell(1, held=20)
    used = first.devices["cuda:0"].after.driver_reserved + 70 * MIB
    used += sum(report.devices["cuda:0"].after.process for report in (first, second))
    second = dataclasses.replace(second, time=9.0, devices={"cuda:0": _used(second.devices["cuda:0"], used)})
    members = [member("0", first, uuid="GPU-x"), member("1", second, uuid="GPU-x"), member("2", cell(1), uuid="GPU-y")]
    shared, unshared = device_usage(members)
    assert shared.users == ("0", "1")
    assert (shared.used, shared.others) == (used, 70 * MIB)
    assert (unshared.uuid, len(unshared.users)) == ("GPU-y", 1)


def _used(device, used):
    return dataclasses.replace(device, after=dataclasses.replace(device.after, used=used))


def test_same_uuid_on_another_host_is_another_device():
    devices = device_usage([member("0", cell(1), uuid="GPU-x"), member("1", cell(1), uuid="GPU-x", host="b")])
    assert [device.host for device in devices] == ["a", "b"]


def test_device_without_a_context_is_not_in_use():
    report = cell(1)
    device = report.devices["cuda:0"]
    idle = dataclasses.replace(device.before, context=False)
    context_created = dataclasses.replace(report, devices={"cuda:0": dataclasses.replace(device, before=idle)})
    unused = dataclasses.replace(report, devices={"cuda:0": dataclasses.replace(device, before=idle, after=idle)})
    assert len(device_usage([member("0", context_created, uuid="GPU-x")])) == 1
    assert device_usage([member("0", unused, uuid="GPU-x")]) == []


def test_memory_of_others_is_unknown_without_process_memory():
    report = cell(1)
    device = report.devices["cuda:0"]
    device = dataclasses.replace(device, after=dataclasses.replace(device.after, process=None))
    report = dataclasses.replace(report, devices={"cuda:0": device})
    (usage,) = device_usage([member("0", report, uuid="GPU-x"), member("1", cell(1), uuid="GPU-x")])
    assert usage.others is None


def test_outlier_rank_and_its_lines():
    typical_lines = {"model.py:3 forward": 500, "model.py:9 forward": 40}
    outlier_lines = {**typical_lines, "model.py:9 forward": 400, "data.py:1 load": 7}
    difference = compare_ranks(
        [
            member("0", lines=typical_lines),
            member("1", lines=typical_lines),
            member("2", lines=outlier_lines),
            member("3", lines=typical_lines),
        ]
    )
    assert (difference.outlier, difference.typical, difference.compared_count, difference.similar_count) == (
        "2",
        "0",
        4,
        3,
    )
    assert difference.lines == (("model.py:9 forward", 40 * MIB, 400 * MIB), ("data.py:1 load", 0, 7 * MIB))
    assert (difference.outlier_peak - difference.typical_peak) == 367 * MIB


def test_equal_ranks():
    difference = compare_ranks([member(str(n), lines={"a": 5}) for n in range(3)])
    assert (difference.lines, difference.similar_count) == ((), 3)
    assert compare_ranks([member("0", lines={"a": 5}), member("1")]) is None


def test_two_ranks_are_compared_in_order():
    difference = compare_ranks([member("0", lines={"a": 5}), member("1", lines={"a": 9})])
    assert (difference.typical, difference.outlier) == ("0", "1")


def test_json_round_trip():
    result = member("3", cell(2, held=5), uuid="GPU-x", lines={"a.py:1": 5}, snapshot="/x/y.pickle")
    restored = rank_result_from(json.loads(json.dumps(result.to_dict())), "3")
    assert restored == result
    assert restored.report.devices["cuda:0"].held == 5 * MIB


def test_ranks_with_different_lines_take_linear_time():
    members = [member(str(n), lines={f"{n}:{line}": 1 for line in range(50)}) for n in range(500)]
    began = time.process_time()
    difference = compare_ranks(members)
    assert time.process_time() - began < 1, "0.1 s, or 6 s if each line is compared in all ranks"
    assert (difference.typical, difference.outlier, difference.compared_count) == ("0", "1", 500)
    assert len(difference.lines) == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "asleep"}, "state must be one of"),
        ({"report": None}, "the field 'report' is missing"),
        ({"report": {"schema": 1}}, "missing"),
        ({"origin": 5}, "origin is an integer"),
        ({"origin": {"rank": -1}}, "-1 is not a valid rank"),
        ({"origin": {"rank": 1 << 40}}, "is not a valid rank"),
        ({"origin": {"began": 1e300}}, "finite"),
        ({"origin": {"began": -5.0}}, "is not a time"),
        ({"origin": {"cards": [{"name": "", "uuid": None, "label": "", "total": None}] * 1025}}, "1,025 devices"),
        ({"origin": {"launch": [["job", "1"]] * 101}}, "origin.launch contains 101 IDs"),
        ({"peaks": [{}]}, "missing"),
        ({"schema": None}, "no valid schema version"),
    ],
)
def test_invalid_results(change, message):
    with pytest.raises(ReportError, match=message):
        rank_result_from({**member("0", cell(1)).to_dict(), **change}, "0")


def test_long_texts_are_truncated():
    data = member("0", cell(1)).to_dict()
    data["origin"]["host"] = data["note"] = "x" * 100_000
    result = rank_result_from(data, "0")
    assert (len(result.host), len(result.note)) == (200, 200)


def test_plain_report_is_not_a_rank_result():
    with pytest.raises(ReportError, match="not the report of a rank"):
        rank_result_from(cell(1).to_dict(), "0")
