from __future__ import annotations

from fakes.sessions import cell
from ipygpumem.features.history.model import changed_rows, pair_rows


def pairs(before, after):
    return pair_rows(before, after)[0]


def changes(before, after):
    return [
        (pair.before and pair.before.code, pair.after and pair.after.code, pair.change("held"))
        for pair in pairs(changed_rows(before), changed_rows(after))
    ]


MIB = 1 << 20


def test_cells_match_by_id_even_if_numbers_differ():
    before = [cell(1, held=5, cell_id="a"), cell(2, held=6, cell_id="b")]
    after = [cell(7, held=9, cell_id="b"), cell(8, held=5, cell_id="a"), cell(9, cell_id="c")]
    assert changes(before, after) == [
        ("step(2)", "step(7)", 3 * MIB),
        ("step(1)", "step(8)", 0),
        (None, "step(9)", None),
    ]
    assert changes(after, before)[-1] == ("step(9)", None, None)


def test_cells_without_ids_match_by_number():
    before = [cell(1, held=5, cell_id=None), cell(2, held=6, cell_id=None)]
    after = [cell(2, held=9, cell_id=None), cell(3, cell_id=None)]
    assert changes(before, after) == [("step(2)", "step(2)", 3 * MIB), (None, "step(3)", None), ("step(1)", None, None)]
    assert changes(before, [cell(1, held=7, cell_id="x")]) == [("step(1)", "step(1)", 2 * MIB), ("step(2)", None, None)]


def test_cells_match_by_number_if_no_ids_are_shared():
    before = [cell(1, held=5, cell_id="a"), cell(2, held=6, cell_id="b")]
    after = [cell(1, held=9, cell_id="x"), cell(2, held=6, cell_id="y")]
    assert changes(before, after) == [("step(1)", "step(1)", 4 * MIB), ("step(2)", "step(2)", 0)]
    after = [cell(1, held=9, cell_id="x"), cell(5, held=7, cell_id="b")]
    assert changes(before, after) == [(None, "step(1)", None), ("step(2)", "step(5)", MIB), ("step(1)", None, None)]


def test_last_run_of_a_repeated_cell_is_compared():
    before = [cell(1, held=5, cell_id="a"), cell(2, held=6, cell_id="a")]
    after = [cell(4, held=1, cell_id="a"), cell(9, held=4, cell_id="a")]
    assert changes(before, after) == [("step(2)", "step(9)", -2 * MIB)]


def test_measurements_outside_cells_match_by_position():
    before = [cell(None, held=1, cell_id=None), cell(None, held=2, cell_id=None)]
    after = [cell(None, held=5, cell_id=None), cell(None, held=7, cell_id=None)]
    assert [change for _, _, change in changes(before, after)] == [4 * MIB, 5 * MIB]
    statements = [cell(3, held=1, cell_id="a", code="s"), cell(3, held=2, cell_id="a")]
    second_run = [cell(5, held=2, cell_id="a", code="s"), cell(5, held=9, cell_id="a")]
    assert changes(statements, second_run) == [("s", "s", MIB), ("step(3)", "step(5)", 7 * MIB)]


def test_devices_are_compared_separately():
    before = [cell(1, held=5), cell(1, held=9, name="cuda:1")]
    after = [cell(1, held=7, name="cuda:1")]
    assert changes(before, after) == [("step(1)", "step(1)", -2 * MIB), ("step(1)", None, None)]


def test_unknown_values_have_no_change():
    (pair,) = pairs(changed_rows([cell(1, end={"process": None})]), changed_rows([cell(1)]))
    assert pair.change("outside") is not None
    (pair,) = pairs(changed_rows([cell(1)]), [])
    assert pair.change("held") is None


def test_last_kernel_in_a_log_is_compared():
    def kernel(held):
        return [cell(1, held=held, cell_id="a"), cell(2, held=held + 1, cell_id="b", code="s"), cell(2, cell_id="b")]

    one_kernel, two_kernels = kernel(5), [*kernel(9), *kernel(7)]
    assert [change for _, _, change in changes(one_kernel, two_kernels)] == [2 * MIB, 2 * MIB, 0]
    bare = [cell(row.cell, held=7, cell_id=None) for row in one_kernel[:2]]
    assert [change for _, _, change in changes(bare, [*bare, *bare])] == [0, 0]
    blocks = [cell(None, held=3, cell_id=None), *one_kernel]
    assert [change for _, _, change in changes(blocks, [*blocks, *blocks])] == [0] * 4


def test_number_of_earlier_runs():
    before = [cell(1, held=5, cell_id="a"), cell(2, held=6, cell_id="b"), cell(3, held=7, cell_id="a")]
    after = [cell(1, held=5, cell_id="a"), cell(1, held=5, cell_id="a"), *(cell(n, cell_id="b") for n in (2, 3, 4))]
    assert pair_rows(changed_rows(before), changed_rows(after))[1] == (1, 2)
    without_ids = [cell(n, held=5, cell_id=None) for n in (1, 2, 1)]
    assert pair_rows(changed_rows(before), changed_rows(without_ids))[1] == (0, 1), "cells are matched by number"
