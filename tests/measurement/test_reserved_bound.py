"""Upper bounds on PyTorch's reserved memory."""

from __future__ import annotations

from ipygpumem.measurement.reserved_bound import CounterReading, ReservedMemoryCurve, reserved_bound


def event(action, size, second):
    return {"action": action, "size": size, "time_us": round((1000 + second) * 1e6)}


TRACE = [
    event("alloc", 7, 0.99),
    event("segment_alloc", 100, 1),
    event("alloc", 7, 1.001),
    event("free_completed", 7, 1.99),
    event("segment_map", 50, 2),
    event("alloc", 7, 2.2),
    event("segment_unmap", 50, 3),
    event("alloc", 7, 3.3),
    event("segment_free", 100, 4),
    event("alloc", 7, 4.4),
]


def test_usage_is_computed_backwards_from_the_end():
    usage = ReservedMemoryCurve(TRACE, 20, since=1000, complete=True)
    assert [usage.at(1000 + at, 1000 + at) for at in (0.5, 1.5, 2.5, 3.5, 4.5)] == [20, 120, 170, 120, 20]
    assert usage.upper_bound(1000 + 0.5, 1000 + 4.5) == 170
    assert usage.upper_bound(1000 + 3.5, 1000 + 4.5) == 120
    assert usage.at(1000 + 1.5, 1000 + 2.5) is None, "it changed in between"
    assert usage.at(1000 + 2.0005, 1000 + 2.0005) is None, "the two clocks are not exact enough"
    assert usage.upper_bound(1000 + 2.0005, 1000 + 2.0005) == 170
    assert usage.upper_bound(1000 + 1.9995, 1000 + 1.9995) == 170


def test_segment_may_exist_while_cudamalloc_runs():
    """PyTorch records it after the call, which began after the previous event and has a maximum duration."""
    usage = ReservedMemoryCurve(TRACE, 20, since=1000, complete=True)
    assert usage.upper_bound(1000 + 1.995, 1000 + 1.995) == 170
    assert usage.at(1000 + 1.995, 1000 + 1.995) is None
    assert usage.upper_bound(1000 + 1.98, 1000 + 1.98) == 120
    single = ReservedMemoryCurve([event("segment_alloc", 1 << 30, 5)], 1 << 30, since=1000, complete=True)
    assert single.upper_bound(1000 + 4.9, 1000 + 4.9) == 1 << 30
    assert single.at(1000 + 4.8, 1000 + 4.8) == 0


def test_segment_may_exist_while_cudafree_waits():
    """PyTorch records it before the call, which waits for the device and ends before the next event."""
    usage = ReservedMemoryCurve(TRACE, 20, since=1000, complete=True)
    assert usage.upper_bound(1000 + 4.2, 1000 + 4.2) == 120
    assert usage.at(1000 + 4.2, 1000 + 4.2) is None
    assert usage.at(1000 + 4.41, 1000 + 4.41) == 20
    last = ReservedMemoryCurve(TRACE[:-1], 20, since=1000, complete=True)
    assert last.upper_bound(1000 + 99, 1000 + 99) == 120, "no later event proves that it was freed"


def test_usage_before_the_recording_is_unknown():
    assert ReservedMemoryCurve(TRACE, 20, since=1000.25, complete=True).upper_bound(1000 + 0.2, 1000 + 0.3) is None
    incomplete = ReservedMemoryCurve(TRACE, 20, since=1000, complete=False)
    assert incomplete.upper_bound(1000 + 0.5, 1000 + 0.5) is None
    assert incomplete.at(1000 + 1.5, 1000 + 1.5) == 120
    assert incomplete.upper_bound(1000 + 0.9999, 1000 + 0.9999) is None
    assert ReservedMemoryCurve([], 20, since=1000, complete=False).upper_bound(1000 + 5, 1000 + 5) is None
    assert ReservedMemoryCurve([], 20, since=1000, complete=True).upper_bound(1000 + 5, 1000 + 5) == 20


def test_bound_between_readings():
    readings = [
        CounterReading(1, 1.1, 100, 500, 400),
        CounterReading(2, 2.1, 40, 530, 490),
        CounterReading(3, 3.1, 90, 580, 490),
    ]
    bound = reserved_bound(1000, readings)
    assert bound(1.5, 1.6) == 130, "100, and 30 were allocated until the next reading"
    assert bound(2.5, 2.6) == 90
    assert bound(1.05, 1.06) == 1000, "before the end of the first reading"
    assert bound(2.05, 2.06) == 130, "during a reading: before or after it"
    assert bound(1.5, 2.5) == 130
    assert bound(0.5, 0.6) == bound(3.5, 3.6) == 1000
    assert reserved_bound(None, readings)(0.5, 0.6) is None
    assert reserved_bound(None)(1, 2) is None
    assert reserved_bound(110, readings)(1.5, 1.6) == 110


def test_totals_that_were_reset_in_between():
    readings = [CounterReading(1, 1.1, 100, 500, 400), CounterReading(2, 2.1, 40, 530, 530)]
    assert reserved_bound(None, readings)(1.5, 1.6) is None
