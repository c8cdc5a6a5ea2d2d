"""Freed segments: a recording need not show whether the program or the allocator freed them."""

import copy
from dataclasses import replace

import pytest

from ipygpumem.features.whatif.table import comparison_table
from ipygpumem.snapshot.replay.recording import Recording
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from ipygpumem.snapshot.replay.settings_result import largest_insufficient_limit
from ipygpumem.snapshot.replay.verification import verify
from snapshot import files
from snapshot.replay.test_retries import MIB, allocated, freed, load

_SPLIT = {"max_split_size": 40 * MIB}


def _released(line, *, kept=False):
    """Return events in which segments of 60 and 100 MiB are freed before a segment of 150 MiB is allocated.

    ``line`` is 0 for a recording without stacks. ``kept``: Whether another cached segment is not freed.
    """
    events = [*allocated(0, 60, 1), *allocated(100, 100, 2), *freed(0, 60, 3), *freed(100, 100, 4)]
    events += [*allocated(250, 20, 1), *freed(250, 20, 3)] if kept else []
    events += [("segment_free", 0, 60, line), ("segment_free", 100, 100, line), *allocated(300, 150, line)]
    return events if line else [(*event[:3], 0) for event in events]


@pytest.mark.parametrize("settings", [{}, _SPLIT])
def test_no_limit_follows_from_segments_that_the_program_may_have_freed(settings):
    loaded = load(_released(0), {(300, 150): {150: 1}}, settings=settings)
    compared = compare_settings(loaded, settings=["roundup_power2_divisions:8"])
    assert (compared.limit, compared.recorded.fits, compared.reached_limit) == (None, None, True)
    text = str(comparison_table(compared))
    assert "Memory may have run short while recording" in text
    assert "within" not in text
    assert "available" not in text


@pytest.mark.parametrize(
    ("line", "kept", "smallest", "limit"),
    [(0, True, 40, (180, 330)), (0, True, 80, None), (0, False, 40, None), (7, False, 40, (160, 310))],
)
def test_limit_that_the_freed_segments_show(line, kept, smallest, limit):
    segments = {(250, 20): {20: None}, (300, 150): {150: 1}} if kept else {(300, 150): {150: 1}}
    loaded = load(_released(line, kept=kept), segments, settings={"max_split_size": smallest * MIB})
    assert (loaded.replay().grade == "exact") == (smallest == 40), "a smaller segment was freed"
    bounds = compare_settings(loaded, settings=["expandable_segments:True"]).limit
    assert bounds == (limit and (limit[0] * MIB, limit[1] * MIB - 1))


def test_limits_are_not_excluded_by_replays_that_omit_freed_segments():
    recording = Recording(files.snapshot("oom_fragmented"), 0)
    recording.has_uncertain_retries = True
    assert largest_insufficient_limit(recording, (1716 * MIB, 1900 * MIB)) == 1900 * MIB


@pytest.mark.parametrize("last", ["alloc", "oom"])
def test_retry_after_the_release_of_large_segments(last):
    events = [*allocated(0, 50, 1), *freed(0, 50, 2), *allocated(100, 20, 3), ("free_requested", 100, 20, 4)]
    events += [("segment_free", 0, 50, 5), ("free_completed", 100, 20, 5), ("segment_free", 100, 20, 5)]
    events += allocated(200, 64, 5) if last == "alloc" else [("oom", 0, 64, 5)]
    segments = {(200, 64): {64: 1}} if last == "alloc" else {}
    result = load(events, segments, settings=_SPLIT).replay()
    assert (result.grade, result.retries, result.retries_reason) == ("exact", 1, "")
    assert (result.reserved.bytes[1:] == result._run.recording.timeline.reserved.bytes[1:]).all()


def test_event_of_a_difference_in_reserved_memory():
    recording = Recording(files.snapshot("gpt_small"), 0)
    values = recording.timeline.reserved.bytes.copy()
    values[1001:] += 2 * MIB
    recording.timeline = copy.copy(recording.timeline)
    recording.timeline.reserved = replace(recording.timeline.reserved, bytes=values)
    assert verify(recording).difference == "event 1,000: reserved memory differs by up to 2.0 MiB"
