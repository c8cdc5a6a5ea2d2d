"""What follows from the numbers of a failed allocation, and no other advice."""

from __future__ import annotations

import pytest

from fakes.facts import before
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.units import GIB, MIB
from ipygpumem.features.oom.model import Failure, FreePieces, advice, free_pieces

CARD = 140 * GIB


def failure(**changes):
    """40 GiB asked for, 10 GiB left on a card of 140."""
    facts = {"device": "cuda:0", "asked": 40 * GIB, "allowed": CARD, "free": 10 * GIB, "time": 0.0}
    reading = before(total=CARD + 615 * MIB, reserved=100 * GIB, process=101 * GIB, allocated=90 * GIB, active=90 * GIB)
    return Failure(**{**facts, "reading": reading, **changes})


def test_nothing_follows_from_a_card_that_is_full_of_ones_own():
    assert advice(failure(pieces=FreePieces(1 * GIB, 3, 2 * GIB, 2 * GIB))) == []


@pytest.mark.parametrize(
    ("changes", "freeable", "start"),
    [
        ({"asked": 200 * GIB}, 0, "200.0 GiB is more than the whole card (140.0 GiB)"),
        (
            {"pieces": FreePieces(1 * GIB, 90, 35 * GIB, 35 * GIB)},
            0,
            "fragmentation: PyTorch has 35.0 GiB free, but in 90",
        ),
        (
            {"neighbours": (OtherProcess(7, 33 * GIB, "python"),)},
            0,
            "another process is in the way: pid 7 (python) holds 33.0",
        ),
        (
            {"free": 60 * GIB, "allowed": 110 * GIB, "neighbours": (OtherProcess(7, 33 * GIB, "python"),)},
            0,
            "the card had 60.0 GiB left: the limit of 110.0 GiB is in the way",
        ),
        ({}, 31 * GIB, "%gpumem free gives 31.0 GiB back: enough to try again"),
    ],
)
def test_one_cause_one_sentence(changes, freeable, start):
    (sentence,) = advice(failure(**changes), freeable)
    assert sentence.startswith(start)


def test_what_is_too_little_is_no_advice():
    some = failure(pieces=FreePieces(1 * GIB, 9, 5 * GIB, 5 * GIB), neighbours=(OtherProcess(7, 2 * GIB),))
    assert advice(some, freeable=1 * GIB, freeable_out=2 * GIB) == []


def test_segments_that_expand_are_no_fragments():
    assert advice(failure(pieces=FreePieces(1 * GIB, 90, 35 * GIB, 35 * GIB, expandable=True))) == []


def test_outputs_are_advised_where_tracebacks_do_not_suffice():
    (sentence,) = advice(failure(), freeable=1 * GIB, freeable_out=32 * GIB)
    assert sentence == "%gpumem free --out gives 32.0 GiB back: enough to try again"


def test_memory_outside_pytorch_since_the_baseline():
    taken = failure(reading=before(total=CARD, reserved=60 * GIB, process=100 * GIB))
    assert advice(taken, baseline_outside=1 * GIB)[0].startswith("39.0 GiB were taken outside PyTorch by this process")


def test_without_any_books_nothing_is_made_up():
    assert advice(failure(reading=None)) == []
    assert failure(reading=None).short == 30 * GIB


def test_free_pieces_of_one_device():
    def segment(device, *blocks):
        return {"device": device, "blocks": [{"size": size, "state": state} for state, size in blocks]}

    used, free = "active_allocated", "inactive"
    segments = [
        segment(0, (used, 10), (free, 30), (used, 5), (free, 20)),
        segment(0, (free, 100)),
        segment(1, (used, 1), (free, 1000)),
    ]
    assert free_pieces(segments, 0) == FreePieces(largest=100, pieces=3, total=150, partly=50)
    assert free_pieces(segments, 2) == FreePieces(0, 0, 0, 0)
