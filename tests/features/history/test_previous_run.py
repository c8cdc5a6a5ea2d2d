from __future__ import annotations

import dataclasses

import pytest

from fakes.facts import before, report
from fakes.sessions import MIB, cell
from ipygpumem.features.history.previous_run import last_run


def test_what_differs_is_told():
    earlier, now = cell(5, held=300, peak=900, seconds=1.5), cell(7, held=300, peak=1200)
    assert last_run(now, earlier, MIB) == "last run, In [5]: +300.0 MiB held · peak +900.0 MiB, 1.50 s"
    assert last_run(cell(9), cell(5, outside=66, held=-3), MIB) == (
        "last run, In [5]: -3.0 MiB held · outside PyTorch +66.0 MiB, 2.31 s"
    )
    assert last_run(cell(9, held=4), cell(5), MIB) == "last run, In [5]: 0 held · peak 0, 2.31 s"


def test_the_same_is_told_where_somebody_asked():
    earlier, now = cell(5, held=300), cell(7, held=300)
    assert last_run(now, earlier, MIB) is None
    assert last_run(now, earlier, MIB, always=True) == "last run, In [5]: the same, 2.31 s"
    assert last_run(cell(7, held=301), earlier, 4 * MIB) is None


def test_only_what_is_exact_is_compared():
    bound = report(before(), before(), peak=900 * MIB, exact=False, cell=5)
    assert last_run(cell(7, peak=3), bound, MIB) is None
    card = report(
        before(process=None, mode="device"),
        before(process=None, mode="device", used=9000 * MIB),
        cell=5,
        peak=100 * MIB,
    )
    assert last_run(cell(7), card, MIB) is None


def test_each_device_that_differs():
    def both(number, one, other):
        first, second = cell(number, held=one), cell(number, held=other, name="cuda:1")
        return dataclasses.replace(first, devices={**first.devices, **second.devices})

    assert last_run(both(7, 1, 2), both(5, 1, 9), MIB) == (
        "last run, In [5]: cuda:1 +9.0 MiB held · peak +9.0 MiB, 2.31 s"
    )
    assert last_run(cell(7, name="cuda:1"), cell(5), MIB, always=True) is None, "nothing in common"


@pytest.mark.parametrize("number", [None, 5])
def test_a_run_without_a_number(number):
    assert last_run(cell(7, held=9), cell(number), MIB).startswith("last run" if number is None else "last run, In [5]")
