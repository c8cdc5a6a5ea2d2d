"""Iterators that a step advances: they are restored if possible, otherwise listed, and no item is lost."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader

import ipygpumem

SIZES = range(1, 17)


def endless():
    while True:
        yield torch.randn(1)


def repeated(values):
    """Yield values again and again, as `itertools.cycle` does."""
    stored = []
    for value in values:
        stored.append(value)
        yield value
    while True:
        yield from stored


def started(iterator, count=1):
    for _ in range(count):
        next(iterator)
    return iterator


def fit(iterators, **options):
    layer = nn.Linear(8, 8)

    def step(batch):
        for iterator in iterators.values():
            next(iterator)
        layer(torch.randn(batch, 8)).sum().backward()

    return ipygpumem.fit(step, SIZES, **options)


def test_restored_iterators(allocations):
    one, two = itertools.tee(iter(range(100)))
    once, started_values = started(iter([1, 2, 3] * 30), 2), started(iter("abc" * 30))
    iterators = {
        "list": once,
        "string": started_values,
        "zip": zip(iter([*range(50)]), iter((*range(50),)), strict=True),
        "cycle": itertools.cycle([*range(20)]),
        "started": started(itertools.cycle([*range(20)]), 3),
        "short": started(itertools.cycle(DataLoader(range(7), batch_size=None)), 4),
        "equal": started(itertools.cycle([0, 0, 1]), 2),
        "repeating": started(itertools.cycle([*range(3)]), 5),
        "tee": started(one, 3),
    }
    result = fit(iterators)
    assert not result.refusal
    assert not result.notes
    items = {name: [next(iterator) for _ in range(12)] for name, iterator in iterators.items()}
    assert items == {
        "list": [3, *[1, 2, 3] * 3, 1, 2],
        "string": [*"bca" * 4],
        "zip": [(number, number) for number in range(12)],
        "cycle": [*range(12)],
        "started": [*range(3, 15)],
        "short": [4, 5, 6, *range(7), 0, 1],
        "equal": [1, 0, 0] * 4,
        "repeating": [2, 0, 1] * 4,
        "tee": [*range(3, 15)],
    }
    assert next(two) == 0


def test_items_of_iterators_that_are_not_restored(allocations):
    batches = DataLoader(range(20), batch_size=None)
    iterators = {"cycle": itertools.cycle(batches), "generator": repeated(range(20))}
    result = fit(iterators)
    assert not result.refusal
    assert result.notes == (
        "The step advanced the iterator generator, which is not undone.",
        "The step advanced the iterator cycle, which is not undone.",
    )
    for iterator in iterators.values():
        first = next(iterator)
        assert first
        assert [next(iterator) for _ in range(40)] == [*range(first + 1, 20), *range(20), *range(first + 1)]


def test_notes_about_iterators(allocations):
    started_iterators = {
        "endless": endless(),
        "calls": iter(lambda: torch.randn(1), None),
        "pairs": zip(endless(), endless(), strict=False),
        "numbered": enumerate(endless()),
        "slice": itertools.islice(endless(), 1000),
        "expression": (value for value in endless()),
    }
    unused = {"unused": started(endless()), "rest": started(iter(lambda: 1, None))}
    iterators = {name: started(iterator) for name, iterator in started_iterators.items()}
    result = fit(iterators)
    assert unused
    assert not result.refusal
    expected = {f"The step advanced the iterator {name}, which is not undone." for name in iterators}
    assert set(result.notes) == expected
    assert len(result.notes) == len(expected)


def test_iterators_that_would_store_fake_tensors():
    data = torch.randn(20, 8)
    iterators = {"batches": itertools.cycle(DataLoader(data, batch_size=4))}
    result = fit(iterators, dry=True, device="2 GiB")
    assert result.refusal.startswith("batches is an itertools.cycle, which would store tensors without data: create")
    for expected in data.split(4) * 2:
        assert torch.equal(next(iterators["batches"]), expected)
    iterators = {"batches": itertools.cycle(list(data.split(4)))}
    assert not fit(iterators, dry=True, device="2 GiB").refusal
    for expected in data.split(4) * 2:
        assert torch.equal(next(iterators["batches"]), expected)
