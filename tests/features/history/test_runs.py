from __future__ import annotations

from fakes.sessions import cell
from ipygpumem.features.history.runs import Runs


def test_a_cell_is_told_against_its_last_run():
    runs = Runs()
    first, second, third = (cell(number, cell_id="a") for number in (1, 5, 9))
    assert runs.earlier(first) is None
    runs.add(first)
    assert runs.earlier(second) is first
    assert runs.earlier(cell(5, cell_id="b")) is None
    assert runs.earlier(cell(5, cell_id=None)) is None
    runs.add(second)
    assert runs.earlier(third) is second


def test_measurements_of_one_run_go_by_their_order():
    runs = Runs()
    old = [cell(1, cell_id="a", code=code) for code in ("s", "t", "whole")]
    for one in old:
        assert runs.earlier(one) is None, "one run is not its own last"
        runs.add(one)
    new = [cell(2, cell_id="a", code=code) for code in ("s", "t", "whole", "more")]
    seen = []
    for one in new:
        seen.append(runs.earlier(one))
        runs.add(one)
    assert seen == [*old, None]


def test_what_is_forgotten_is_kept_by_nobody():
    runs = Runs()
    one = cell(1, cell_id="a")
    runs.add(one)
    runs.forget(one)
    assert runs._cells == {}
    assert runs.earlier(cell(2, cell_id="a")) is None
    runs.forget(one)


def test_thousands_of_statements_in_one_cell_are_not_all_kept():
    runs = Runs()
    for _ in range(1000):
        runs.add(cell(1, cell_id="a"))
    assert len(runs._cells["a"].now) == 50
