"""Tests that the lower bound on the peak outside PyTorch is never too high, and exact if PyTorch allocates nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.reports import MIB, before
from ipygpumem.core.samples import NOISE, MemorySample, highest_outside
from ipygpumem.measurement.reserved_bound import CounterReading, ReservedMemoryCurve, reserved_bound

NOT_OURS = 1500 - 615 - 806  # other processes and unattributed memory of `before`, in MiB


def sample(time, used):
    return MemorySample(time, time + 0.001, used * MIB)


def test_highest_sample_minus_reserved_memory():
    samples = [sample(0.1, 1500), sample(0.2, 2700), sample(0.3, 1600)]
    assert highest_outside(before(), before(), samples, lambda *_: 120 * MIB) == (1200 * MIB, 0.2)


def test_memory_that_pytorch_may_have_reserved_is_subtracted():
    samples = [sample(0.1, 2700)]
    assert highest_outside(before(), before(), samples, lambda *_: 1120 * MIB) == (200 * MIB, 0.1)
    assert highest_outside(before(), before(), samples, lambda *_: 1320 * MIB) is None
    assert highest_outside(before(), before(), samples, lambda *_: None) is None


def test_no_peak_above_the_usage_at_the_end():
    grown = before(process=2006 * MIB, used=2700 * MIB)
    assert highest_outside(before(), grown, [sample(0.1, 2700)], lambda *_: 120 * MIB) is None
    noise = 1500 + NOISE // MIB
    assert highest_outside(before(), before(), [sample(0.1, noise)], lambda *_: 120 * MIB) is None
    assert highest_outside(before(), before(), [sample(0.1, noise + 1)], lambda *_: 120 * MIB) == (NOISE + MIB, 0.1)


def test_other_processes_that_started_or_ended():
    process_started = before(others=1070 * MIB, used=2500 * MIB)
    assert highest_outside(before(), process_started, [sample(0.1, 2500)], lambda *_: 120 * MIB) is None
    process_ended = before(others=0, used=1430 * MIB)
    assert highest_outside(before(), process_ended, [sample(0.1, 1500)], lambda *_: 120 * MIB) is None


@pytest.mark.parametrize("changes", [{"source": "cudaMemGetInfo"}, {"used": None}, {"reserved": None}])
def test_readings_that_cannot_be_compared(changes):
    assert highest_outside(before(), before(**changes), [sample(0.1, 9000)], lambda *_: 120 * MIB) is None
    assert highest_outside(before(**changes), before(), [sample(0.1, 9000)], lambda *_: 120 * MIB) is None


def test_whole_device_without_attribution_by_process():
    unattributed = {"process": None, "others": None, "mode": "device"}
    samples = [sample(0.1, 2700)]
    assert highest_outside(before(**unattributed), before(**unattributed), samples, lambda *_: 120 * MIB) == (
        1200 * MIB,
        0.1,
    )


CHANGES = st.lists(
    st.tuples(st.sampled_from(["torch", "outside"]), st.integers(-600, 900), st.floats(0.001, 0.2)), max_size=30
)


@given(CHANGES, st.lists(st.floats(0, 3), max_size=40), st.lists(st.floats(0, 3), max_size=6))
def test_bound_is_never_too_high(changes, sample_times, reading_times):
    """Memory usage changes arbitrarily. Samples and counters are read at arbitrary times, with every kind of bound."""
    clock, levels, allocated = 0.0, {"torch": 120, "outside": 686}, 120
    timeline, trace = [(-1.0, 120, 686, 120)], []
    for owner, target, pause in changes:
        clock += pause
        change = max(target, -levels[owner])
        levels[owner] += change
        if owner == "torch":
            allocated += max(change, 0)
            action = "segment_alloc" if change >= 0 else "segment_free"
            trace.append({"action": action, "size": abs(change) * MIB, "time_us": round((1000 + clock) * 1e6)})
            trace.append({"action": "alloc", "size": 1, "time_us": round((1000 + clock) * 1e6)})
        timeline.append((clock, levels["torch"], levels["outside"], allocated))

    def at(time):
        """Return the reserved memory, the memory outside PyTorch and the sum of all allocations, in bytes."""
        return [mib * MIB for mib in next(state for state in reversed(timeline) if state[0] <= time)[1:]]

    def reading(time):
        reserved, _, total = at(time)
        return CounterReading(time, time, reserved, total, total - reserved)

    samples = [MemorySample(time, time, (615 + NOT_OURS) * MIB + sum(at(time)[:2])) for time in sorted(sample_times)]
    readings = [reading(time) for time in sorted(reading_times)]
    true_peak = (max(outside for _, _, outside, _ in timeline) - 686) * MIB
    end = before(
        reserved=levels["torch"] * MIB,
        process=(levels["torch"] + levels["outside"]) * MIB,
        used=(615 + NOT_OURS + levels["torch"] + levels["outside"]) * MIB,
    )
    peak = max(reserved for _, reserved, _, _ in timeline) * MIB
    recorded = ReservedMemoryCurve(trace, levels["torch"] * MIB, since=999.5, complete=True)
    bounds = []
    for bound in (
        reserved_bound(peak),
        reserved_bound(peak, readings),
        reserved_bound(None, readings),
        reserved_bound(peak, readings, recorded, epoch=1000),
    ):
        highest = highest_outside(before(), end, samples, bound)
        bounds.append(0 if highest is None else highest[0])
        assert highest is None or highest[0] <= true_peak
    assert bounds[0] <= bounds[1] <= bounds[3], "more information gives a higher bound"
