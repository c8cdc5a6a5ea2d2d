"""Free memory that a failed request could not use, because it belongs to other pools."""

from dataclasses import replace

import pytest

from ipygpumem.features.whatif.table import blockers_table
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from snapshot.replay.test_retries import MIB, allocated, freed, load


def analyze(amount, pool):
    """Return the analysis of a failed request of ``amount`` MiB when 25 MiB are free in a partly used segment."""
    events = [*allocated(0, 40, 1), *freed(0, 40, 1), ("alloc", 0, 15, 1), *allocated(100, 20, 2, 1)]
    events += [("oom", 0, amount, 3, pool)]
    loaded = load(events, {(0, 40): {15: 1, 25: None}, (100, 20, 1): {20: 1}})
    return compare_settings(loaded, settings=["expandable_segments:True"]).blockers


def notes(blockers):
    return [note for note in blockers_table(blockers).notes if "could not use" in note]


@pytest.mark.parametrize(
    ("amount", "pool", "suitable", "where"),
    [
        (30, 0, 25, ""),
        (1, 0, 0, "in segments for requests of more than 1 MiB"),
        (30, 1, 0, "in private or other memory pools"),
    ],
)
def test_free_memory_of_other_pools(amount, pool, suitable, where):
    blockers = analyze(amount, pool)
    assert blockers.partly_used == suitable * MIB
    assert notes(blockers) == ([f"The request could not use other free memory: 25.0 MiB {where}."] if where else [])


def test_amounts_of_unsuitable_memory():
    blockers = replace(analyze(30, 0), other_size=3 * MIB, other_stream=2 * MIB)
    expected = "3.0 MiB in segments for requests of up to 1 MiB, 2.0 MiB in segments of other streams."
    assert notes(blockers) == [f"The request could not use other free memory: {expected}"]
    assert not notes(replace(blockers, other_size=MIB, other_stream=0)), "5% or less is not mentioned"
