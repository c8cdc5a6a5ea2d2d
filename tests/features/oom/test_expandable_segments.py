"""The sentence about expandable segments below an out-of-memory error, from a real recording."""

from pathlib import Path

import pytest

from fakes import reports
from ipygpumem.features.oom import collect as oom
from ipygpumem.features.oom import expandable_segments
from ipygpumem.features.oom.model import FailedAllocation

MIB = 1 << 20
SNAPSHOT = Path(__file__).parents[2] / "data" / "oom_fragmented.pickle.xz"


@pytest.fixture
def panel(monkeypatch):
    monkeypatch.setattr(oom, "holders", lambda: None)

    def panel_advice(limit=1716, count=1, snapshot=SNAPSHOT):
        reading = reports.before(reserved=1600 * MIB)
        failure = FailedAllocation("cuda:0", 32 * MIB, limit * MIB, 100 << 30, reading=reading)
        return [text for text in oom.failure_report([failure], count, caught=True, snapshot=snapshot).advice if text]

    return panel_advice


def test_memory_left_with_expandable_segments(panel):
    expected = "with expandable segments, 16.0 MiB would have been left: set PYTORCH_ALLOC_CONF=expandable_"
    assert any(text.startswith(expected) for text in panel())


def test_expandable_segments_that_are_not_enough(panel):
    assert "expandable segments alone would not have been enough for this allocation" in panel(limit=1630)


def test_no_sentence_without_a_snapshot_or_in_time(panel, monkeypatch, tmp_path):
    without = panel(snapshot=None)
    assert panel(count=2) == panel(snapshot=tmp_path / "missing.pickle") == without
    monkeypatch.setattr(expandable_segments, "_TIME_LIMIT", 0.0)
    assert panel() == without
