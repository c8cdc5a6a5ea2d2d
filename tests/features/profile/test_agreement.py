"""The same profile, read by torch's own (deprecated) memory timeline and by ours: the same bytes at every instant."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from fakes.programs import PROGRAMS, example
from ipygpumem.features.profile.capture import Capture
from ipygpumem.features.profile.categories import CATEGORIES, UNKNOWN
from ipygpumem.features.profile.event_tree import read_allocations, read_flow
from ipygpumem.features.profile.timeline import profile_of


def captured(run):
    capture = Capture()
    capture.start()
    try:
        run()
    finally:
        capture.stop()
    assert capture.error == ""
    return capture


def by_torch(capture, path, device):
    """Times (µs) and bytes by category, shape (times, categories), as torch's own export has them."""
    profile = capture._profile
    if not hasattr(profile, "export_memory_timeline"):
        pytest.skip("this torch has no memory timeline of its own any more")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        profile.export_memory_timeline(str(path), device)
    times, sizes = json.loads(path.read_text())
    return np.array(times), np.array(sizes)[:, 1:]


def check(capture, path):
    timelines = profile_of(read_flow(capture.result)).timelines
    assert timelines
    for timeline in timelines:
        times, sizes = by_torch(capture, path, timeline.device)
        # torch divides as floats, and writes what was there before at the time of the first change
        ours = np.array([int(int(time) / 1000) for time in timeline.time])
        rows = np.searchsorted(ours, times, side="right")
        rows[: int(times[0] == times[1])] = 0  # where something was there before
        found = timeline.levels[rows]
        assert (found == sizes).all(), np.argwhere(found != sizes)[:5]
        assert sizes.sum(axis=1).max() <= timeline.peak[1], "what torch has in one microsecond can hide a peak"
    return timelines


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_category_at_every_instant(name, tmp_path):
    torch.manual_seed(1)
    timelines = check(captured(PROGRAMS[name]()), tmp_path / "theirs.json")
    assert timelines[-1].device == "cpu"
    assert (timelines[-1].levels >= 0).all()


def test_the_example_of_the_documentation(tmp_path):
    timeline = check(captured(example()), tmp_path / "theirs.json")[0]
    row, bytes_ = timeline.peak
    levels = dict(zip(CATEGORIES, timeline.levels[row].tolist(), strict=True))
    parameters = 25_557_032 * 4
    assert levels["parameter"] == parameters
    assert levels["optimizer state"] == parameters
    assert bytes_ == sum(levels.values())
    assert all((timeline.levels[:, place] > 0).any() for place, one in enumerate(CATEGORIES) if one != "temporary")


class Strange:
    """An event of a kind that Python has no name for, around others."""

    start_time_ns = 0

    def __init__(self, children):
        self.children = children

    @property
    def typed(self):
        raise TypeError("Unable to convert")


def test_an_event_of_a_kind_that_has_no_name():
    capture = captured(PROGRAMS["adam"]())
    whole = profile_of(read_flow(capture.result)).timelines[0]

    class Result:
        @staticmethod
        def experimental_event_tree():
            return [Strange([]), Strange(capture.result.experimental_event_tree())]

    assert (profile_of(read_flow(Result)).timelines[0].levels == whole.levels).all()


def test_a_tree_that_cannot_be_read_still_has_its_bytes(tmp_path):
    capture = captured(PROGRAMS["adam"]())
    plain = profile_of(read_allocations(capture.result), "why").timelines
    whole = profile_of(read_flow(capture.result)).timelines
    (ours,), (full,) = plain, whole
    assert not ours.levels[:, :UNKNOWN].any()
    assert not ours.categorised
    assert full.categorised
    # but for what was there before and stayed, the sums move alike
    created = ours.total - ours.total[0]
    assert created.max() == (full.total - full.total[0]).max()
    assert created[-1] == full.total[-1] - full.total[0]
