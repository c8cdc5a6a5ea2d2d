"""The timeline of a profile always agrees with PyTorch's deprecated memory timeline."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

from fakes.programs import PROGRAMS, example, residual_network
from ipygpumem.features.profile.categories import CATEGORIES, UNKNOWN
from ipygpumem.features.profile.event_tree import read_allocations, read_flow
from ipygpumem.features.profile.profiler_session import ProfilerSession
from ipygpumem.features.profile.timeline import build_timelines


def run_session(run):
    session = ProfilerSession()
    session.start()
    try:
        run()
    finally:
        session.stop()
    assert session.error == ""
    return session


def by_torch(session, path, device):
    profile = session._profile
    if not hasattr(profile, "export_memory_timeline"):
        pytest.skip("this version of torch has no memory timeline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        profile.export_memory_timeline(str(path), device)
    times, sizes = json.loads(path.read_text())
    return np.array(times), np.array(sizes)[:, 1:]


def check(session, path):
    timelines = build_timelines(read_flow(session.result))
    assert timelines
    for timeline in timelines:
        times, sizes = by_torch(session, path, timeline.device)
        # torch divides floats, and exports the initial state at the time of the first change
        own_times = np.array([int(int(time) / 1000) for time in timeline.time])
        rows = np.searchsorted(own_times, times, side="right")
        rows[: int(times[0] == times[1])] = 0  # if there is an initial state
        levels = timeline.usage[rows]
        assert (levels == sizes).all(), np.argwhere(levels != sizes)[:5]
        assert sizes.sum(axis=1).max() <= timeline.peak[1], "torch's resolution of a microsecond can hide a peak"
    return timelines


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_category_at_every_instant(name, tmp_path):
    torch.manual_seed(1)
    timelines = check(run_session(PROGRAMS[name]()), tmp_path / "theirs.json")
    assert timelines[-1].device == "cpu"
    assert (timelines[-1].usage >= 0).all()


def test_documentation_example(tmp_path):
    model = residual_network(8, (1, 2, 1))
    timeline = check(run_session(example(steps=1, model=model)), tmp_path / "theirs.json")[0]
    row, peak = timeline.peak
    levels = dict(zip(CATEGORIES, timeline.usage[row].tolist(), strict=True))
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    # oneDNN may convert a weight to another layout, which PyTorch also counts as a parameter
    assert parameters <= levels["parameter"] < parameters * 1.01
    assert levels["optimizer state"] == parameters
    assert peak == sum(levels.values())
    assert all((timeline.usage[:, index] > 0).any() for index, name in enumerate(CATEGORIES) if name != "temporary")


class UnknownEvent:
    start_time_ns = 0

    def __init__(self, children):
        self.children = children

    @property
    def typed(self):
        raise TypeError("Unable to convert")


def test_event_of_unknown_type():
    session = run_session(PROGRAMS["adam"]())
    full_timeline = build_timelines(read_flow(session.result))[0]

    class Result:
        @staticmethod
        def experimental_event_tree():
            return [UnknownEvent([]), UnknownEvent(session.result.experimental_event_tree())]

    assert (build_timelines(read_flow(Result))[0].usage == full_timeline.usage).all()


def test_total_is_the_same_without_operators(tmp_path):
    session = run_session(PROGRAMS["adam"]())
    without_operators = build_timelines(read_allocations(session.result))
    full_timeline = build_timelines(read_flow(session.result))
    (own_times,), (full,) = without_operators, full_timeline
    assert not own_times.usage[:, :UNKNOWN].any()
    assert full.usage[:, :UNKNOWN].any()
    # apart from memory that was allocated before and stays allocated, the totals are equal
    created = own_times.total - own_times.total[0]
    assert created.max() == (full.total - full.total[0]).max()
    assert created[-1] == full.total[-1] - full.total[0]
