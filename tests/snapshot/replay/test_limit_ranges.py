"""Replays within limits that are known only as a range: the result applies to all limits of the range."""

import pytest

from ipygpumem.core.units import MIB
from ipygpumem.features.whatif.table import comparison_table
from ipygpumem.snapshot.replay import settings_result
from ipygpumem.snapshot.replay.expandable_segments import smallest_limit
from ipygpumem.snapshot.replay.result import Replay, replay
from ipygpumem.snapshot.replay.run import run
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from ipygpumem.snapshot.replay.settings_result import fits_within, largest_insufficient_limit
from ipygpumem.snapshot.replay.verification import cached_verification
from snapshot import files

_ROUNDED = "roundup_power2_divisions:8"


def _tested_limits(monkeypatch):
    """Record the limits with which `Replay.fits_with_limits` is called, and return the list of them."""
    tested, fits_with_limits = [], Replay.fits_with_limits

    def fits(self, capacity):
        tested.append(capacity)
        return fits_with_limits(self, capacity)

    monkeypatch.setattr(Replay, "fits_with_limits", fits)
    return tested


@pytest.mark.parametrize(
    ("name", "settings", "by_fraction", "limits"),
    [
        ("variable_lengths_oom", "", True, (3100, 3330)),
        ("variable_lengths_oom", _ROUNDED, True, (3200, 3330)),
        ("variable_lengths_oom", "max_split_size_mb:64", True, (3150, 3200)),
        ("variable_lengths_oom", "garbage_collection_threshold:0.6", True, (3400, 4300, 5300)),
        ("variable_lengths_oom", "expandable_segments:True", False, (3001, 3019)),
        ("variable_lengths_oom", "expandable_segments:True,max_split_size_mb:48", True, (3050, 3100)),
        ("collection", "garbage_collection_threshold:0.5", True, (1146, 1150, 1175)),
        ("gpt_small", "", True, (500, 900, 925)),
        ("oom_fragmented", "", True, (100, 1716, 1741)),
    ],
)
def test_replays_with_the_same_limits_are_the_same(name, settings, by_fraction, limits):
    recording = cached_verification(files.snapshot(name), 0).recording
    parsed = AllocatorSettings.parse(settings)
    for limit in limits:
        result = run(recording, parsed, limit=limit * MIB, by_fraction=by_fraction)
        same = result.allocator.same_limits
        assert limit * MIB in same
        for other_limit in (same.start, min(same.stop - 1, 1 << 40)):
            other = run(recording, parsed, limit=other_limit, by_fraction=by_fraction)
            assert (other.failure, other.addresses) == (result.failure, result.addresses)
            assert other.allocator.events == result.allocator.events
            assert other.allocator.same_limits == same


@pytest.mark.parametrize("fraction", [1, 0.5, 0.6, 0.7, 1e-6, 0.999])
def test_smallest_limit(fraction):
    for amount in (0, 1, 2 * MIB, 3_333_333_333, (1 << 40) + 1):
        limit = smallest_limit(amount, fraction)
        assert int(fraction * limit) >= amount
        assert limit == 0 or int(fraction * (limit - 1)) < amount


def test_all_limits_of_a_range_are_tested(monkeypatch):
    tested = _tested_limits(monkeypatch)
    result = replay(files.snapshot("variable_lengths_oom"), 0, _ROUNDED, by_fraction=True)
    bounds = 3120 * MIB, 3350 * MIB - 1
    assert [result.fits(limit) for limit in (bounds[0], 3300 * MIB, bounds[1])] == [False, True, False]
    assert fits_within(result, bounds) == (None, "depends on limit")
    tested.clear()
    assert fits_within(result, (3304 * MIB, 3350 * MIB)) == (False, "")
    assert tested == [3304 * MIB], "one replay shows that the other limits have the same result"
    tested.clear()
    assert fits_within(result, (3120 * MIB, 3294 * MIB)) == (False, "")
    assert 2 < len(tested) < 8
    assert fits_within(result, (3356 * MIB, 8000 * MIB)) == (True, "")
    assert fits_within(result, None) == (None, "no limit is known")


@pytest.mark.parametrize("settings", ["max_split_size_mb:64", "garbage_collection_threshold:0.6", ""])
def test_definite_results_hold_for_every_limit(settings):
    result = replay(files.snapshot("variable_lengths_oom"), 0, settings, "5 GiB", by_fraction=True)
    definite = 0
    for low in range(3130, 3340, 60):
        fits, reason = fits_within(result, (low * MIB, (low + 23) * MIB))
        outcomes = {result.fits(limit * MIB) for limit in range(low, low + 24, 8)}
        if fits is None:
            assert reason == ("depends on addresses" if None in outcomes else "depends on limit") or len(outcomes) == 1
        else:
            assert outcomes == {fits}
            definite += 1
    assert definite


def test_range_that_requires_many_replays(monkeypatch):
    monkeypatch.setattr(settings_result, "_SHARE", 0)
    compared = compare_settings(files.snapshot("variable_lengths_oom"), settings=[_ROUNDED])
    (alternative,) = compared.alternatives
    assert (alternative.fits, alternative.fits_reason) == (None, "not all limits tested")
    assert compared.limit == (3120 * MIB, 3350 * MIB - 1)
    text = str(comparison_table(compared))
    assert "unknown whether one of these settings is enough: replays for all limits from 3,120 to 3,350 MiB" in text


def test_limits_that_the_recording_excludes():
    recording = cached_verification(files.snapshot("oom_fragmented"), 0).recording
    assert largest_insufficient_limit(recording, (1716 * MIB, 1900 * MIB)) == 1742 * MIB - 1
    assert largest_insufficient_limit(recording, (1750 * MIB, 1900 * MIB)) == 1900 * MIB, "contradiction"
    result = replay(files.snapshot("oom_fragmented"), by_fraction=True)
    assert result.fits(1740 * MIB) is None


@pytest.mark.parametrize("name", ["collection", "two_streams_expandable"])
def test_smallest_capacity_with_a_memory_fraction(name):
    """PyTorch compares the size of a whole segment with the limit, even if less memory is mapped."""
    result = replay(files.snapshot(name), 0, "expandable_segments:True", by_fraction=True)
    smallest = result.smallest_capacity
    again = replay(files.snapshot(name), 0, "expandable_segments:True", smallest, by_fraction=True)
    assert again.failure is None
