from __future__ import annotations

import dataclasses

import pytest

from fakes.reports import before, report
from fakes.sessions import MIB, cell
from ipygpumem.features.history.model import previous_run_note
from ipygpumem.features.history.reports import Reports


def test_differences_are_described():
    previous, current = cell(5, held=300, peak=900, seconds=1.5), cell(7, held=300, peak=1200)
    assert (
        previous_run_note(current, previous, MIB) == "previous run, In [5]: +300.0 MiB held · peak +900.0 MiB, 1.50 s"
    )
    assert previous_run_note(cell(9), cell(5, outside=66, held=-3), MIB) == (
        "previous run, In [5]: -3.0 MiB held · outside PyTorch +66.0 MiB, 2.31 s"
    )
    assert previous_run_note(cell(9, held=4), cell(5), MIB) == "previous run, In [5]: 0 held · peak 0, 2.31 s"


def test_equal_runs_are_described_on_request():
    previous, current = cell(5, held=300), cell(7, held=300)
    assert previous_run_note(current, previous, MIB) is None
    assert previous_run_note(current, previous, MIB, always=True) == "previous run, In [5]: same memory usage, 2.31 s"
    assert previous_run_note(cell(7, held=301), previous, 4 * MIB) is None


def test_only_exact_values_are_compared():
    bound = report(before(), before(), peak=900 * MIB, exact=False, cell=5)
    assert previous_run_note(cell(7, peak=3), bound, MIB) is None
    whole_device = report(
        before(process=None, mode="device"),
        before(process=None, mode="device", used=9000 * MIB),
        cell=5,
        peak=100 * MIB,
    )
    assert previous_run_note(cell(7), whole_device, MIB) is None


def test_devices_that_differ():
    def two_devices(number, first_held, second_held):
        first, second = cell(number, held=first_held), cell(number, held=second_held, name="cuda:1")
        return dataclasses.replace(first, devices={**first.devices, **second.devices})

    assert previous_run_note(two_devices(7, 1, 2), two_devices(5, 1, 9), MIB) == (
        "previous run, In [5]: cuda:1 +9.0 MiB held · peak +9.0 MiB, 2.31 s"
    )
    assert previous_run_note(cell(7, name="cuda:1"), cell(5), MIB, always=True) is None, (
        "the runs have no device in common"
    )


@pytest.mark.parametrize("number", [None, 5])
def test_run_without_a_number(number):
    assert previous_run_note(cell(7, held=9), cell(number), MIB).startswith(
        "previous run" if number is None else "previous run, In [5]"
    )


def test_previous_run_of_a_cell():
    reports = Reports()
    first, second, third = (cell(number, cell_id="a") for number in (1, 5, 9))
    assert reports.earlier(first) is None
    reports.append(first)
    assert reports.earlier(second) is first
    assert reports.earlier(cell(5, cell_id="b")) is None
    assert reports.earlier(cell(5, cell_id=None)) is None
    reports.append(second)
    assert reports.earlier(third) is second


def test_measurements_of_a_run_match_by_order():
    reports = Reports()
    first_run = [cell(1, cell_id="a", code=code) for code in ("s", "t", "whole")]
    for first_report in first_run:
        assert reports.earlier(first_report) is None, "reports of the same run are not compared"
        reports.append(first_report)
    previous = []
    for code in ("s", "t", "whole", "more"):
        report = cell(2, cell_id="a", code=code)
        previous.append(reports.earlier(report))
        reports.append(report)
    assert previous == [*first_run, None]


def test_reports_per_run_are_limited():
    reports = Reports()
    for _ in range(1000):
        reports.append(cell(1, cell_id="a"))
    second_run = cell(2, cell_id="a")
    previous = []
    for _ in range(60):
        previous.append(reports.earlier(second_run))
        reports.append(second_run)
    assert [report is not None for report in previous] == [True] * 50 + [False] * 10
