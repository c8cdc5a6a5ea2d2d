"""Frees that wait for other streams: PyTorch completes them before it tries a request again."""

import pytest

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from snapshot.replay.test_older_memory import snapshot


def waiting_for_another_stream():
    """Return a recording in which 300 MiB were free only after another stream had used them."""
    events = [("segment_alloc", 0, 300), ("alloc", 0, 300), ("free_requested", 0, 300)]
    events += [("segment_alloc", 1000, 300), ("alloc", 1000, 300), ("segment_alloc", 2000, 10), ("alloc", 2000, 10)]
    events += [("free_completed", 0, 300), *(("alloc", start, 10) for start in (0, 10, 20))]
    segments = [(0, 300, [(0, 10), (10, 10), (20, 10)]), (1000, 300, [(1000, 300)]), (2000, 10, [(2000, 10)])]
    return snapshot(events, segments)


def test_smallest_capacity():
    loaded = waiting_for_another_stream()
    result = loaded.replay()
    assert (result.grade, result.reserved_peak, result.retries) == ("exact", 610 * MIB, 0)
    assert result.limit_reason == "1 free waited for another stream for an unknown time"
    assert result.smallest_capacity == 340 * MIB
    assert [result.fits(limit * MIB) for limit in (339, 340, 610)] == [False, True, True]
    comparison = compare_settings(loaded, settings=["expandable_segments:True"], capacity=400 * MIB)
    assert (comparison.recorded.fits, comparison.missing) == (True, 0)
    assert comparison.recorded.fits_reason == f"estimate: {result.limit_reason}"


@pytest.mark.parametrize("limit", [340, 400])
def test_state_after_a_retry(limit):
    result = waiting_for_another_stream().replay("", limit * MIB)
    assert (result.failure, result.retries) == (None, 1)
    for event in range(11):
        state = result.state(event)
        used, reserved = state.blocks["rounded"].sum(), state.segments["size"].sum()
        assert used <= reserved <= limit * MIB
        ends = state.blocks["address"] + state.blocks["rounded"]
        assert (ends[:-1] <= state.blocks["address"][1:]).all()
        assert used == result.allocated.bytes[event + 1]
        assert reserved == result.reserved.bytes[event + 1]


@pytest.mark.parametrize(("line", "retries"), [(3, 1), (9, 0), (0, None)])
def test_retry_that_maps_no_memory(line, retries):
    events = [("segment_map", 0, 20, 1), ("alloc", 0, 5, 1), ("segment_map", 20, 20, 2), ("alloc", 5, 34, 2)]
    events += [("free_requested", 5, 34, 8), ("free_completed", 5, 34, line)]
    events += [("segment_unmap", 20, 20, line), ("alloc", 5, 8, 3)]
    events = [(*event[:3], event[3] if line else 0) for event in events]
    result = snapshot(events, [(0, 20, [(0, 5), (5, 8)])], limit=56, expandable=True).replay()
    assert (result.grade, result.retries) == ("exact", retries)
    assert result.retries_reason.startswith("without the stacks of frees") == (retries is None)
