"""The sentence about expandable segments below an out-of-memory error, from a real recording."""

import pickle
from pathlib import Path

import pytest

from fakes import reports
from ipygpumem.features.oom import collect as oom
from ipygpumem.features.oom import expandable_segments
from ipygpumem.features.oom.model import AVOIDED, FailedAllocation
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from snapshot import files

MIB = 1 << 20
SNAPSHOT = Path(__file__).parents[2] / "data" / "oom_fragmented.pickle.xz"


@pytest.fixture
def panel(monkeypatch):
    monkeypatch.setattr(oom, "holders", lambda: None)

    def panel_advice(limit=1716, count=1, snapshot=SNAPSHOT, reserved=1600, free=100 << 10):
        reading = reports.before(reserved=reserved * MIB)
        failure = FailedAllocation("cuda:0", 32 * MIB, limit * MIB, free * MIB, reading=reading)
        return [text for text in oom.failure_report([failure], count, caught=True, snapshot=snapshot).advice if text]

    return panel_advice


def test_memory_left_with_expandable_segments(panel):
    expected = "with expandable segments, 16.0 MiB would have been left: set PYTORCH_ALLOC_CONF=expandable_"
    assert any(text.startswith(expected) for text in panel())


@pytest.mark.parametrize(("torch", "variable"), [("2.8.0", "PYTORCH_CUDA_ALLOC_CONF"), ("2.9.0", "PYTORCH_ALLOC_CONF")])
def test_panel_agrees_with_whatif(panel, tmp_path, torch, variable):
    recording = files.raw("oom_fragmented")
    for event in recording["device_traces"][0]:
        if event["action"] == "oom":
            event["device_free"] = 8 * MIB
    recording["ipygpumem"] = {"torch": torch}
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(recording))
    expected = (
        f"with expandable segments, 18.0 MiB would have been left: set {variable}=expandable_segments:True before"
    )
    expected += " torch is imported"
    assert expected in panel(limit=2000, snapshot=path, reserved=1710, free=8)
    compared = compare_settings(Snapshot.load(path), settings=["expandable_segments:True"])
    (event,) = compared.verification.recording.trace.events(Action.OOM)
    assert compared.limit[0] - int(compared.alternatives[0].replay.reserved.bytes[event + 1]) == 18 * MIB


@pytest.mark.parametrize("limit", [1716, 1650])
def test_recording_that_begins_late(panel, tmp_path, limit):
    recording = files.raw("oom_fragmented")
    recording["device_traces"][0] = recording["device_traces"][0][200:]
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(recording))
    sentences = [text for text in panel(limit=limit, snapshot=path) if "expandable segments" in text]
    estimate = "(estimated: recording began after 252.0 MiB had been reserved)"
    expected = f"with expandable segments, about 8.0 MiB would have been left {estimate}: set PYTORCH_ALLOC_CONF="
    if limit == 1716:
        assert [text.startswith(expected) for text in sentences] == [True]
    else:
        assert not [text for text in sentences if "left" in text or "would not have been enough" in text]
        (certain,) = (text for text in panel(limit=limit) if text.startswith("expandable segments alone"))
        assert certain == "expandable segments alone would not have been enough for this allocation"


def test_advice_about_fragmentation_is_not_repeated(panel, monkeypatch):
    sentence = f"fragmentation: free{AVOIDED}set expandable_segments:True"
    monkeypatch.setattr(oom, "advice", lambda *_: [sentence])
    assert sentence in panel(snapshot=None)
    for limit in (1716, 1630):
        assert [text for text in panel(limit=limit) if text.startswith("fragmentation")] == ["fragmentation: free"]


def test_expandable_segments_that_are_not_enough(panel):
    advice = panel(limit=1630)
    assert "expandable segments alone would not have been enough for this allocation" in advice
    assert not any("expandable_segments:True" in text for text in advice)


def test_older_blocks_whose_addresses_would_be_different(panel, tmp_path):
    recording = files.raw("oom_fragmented")
    recording["device_traces"][0] = recording["device_traces"][0][3000:]
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(recording))
    replayed = Snapshot.load(path).replay("expandable_segments:True", 1630 * MIB)
    assert (replayed.grade, replayed.served) == ("approximate", ())
    assert panel(limit=1630, snapshot=path) == panel(limit=1630, snapshot=None)


def test_no_sentence_without_a_snapshot_or_in_time(panel, monkeypatch, tmp_path):
    without = panel(snapshot=None)
    assert panel(count=2) == panel(snapshot=tmp_path / "missing.pickle") == without
    monkeypatch.setattr(expandable_segments, "_TIME_LIMIT", 0.0)
    assert panel() == without
