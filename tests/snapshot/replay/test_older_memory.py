"""Recordings that begin after memory was reserved, and limits that expandable segments can exceed."""

import pytest

from ipygpumem.core.units import MIB
from ipygpumem.features.whatif.table import blockers_table, comparison_table
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.replay.missing_data import older_memory
from ipygpumem.snapshot.replay.result import replay
from ipygpumem.snapshot.replay.run import run
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from ipygpumem.snapshot.replay.verification import cached_verification
from snapshot import files

EXPANDABLE = "expandable_segments:True"
BASE = 0x7F00 << 24


def snapshot(events, segments, limit=None, *, expandable=False):
    """Return a snapshot from events and segments whose addresses and sizes are in MiB.

    Each segment is given as its address, its size, and the addresses and sizes of its blocks in use. Each event is
    given as its action, address and size and, optionally, a line, which is 0 for an event without a stack.
    """
    trace = [
        {
            "action": action,
            "device_free" if action == "oom" else "addr": address * MIB + BASE * (action != "oom"),
            "size": amount * MIB,
            "stream": 0,
            "frames": [{"filename": "train.py", "line": line, "name": "f"}] if line else [],
            "time_us": time,
        }
        for time, (action, address, amount, line) in enumerate((*event, 1)[:4] for event in events)
    ]
    rows = []
    for address, amount, blocks in segments:
        inside, position = [], address
        for start, used in [*blocks, (address + amount, 0)]:
            inside += [(position, start - position, "inactive", 0)] if start > position else []
            inside += [(start, used, "active_allocated", used)] if used else []
            position = start + used
        keys = ("address", "size", "state", "requested_size")
        values = [
            dict(zip(keys, (BASE + at * MIB, n * MIB, state, k * MIB), strict=True)) for at, n, state, k in inside
        ]
        segment = {"device": 0, "address": BASE + address * MIB, "total_size": amount * MIB, "stream": 0}
        rows.append(segment | {"segment_type": "large", "blocks": values, "is_expandable": expandable})
    devices = [] if limit is None else [{"index": 0, "limit": limit * MIB, "total": 140 << 30}]
    own = {"torch": "2.13.0", "devices": devices}
    settings = {"expandable_segments": expandable}
    return Snapshot.load({"segments": rows, "device_traces": [trace], "allocator_settings": settings, "ipygpumem": own})


def after_free_segments():
    """Return a recording that began when ten segments of 50 MiB were cached and no block was in use."""
    events = [("alloc", 100 * number, 30) for number in range(4)]
    for address in (2000, 2100):
        events += [("segment_alloc", address, 60), ("alloc", address, 60)]
    segments = [(100 * number, 50, [(100 * number, 30)] if number < 4 else []) for number in range(10)]
    return snapshot(events, [*segments, (2000, 60, [(2000, 60)]), (2100, 60, [(2100, 60)])])


def test_segments_without_blocks_in_use():
    loaded = after_free_segments()
    assert older_memory(cached_verification(loaded, 0).recording) == 500 * MIB
    result = loaded.replay(EXPANDABLE)
    reason = "the recording began after 500.0 MiB had been reserved"
    assert (result.grade, result.reason) == ("approximate", reason)
    assert result.reserved_range == (240 * MIB, 620 * MIB)
    assert loaded.replay().grade == "exact"
    assert loaded.replay().limit_reason == reason
    comparison = compare_settings(loaded, settings=[EXPANDABLE])
    assert comparison.recommended is None
    text = str(comparison_table(comparison))
    assert "Whether one of these settings saves 5% or more" in text
    assert "depends on the memory that was reserved before the recording began." in text


def test_failure_of_other_settings_is_uncertain():
    result = files.snapshot("resnet50").replay(EXPANDABLE)
    for limit, outcome in ((980, None), (970, False)):
        again = run(cached_verification(files.snapshot("resnet50"), 0).recording, result.settings, limit=limit * MIB)
        assert again.failure is not None
        within = result.fits_with_limits(limit * MIB)
        assert (within.fits, within.reason) == (outcome, "depends on older memory" * (outcome is None))
    recorded = files.snapshot("resnet50").replay()
    assert [recorded.fits(limit * MIB) for limit in (980, 970)] == [None, False]


def test_limit_that_is_enough_only_if_older_blocks_keep_their_addresses():
    loaded = files.snapshot("cnn_steps")
    result = loaded.replay()
    assert result.smallest_capacity <= 1220 * MIB
    assert result.without_older_memory().failure is None
    within = result.fits_with_limits(1220 * MIB)
    assert (within.fits, within.reason) == (None, "depends on older memory")


