"""Distinct values, membership tests and stable sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.snapshot.model.columns import distinct, is_in, stable_order

numbers = st.lists(st.sampled_from([0, 1, -1, 7, 1 << 62, -(1 << 63)]) | st.integers(-(1 << 63), (1 << 63) - 1))


@given(numbers)
def test_distinct(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(numbers, numbers)
def test_is_in(values, table):
    result = is_in(np.array(values, np.int64), np.array(table, np.int64))
    assert result.tolist() == [value in table for value in values]


@given(numbers | st.lists(st.integers(-3, 3)))
def test_stable_order(values):
    order = stable_order(np.array(values, np.int64))
    assert order.tolist() == sorted(range(len(values)), key=values.__getitem__)
