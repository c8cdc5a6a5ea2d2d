"""The most that PyTorch can have had reserved at a time."""

from __future__ import annotations

from ipygpumem.measurement.reserved_bound import Anchor, MostReserved, segment_moves, segment_steps


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


def test_segments_are_reckoned_back_from_the_end():
    steps = segment_steps(segment_moves(TRACE), 20, since=1000, origin=1000, complete=True)
    assert [steps.at(at, at) for at in (0.5, 1.5, 2.5, 3.5, 4.5)] == [20, 120, 170, 120, 20]
    assert steps.most(0.5, 4.5) == 170
    assert steps.most(3.5, 4.5) == 120
    assert steps.at(1.5, 2.5) is None, "it moved in between"
    assert steps.at(2.0005, 2.0005) is None, "two clocks: nobody knows which came first"
    assert steps.most(2.0005, 2.0005) == 170
    assert steps.most(1.9995, 1.9995) == 170


def test_a_segment_may_have_been_there_while_cudamalloc_ran():
    """PyTorch notes it when the call has returned; it began after the event before it, and lasts so long at most."""
    steps = segment_steps(segment_moves(TRACE), 20, since=1000, origin=1000, complete=True)
    assert steps.most(1.995, 1.995) == 170
    assert steps.at(1.995, 1.995) is None
    assert steps.most(1.98, 1.98) == 120
    alone = segment_steps(
        segment_moves([event("segment_alloc", 1 << 30, 5)]), 1 << 30, since=1000, origin=1000, complete=True
    )
    assert alone.most(4.9, 4.9) == 1 << 30
    assert alone.at(4.8, 4.8) == 0


def test_a_segment_may_be_there_while_cudafree_waits():
    """PyTorch notes it before the call, which waits for the device: it is over when the next event comes."""
    steps = segment_steps(segment_moves(TRACE), 20, since=1000, origin=1000, complete=True)
    assert steps.most(4.2, 4.2) == 120
    assert steps.at(4.2, 4.2) is None
    assert steps.at(4.41, 4.41) == 20
    last = segment_steps(segment_moves(TRACE[:-1]), 20, since=1000, origin=1000, complete=True)
    assert last.most(99, 99) == 120, "no event says that it is over"


def test_before_the_recording_nothing_is_known():
    assert segment_steps(segment_moves(TRACE), 20, since=1000.25, origin=1000, complete=True).most(0.2, 0.3) is None
    lossy = segment_steps(segment_moves(TRACE), 20, since=1000, origin=1000, complete=False)
    assert lossy.most(0.5, 0.5) is None
    assert lossy.at(1.5, 1.5) == 120
    assert lossy.most(0.9999, 0.9999) is None
    assert segment_steps([], 20, since=1000, origin=1000, complete=False).most(5, 5) is None
    assert segment_steps([], 20, since=1000, origin=1000, complete=True).most(5, 5) == 20


def test_between_two_readings():
    anchors = [Anchor(1, 1.1, 100, 500, 400), Anchor(2, 2.1, 40, 530, 490), Anchor(3, 3.1, 90, 580, 490)]
    most = MostReserved(1000, anchors)
    assert most(1.5, 1.6) == 130, "100, and 30 were taken until the next"
    assert most(2.5, 2.6) == 90
    assert most(1.05, 1.06) == 1000, "before the first reading was over"
    assert most(2.05, 2.06) == 130, "while it was read: before it or after it"
    assert most(1.5, 2.5) == 130
    assert most(0.5, 0.6) == most(3.5, 3.6) == 1000
    assert MostReserved(None, anchors)(0.5, 0.6) is None
    assert MostReserved(None)(1, 2) is None
    assert MostReserved(110, anchors)(1.5, 1.6) == 110


def test_sums_that_somebody_reset_in_between_say_nothing():
    anchors = [Anchor(1, 1.1, 100, 500, 400), Anchor(2, 2.1, 40, 530, 530)]
    assert MostReserved(None, anchors)(1.5, 1.6) is None