def test_failure_within_less_memory_than_at_the_start_is_uncertain():
    # Within 274 MiB, an earlier retry could have freed the segment of 100 MiB before a block of 2 MiB used it. Neither
    # the recorded segments nor new segments for all blocks would have left enough memory.
    pairs = [(100 * number, 22, [(100 * number, 11), (100 * number + 11, 11)]) for number in range(5)]
    segments = [*pairs, (1000, 100, [(1000, 2)]), (1200, 130, []), (2000, 140, [(2000, 140)])]
    result = snapshot([("segment_alloc", 2000, 140), ("alloc", 2000, 140)], segments).replay()
    assert result.grade == "exact"
    within = result.fits_with_limits(274 * MIB)
    assert (within.fits, within.reason) == (None, "depends on older memory")
    assert 274 * MIB in within.limits
    assert within.limits.stop == 340 * MIB
    assert result.fits(250 * MIB) is False  # less than the size of all blocks in use


def test_estimates_are_marked():
    comparison = compare_settings(files.snapshot("cnn_steps"), settings=[EXPANDABLE], capacity="1300 MiB")
    (alternative,) = comparison.alternatives
    reason = "the recording began after 2.2 GiB had been reserved"
    assert (alternative.fits, alternative.fits_reason) == (True, f"estimate: {reason}")
    table = comparison_table(comparison)
    assert table.rows[1].cells[-1] == "likely"
    assert f"Recommendation (estimated: {reason}): set PYTORCH_ALLOC_CONF={EXPANDABLE}" in str(table)
    within_recorded = compare_settings(files.snapshot("cnn_steps"), settings=[EXPANDABLE], capacity="3 GiB")
    assert [row.cells[-1] for row in comparison_table(within_recorded).rows] == ["yes", "likely"]


def after_limit_of_program():
    """Return a recording of requests of 12, 8, 12 and 8 MiB, the last of which failed within 34 MiB."""
    events = [("segment_alloc", 0, 12), ("alloc", 0, 12), ("segment_alloc", 100, 20), ("alloc", 100, 8)]
    events += [("alloc", 108, 12), ("oom", 140 << 10, 8)]
    return snapshot(events, [(0, 12, [(0, 12)]), (100, 20, [(100, 8), (108, 12)])], limit=34)


def test_expandable_segments_exceed_a_limit_of_the_program():
    comparison = compare_settings(after_limit_of_program(), settings=[EXPANDABLE])
    assert (comparison.recorded.fits, comparison.limit) == (False, (34 * MIB, 34 * MIB))
    (alternative,) = comparison.alternatives
    assert (alternative.fits, alternative.peaks, comparison.missing) == (True, (40 * MIB, 40 * MIB), 0)
    assert comparison.recommended is alternative
    assert alternative.replay.smallest_capacity == 32 * MIB


@pytest.mark.parametrize("by_fraction", [False, True])
def test_limits_below_the_smallest_capacity(by_fraction):
    result = replay(after_limit_of_program(), 0, EXPANDABLE, by_fraction=by_fraction)
    smallest = {False: 40, True: 32}[by_fraction] * MIB
    assert result.smallest_capacity == smallest
    assert [result.fits(smallest - MIB), result.fits(smallest)] == [False, True]


def with_uncertain_blocks():
    """Return a recording in which two blocks of 8 MiB are freed that were allocated before the recording began.

    Each block is in a segment of 20 MiB. The free block of 12 MiB after it may begin at an address that is up to 1 MiB
    higher.
    """
    events = [("segment_alloc", 1000, 60), ("alloc", 1000, 60)]
    events += [(action, start, 8) for start in (0, 100) for action in ("free_requested", "free_completed")]
    return snapshot(events, [(0, 20, []), (100, 20, []), (1000, 60, [(1000, 60)])])


def test_bounds_of_allocated_memory():
    result = with_uncertain_blocks().replay()
    assert (result.grade, result.allocated_peak) == ("exact", 76 * MIB)
    assert result.allocated_range == (76 * MIB, 78 * MIB)
    assert result.to_dict()["allocated_range"] == [76 * MIB, 78 * MIB]
    waste = result.waste
    assert (waste.event, waste.never_used, waste.uncertain) == (1, 24 * MIB, 2 * MIB)
    certain = after_free_segments().replay()
    assert (certain.allocated_range, certain.waste.uncertain) == ((certain.allocated_peak,) * 2, 0)


def test_cost_of_fragmentation_is_a_lower_bound():
    text = with_uncertain_blocks().summary()
    assert "peak reserved memory exceeds peak allocated memory by at least 22.0 MiB (22%)" in text


def test_uncertain_free_memory_when_a_request_required_new_memory():
    compared = compare_settings(with_uncertain_blocks(), settings=["expandable_segments:True"])
    assert (compared.blockers.partly_used, compared.blockers.uncertain) == (24 * MIB, 2 * MIB)
    text = str(blockers_table(compared.blockers))
    assert "24.0 MiB was free in 2 partly used segments, in blocks of at most 12.0 MiB." in text
    assert "Up to 2.0 MiB of it may have been in use, because the sizes of blocks from before the recording" in text
