"""Advice on failed allocations depends only on their sizes."""

from __future__ import annotations

import pytest

from fakes.reports import before
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.units import GIB, MIB
from ipygpumem.features.oom.model import FailedAllocation, FreeBlockSummary, advice, free_blocks

CAPACITY = 140 * GIB


def failure(**changes):
    """Return a failed request for 40 GiB on a device with 10 of 140 GiB free."""
    facts = {"device": "cuda:0", "requested": 40 * GIB, "limit": CAPACITY, "free": 10 * GIB}
    reading = before(
        total=CAPACITY + 615 * MIB, reserved=100 * GIB, process=101 * GIB, allocated=90 * GIB, active=90 * GIB
    )
    return FailedAllocation(**{**facts, "reading": reading, **changes})


def test_device_full_of_own_tensors_gives_no_advice():
    assert advice(failure(free_blocks=FreeBlockSummary(1 * GIB, 3, 2 * GIB))) == []


@pytest.mark.parametrize(
    ("changes", "freeable", "start"),
    [
        ({"requested": 200 * GIB}, 0, "the request of 200.0 GiB exceeds the total memory of the device (140.0 GiB)"),
        (
            {"free_blocks": FreeBlockSummary(1 * GIB, 90, 35 * GIB)},
            0,
            "fragmentation: PyTorch had 35.0 GiB of free memory, but in 90 blocks of at most 1.0 GiB each.",
        ),
        (
            {"other_processes": (OtherProcess(7, 33 * GIB, "python"),)},
            0,
            "another process uses 33.0 GiB on this device: pid 7 (python)",
        ),
        (
            {"free": 60 * GIB, "limit": 110 * GIB, "other_processes": (OtherProcess(7, 33 * GIB, "python"),)},
            0,
            "60.0 GiB was free on the device, but PyTorch is limited to 110.0 GiB",
        ),
        ({}, 31 * GIB, "%gpumem free would free 31.0 GiB, which is enough for this allocation"),
    ],
)
def test_each_cause_has_one_sentence(changes, freeable, start):
    (sentence,) = advice(failure(**changes), freeable)
    assert sentence.startswith(start)


def test_insufficient_measures_are_not_advised():
    small = failure(free_blocks=FreeBlockSummary(1 * GIB, 9, 5 * GIB), other_processes=(OtherProcess(7, 2 * GIB),))
    assert advice(small, freeable=1 * GIB, freeable_out=2 * GIB) == []


def test_expandable_segments_are_not_fragmented():
    assert advice(failure(free_blocks=FreeBlockSummary(1 * GIB, 90, 35 * GIB, expandable=True))) == []


def test_outputs_are_advised_if_tracebacks_do_not_suffice():
    (sentence,) = advice(failure(), freeable=1 * GIB, freeable_out=32 * GIB)
    assert sentence == "%gpumem free --out would free 32.0 GiB, which is enough for this allocation"


def test_growth_outside_pytorch_since_the_baseline():
    grown = failure(reading=before(total=CAPACITY, reserved=60 * GIB, process=100 * GIB))
    assert advice(grown, outside_at_baseline=1 * GIB) == [
        "this process's memory outside PyTorch has grown by 39.0 GiB since the baseline"
    ]


def test_no_advice_without_reading():
    assert advice(failure(reading=None)) == []
    assert failure(reading=None).missing == 30 * GIB


def test_free_blocks_of_one_device():
    def segment(device, *blocks):
        return {"device": device, "blocks": [{"size": size, "state": state} for state, size in blocks]}

    used, free = "active_allocated", "inactive"
    segments = [
        segment(0, (used, 10), (free, 30), (used, 5), (free, 20)),
        segment(0, (free, 100)),
        segment(1, (used, 1), (free, 1000)),
    ]
    assert free_blocks(segments, 0) == FreeBlockSummary(largest=100, count=3, partly_used=50)
    assert free_blocks(segments, 2) == FreeBlockSummary(0, 0, 0)
