"""What samples prove: never more than was there, and the very peak where PyTorch stood still."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.facts import MIB, before
from ipygpumem.core.samples import NOISE, Sample, highest_outside
from ipygpumem.measurement.reserved_bound import Anchor, MostReserved, segment_moves, segment_steps

ELSEWHERE = 1500 - 615 - 806  # others and unattributed of the facts, in MiB


def sample(at, used, *, last=0.001):
    return Sample(at, at + last, used * MIB)


def still(**changes):
    """The end of a measurement in which nothing stayed."""
    return before(**changes)


def test_the_highest_of_all_samples_against_what_pytorch_had_reserved():
    samples = [sample(0.1, 1500), sample(0.2, 2700), sample(0.3, 1600)]
    assert highest_outside(before(), still(), samples, lambda *_: 120 * MIB) == (1200 * MIB, 0.2)


def test_what_pytorch_may_have_taken_meanwhile_is_never_called_outside():
    samples = [sample(0.1, 2700)]
    assert highest_outside(before(), still(), samples, lambda *_: 1120 * MIB) == (200 * MIB, 0.1)
    assert highest_outside(before(), still(), samples, lambda *_: 1320 * MIB) is None
    assert highest_outside(before(), still(), samples, lambda *_: None) is None


def test_no_peak_is_told_that_the_end_tells():
    held = still(process=2006 * MIB, used=2700 * MIB)
    assert highest_outside(before(), held, [sample(0.1, 2700)], lambda *_: 120 * MIB) is None
    noise = 1500 + NOISE // MIB
    assert highest_outside(before(), still(), [sample(0.1, noise)], lambda *_: 120 * MIB) is None
    assert highest_outside(before(), still(), [sample(0.1, noise + 1)], lambda *_: 120 * MIB) == (NOISE + MIB, 0.1)


def test_other_processes_that_came_or_went_are_not_ours():
    come = still(others=1070 * MIB, used=2500 * MIB)
    assert highest_outside(before(), come, [sample(0.1, 2500)], lambda *_: 120 * MIB) is None
    gone = still(others=0, used=1430 * MIB)
    assert highest_outside(before(), gone, [sample(0.1, 1500)], lambda *_: 120 * MIB) is None


@pytest.mark.parametrize("changes", [{"source": "cudaMemGetInfo"}, {"used": None}, {"reserved": None}])
def test_readings_that_cannot_be_compared_prove_nothing(changes):
    assert highest_outside(before(), still(**changes), [sample(0.1, 9000)], lambda *_: 120 * MIB) is None
    assert highest_outside(before(**changes), still(), [sample(0.1, 9000)], lambda *_: 120 * MIB) is None


def test_where_processes_cannot_be_told_apart_it_is_the_whole_cards():
    hidden = {"process": None, "others": None, "mode": "device"}
    samples = [sample(0.1, 2700)]
    assert highest_outside(before(**hidden), still(**hidden), samples, lambda *_: 120 * MIB) == (1200 * MIB, 0.1)


MOVES = st.lists(
    st.tuples(st.sampled_from(["torch", "outside"]), st.integers(-600, 900), st.floats(0.001, 0.2)), max_size=30
)


@given(MOVES, st.lists(st.floats(0, 3), max_size=40), st.lists(st.floats(0, 3), max_size=6))
def test_never_more_than_was_there(moves, times, readings):
    """Any course of both, samples and readings of PyTorch's counters at any time, by each kind of bound."""
    now, levels, taken = 0.0, {"torch": 120, "outside": 686}, 120
    course, trace = [(-1.0, 120, 686, 120)], []
    for who, wanted, pause in moves:
        now += pause
        change = max(wanted, -levels[who])
        levels[who] += change
        if who == "torch":
            taken += max(change, 0)
            action = "segment_alloc" if change >= 0 else "segment_free"
            trace.append({"action": action, "size": abs(change) * MIB, "time_us": round((1000 + now) * 1e6)})
            trace.append({"action": "alloc", "size": 1, "time_us": round((1000 + now) * 1e6)})
        course.append((now, levels["torch"], levels["outside"], taken))

    def at(time):
        return next(one for one in reversed(course) if one[0] <= time)

    samples = [Sample(time, time, (615 + ELSEWHERE + at(time)[1] + at(time)[2]) * MIB) for time in sorted(times)]
    anchors = [
        Anchor(one, one, at(one)[1] * MIB, at(one)[3] * MIB, (at(one)[3] - at(one)[1]) * MIB)
        for one in sorted(readings)
    ]
    truth = max(one[2] for one in course) - 686
    end = before(
        reserved=levels["torch"] * MIB,
        process=(levels["torch"] + levels["outside"]) * MIB,
        used=(615 + ELSEWHERE + levels["torch"] + levels["outside"]) * MIB,
    )
    highest = max(one[1] for one in course) * MIB
    steps = segment_steps(segment_moves(trace), levels["torch"] * MIB, since=999.5, origin=1000, complete=True)
    found = []
    for most in (
        MostReserved(highest),
        MostReserved(highest, anchors),
        MostReserved(None, anchors),
        MostReserved(highest, anchors, steps),
    ):
        proved = highest_outside(before(), end, samples, most)
        found.append(0 if proved is None else proved[0])
        if proved is not None:
            assert proved[0] <= truth * MIB
    assert found[0] <= found[1] <= found[3], "more knowledge proves more"
