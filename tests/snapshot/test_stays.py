"""Which segment held an address: against a look at each of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ipygpumem.snapshot.model.segment_lookup import find_segment


def plain(stays, address, event):
    for number, (begin, size, start, end) in enumerate(stays):
        if begin <= address < begin + size and start <= event < end:
            return number
    return -1


@pytest.mark.parametrize("seed", range(20))
def test_as_a_look_at_each(seed):
    """Segments come and go at places that others of other sizes took before: at one time no two lie on each other."""
    dice = random.Random(seed)
    stays, live = [], {}
    for event in range(-1, 120):
        for begin in [one for one in live if dice.random() < 0.2]:
            size, start = live.pop(begin)
            stays.append((begin, size, start, event))
        begin, size = dice.randrange(0, 60, 2), dice.choice([2, 4, 20])
        if all(begin + size <= at or at + other <= begin for at, (other, _) in live.items()):
            live[begin] = (size, event)
    stays += [(begin, size, start, 120) for begin, (size, start) in live.items()]
    dice.shuffle(stays)
    asked = [(dice.randrange(-2, 90), dice.randrange(-1, 120)) for _ in range(500)]
    columns = tuple(np.asarray(column, np.int64) for column in zip(*stays, strict=True))
    address, event = (np.asarray(column, np.int64) for column in zip(*asked, strict=True))
    assert find_segment(columns, address, event).tolist() == [plain(stays, *one) for one in asked]


def test_nothing_to_ask_and_nobody_to_hold():
    none = np.zeros(0, np.int64)
    assert find_segment((none, none, none, none), np.asarray([5]), np.asarray([1])).tolist() == [-1]
    one = np.asarray([1])
    assert find_segment((one, one, one, one), none, none).tolist() == []
