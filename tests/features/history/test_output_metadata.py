from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import ipygpumem
from fakes.reports import MIB, after, before, report
from ipygpumem import ReportError
from ipygpumem.features.history.model import LIMIT, MIME, output_metadata, report_rows, rows_from_summary
from ipygpumem.features.history.reports import COLUMNS

SUMMARY_FIELDS = (
    "cell",
    "seconds",
    "success",
    "device",
    "held",
    "peak",
    "peak_trust",
    "cached",
    "outside",
    "outside_trust",
)
SUMMARY_FIELDS += ("allocated", "cache", "outside_level", "others_level", "capacity", "ooms", "started", "peak_level")


@pytest.mark.parametrize(
    "cell_report",
    [
        report(),
        report(exact=False),
        report(peak=None, success=False),
        report(before(process=None, mode="device"), after(process=None, mode="device", ooms=2)),
        report(before(context=False, allocated=0, active=0, reserved=0), after()),
        dataclasses.replace(report(success=None, cell=None), devices={}),
    ],
)
def test_round_trip(cell_report):
    rows = rows_from_summary(json.loads(json.dumps(output_metadata(cell_report)[MIME])))
    for row, original in zip(rows, report_rows(cell_report), strict=True):
        assert {name: getattr(row, name) for name in SUMMARY_FIELDS} == {
            name: getattr(original, name) for name in SUMMARY_FIELDS
        }


def devices_report(count):
    reports = [
        report(
            before(f"cuda:{n}", used=150_000_000_000 - n, allocated=n * MIB),
            after(
                f"cuda:{n}",
                allocated=140_000_000_000 + n,
                active=140_000_000_000 + n,
                process=None,
                ooms=12,
                why="w" * 500,
            ),
            exact=False,
            notes=("n" * 5000,),
            code="c" * 80,
            cell=123_456,
        )
        for n in range(count)
    ]
    return dataclasses.replace(
        reports[0], devices={name: device for part in reports for name, device in part.devices.items()}
    )


@pytest.mark.parametrize("count", [1, 8, 9, 16, 200])
def test_summary_is_at_most_2_kb(count):
    data = output_metadata(devices_report(count))[MIME]
    assert len(json.dumps(data).encode()) <= LIMIT
    assert len(data["devices"]) + data.get("left_out", 0) == count
    assert "cuda:0" in data["devices"] or count > 8
    assert len(data["devices"]) >= min(count, 7)


def test_devices_with_the_smallest_changes_are_omitted():
    full_report = devices_report(20)
    unchanged = report(before("cuda:99"), before("cuda:99"), peak=100 * MIB).devices["cuda:99"]
    data = output_metadata(dataclasses.replace(full_report, devices={"cuda:99": unchanged, **full_report.devices}))[
        MIME
    ]
    assert "cuda:99" not in data["devices"]


def test_mime_type():
    assert MIME == "application/vnd.ipygpumem+json"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "the report is an integer, not an object"),
        ({}, "the data has no valid schema version, so it was not written by ipygpumem"),
        ({"schema": 1}, "devices is null, not an object"),
        ({"schema": 1, "devices": {}}, "the summary contains no devices"),
        ({"schema": 1, "devices": {"cuda:0": 5}}, "devices.cuda:0 is an integer, not an object"),
        ({"schema": 1, "devices": {"a\nb": {"held": "x"}}}, "devices.a?b.held is a string, not an integer"),
        (
            {"schema": 99},
            "the data has schema version 99, but this version of ipygpumem supports at most 1: upgrade ipygpumem",
        ),
        ({"schema": 1, "seconds": -1, "devices": {"cuda:0": {}}}, "seconds is -1.0, but must not be negative"),
        ({"schema": 1, "cell": -1, "devices": {"cuda:0": {}}}, "cell is -1, but must not be negative"),
        ({"schema": 1, "seconds": None, "devices": {"cuda:0": {}}}, "devices.cuda:0.seconds is null, not a number"),
    ],
)
def test_invalid_summaries(data, message):
    with pytest.raises(ReportError) as exc_info:
        rows_from_summary(data)
    assert str(exc_info.value) == message


def test_keys_are_documented():
    text = (Path(ipygpumem.__file__).parent / "core" / "FORMAT.md").read_text(encoding="utf-8")
    full_report = dataclasses.replace(devices_report(40), success=False)
    cuda_start = report(
        before(context=False, allocated=0, active=0, reserved=0), after(process=None, mode="device", ooms=1)
    )
    keys = {
        *output_metadata(full_report)[MIME],
        *output_metadata(cuda_start)[MIME]["devices"]["cuda:0"],
        *output_metadata(full_report)[MIME]["devices"]["cuda:0"],
    }
    assert [key for key in keys if f"`{key}`" not in text.partition("## In a notebook")[2]] == []
    assert [name for name in COLUMNS if f"`{name}`" not in text.partition("## A table")[2]] == []
    report_keys = {*report().to_dict(), *report().to_dict()["devices"]["cuda:0"]}
    assert [key for key in report_keys if f"`{key}`" not in text.partition("## A table")[0]] == []
