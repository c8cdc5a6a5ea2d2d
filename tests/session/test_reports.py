from __future__ import annotations

import pytest

from fakes.facts import report
from ipygpumem.session import Reports


def test_a_list_that_finds_by_cell():
    reports = Reports()
    first, second, again = report(cell=1, cell_id="a"), report(cell=2, cell_id="b"), report(cell=2, cell_id="a")
    for one in (first, second, again):
        reports.append(one)
    assert list(reports) == [first, second, again]
    assert (len(reports), reports[-1], reports[:2]) == (3, again, [first, second])
    assert reports.cell(1) is first
    assert reports.cell(2) is again, "the newest"
    assert reports.cell("a") is again
    assert reports.cell("b") is second
    for key in (7, "z"):
        with pytest.raises(KeyError):
            reports.cell(key)


def test_a_report_outside_a_cell_is_not_found_by_none():
    reports = Reports()
    reports.append(report(cell=None))
    with pytest.raises(KeyError):
        reports.cell(None)


def test_the_prompt_shows_how_many_and_the_last():
    reports = Reports()
    for cell in range(10):
        reports.append(report(cell=cell))
    assert repr(reports).startswith("<10 reports: [<Report In [7]")
