"""Sums by owner: levels and peaks in the order of time, whose an address is, a window's own."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fakes.cupti import CUBLAS, CUPY, NCCL, TORCH
from ipygpumem.features.outside.accounts import COLUMNS, Account, Accounts, Owner, Window
from ipygpumem.features.outside.model import EARLIER


def owner(path=NCCL, device=0, memory="device", *, pooled=False):
    return Owner.of(device, memory, path, pooled=pooled)


def table(accounts, *rows):
    """Rows of (time, +bytes or -bytes, address, path)."""
    found = [(time, size > 0, address, abs(size), accounts.number(owner(path))) for time, size, address, path in rows]
    return np.array(found, dtype=np.int64).reshape(-1, COLUMNS)


def figures(account):
    return account.level, account.peak, account.allocated, account.freed, account.allocations


def test_each_owner_has_its_level_and_its_peak():
    accounts, window = Accounts(), Window(0)
    rows = table(
        accounts, (1, 100, 0xA, NCCL), (2, 50, 0xB, CUPY), (3, -100, 0xA, ""), (4, 30, 0xC, NCCL), (5, -50, 0xB, "")
    )
    accounts.enter(rows, [window])
    assert figures(window.accounts[owner()]) == (30, 100, 130, 100, 2)
    assert figures(window.accounts[owner(CUPY)]) == (0, 50, 50, 50, 1)
    assert figures(window.totals[0]) == (30, 150, 180, 150, 3)


def test_pytorchs_own_segments_are_in_no_total():
    accounts, window = Accounts(), Window(0)
    accounts.enter(table(accounts, (1, 100, 0xA, TORCH), (2, 7, 0xB, NCCL)), [window])
    assert window.accounts[Owner.allocator(0)].level == 100
    assert figures(window.totals[0]) == (7, 7, 7, 0, 1)


def test_host_and_managed_memory_is_in_no_total():
    accounts, window = Accounts(), Window(0)
    rows = [(1, 1, 0xA, 8, accounts.number(owner(memory=memory))) for memory in ("pinned", "managed", "static")]
    accounts.enter(np.array(rows, dtype=np.int64), [window])
    assert window.totals == {}
    assert len(window.accounts) == 3


def test_a_window_has_only_what_came_after_it_began():
    accounts, early, late = Accounts(), Window(0), Window(3)
    accounts.enter(table(accounts, (1, 100, 0xA, NCCL), (3, 50, 0xB, NCCL), (4, -100, 0xA, "")), [early, late])
    assert figures(early.accounts[owner()]) == (50, 150, 150, 100, 2)
    assert figures(late.accounts[owner()]) == (-50, 50, 50, 100, 1)


def test_what_nobody_saw_coming_goes_as_that():
    accounts, window = Accounts(), Window(0)
    accounts.enter(table(accounts, (1, -100, 0xA, "")), [window])
    assert window.accounts[owner("")].level == -100
    assert owner("").library == EARLIER


def test_a_segment_that_stood_already_is_pytorchs():
    accounts, window = Accounts(), Window(0)
    accounts.stands(0, 0xA, 100)
    accounts.enter(table(accounts, (1, -100, 0xA, "")), [window])
    assert window.accounts[Owner.allocator(0)].level == -100
    assert window.totals == {}


def test_an_address_that_changed_hands_before_its_release_was_stamped():
    """The new owner's call began first, and waited for the old one's to end."""
    accounts, window = Accounts(), Window(0)
    rows = table(
        accounts, (1, 100, 0xA, NCCL), (2, 40, 0xA, CUPY), (3, -100, 0xA, ""), (4, -40, 0xA, ""), (5, 1, 0xA, CUBLAS)
    )
    accounts.enter(rows, [window])
    assert figures(window.accounts[owner()]) == (0, 100, 100, 100, 1)
    assert figures(window.accounts[owner(CUPY)]) == (0, 40, 40, 40, 1)
    assert window.accounts[owner(CUBLAS)].level == 1
    assert owner("") not in window.accounts


def test_what_pytorch_lists_is_pytorchs_whoever_asked_for_it():
    accounts, window, later = Accounts(), Window(0), Window(10)
    accounts.enter(table(accounts, (1, 100, 0xA, NCCL), (2, 30, 0xB, NCCL)), [window])
    for _ in range(2):
        accounts.adopt(0, 0xA, [window, later])
    accounts.adopt(0, 0xDEAD, [window])
    assert figures(window.accounts[owner()]) == (30, 30, 30, 0, 1)
    assert figures(window.accounts[Owner.allocator(0)])[:1] == (100,)
    assert figures(window.totals[0]) == (30, 30, 30, 0, 1)
    assert later.accounts == {}
    accounts.enter(table(accounts, (11, -100, 0xA, "")), [window, later])
    assert window.accounts[owner()].level == 30
    assert later.accounts[Owner.allocator(0)].level == -100


def test_devices_are_apart():
    accounts, window = Accounts(), Window(0)
    rows = [(1, 1, 0xA, 8, accounts.number(owner(device=0))), (2, 1, 0xB, 9, accounts.number(owner(device=1)))]
    accounts.enter(np.array(rows, dtype=np.int64), [window])
    assert {device: total.level for device, total in window.totals.items()} == {0: 8, 1: 9}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100), st.sampled_from([NCCL, CUPY, CUBLAS])), max_size=60))
def test_as_one_would_count_by_hand(steps):
    """Each step allocates at an address that is free, or frees what is there."""
    accounts, window = Accounts(), Window(0)
    live, rows, levels, peaks = {}, [], {}, {}
    for time, (address, size, path) in enumerate(steps):
        if address in live:
            of, there = live.pop(address)
            rows.append((time, -there, address, ""))
            levels[of] -= there
        else:
            live[address] = path, size
            rows.append((time, size, address, path))
            levels[path] = levels.get(path, 0) + size
            peaks[path] = max(peaks.get(path, 0), levels[path])
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        accounts.enter(table(accounts, *half), [window])
    assert {one.library: (a.level, a.peak) for one, a in window.accounts.items()} == {
        owner(path).library: (levels[path], peaks[path]) for path in levels
    }


def test_millions_of_records_take_no_memory():
    accounts, window = Accounts(), Window(0)
    number = accounts.number(owner())
    count = 50_000
    batch = np.empty((2 * count, COLUMNS), dtype=np.int64)
    batch[:, 0] = np.arange(2 * count)
    batch[:, 1] = np.arange(2 * count) % 2 == 0
    batch[:, 2] = np.arange(2 * count) // 2 * 512
    batch[:, 3], batch[:, 4] = 512, number
    accounts.enter(batch, [window])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(1, 10):
        batch[:, 0] = np.arange(2 * count) + i * 2 * count
        accounts.enter(batch, [window])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert figures(window.accounts[owner()]) == (0, 512, 10 * count * 512, 10 * count * 512, 10 * count)
    assert grown < 100_000
    assert not accounts._live
    assert not accounts._older


def test_an_account_that_only_lost_has_a_peak_of_nothing():
    account = Account()
    account.add(np.array([-5, -6, 3]))
    assert figures(account) == (-8, 0, 3, 11, 1)
