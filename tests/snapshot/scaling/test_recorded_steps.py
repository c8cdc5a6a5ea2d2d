"""Predictions of steps that were recorded on an H200: a GPT model, with the number of tokens as size."""

import numpy as np
import pytest

from ipygpumem.core.units import MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.scaling.scaled_recording import ScaledRecording
from ipygpumem.snapshot.scaling.sequence import StartState
from ipygpumem.snapshot.scaling.step import StepRecording
from snapshot import files

TOKEN = 8
"""Size in bytes of the first allocation of a step, per token."""


def steps(name):
    """Return the steps of a recording, by number of tokens."""
    snapshot = Snapshot.load(files.path(name))
    times = snapshot.timeline(0).trace.time
    ends = [region.end_us for region in snapshot.annotations() if region.name.startswith("Optimizer.zero_grad")]
    result, first = {}, -1
    for end in ends:
        last = int(np.searchsorted(times, end, side="right")) - 1
        step = StepRecording(snapshot, 0, first, last)
        result.setdefault(int(step.sizes[0]) // TOKEN, []).append(step)
        first = last
    return result


@pytest.fixture(scope="module")
def small():
    return {tokens: found[0] for tokens, found in steps("gpt_two_sizes").items()}


@pytest.fixture(scope="module")
def target():
    return steps("gpt_small")[2560][0]


@pytest.fixture(scope="module")
def scaled(small, target):
    return ScaledRecording.from_recordings(list(small.items()), state=StartState.at(target.snapshot, 0, target.first))


def test_peak_of_a_ten_times_larger_step(scaled, target):
    assert sorted(size for misfit in scaled.misfits for size in misfit.size) == [256, 384]
    prediction = scaled.predict(2560)
    replay = target.snapshot.replay()
    assert prediction.requested == target.peak == 1893068808
    assert prediction.allocated == replay.allocated_peak == 1909847040
    assert prediction.reserved == replay.reserved_peak == 1936 * MIB
    assert (prediction.phase, prediction.line) == ("backward", "project/train_gpt.py:21 step")
    assert scaled.misfit(2560, target).relative == 0
    assert scaled.reasons == ()


def test_other_sizes_of_a_long_recording():
    """At 1,024 tokens and more, the backward pass makes further allocations, which do not exist at the peak."""
    recorded = steps("gpt_100k")
    snapshot = recorded[256][0].snapshot
    replay = snapshot.replay()
    for pair in ((256, 384), (512, 768), (1024, 1152)):
        runs = [(tokens, recorded[tokens][0]) for tokens in pair]
        for tokens, (step, *_) in recorded.items():
            scaled = ScaledRecording.from_recordings(runs, state=StartState.at(snapshot, 0, step.first))
            prediction = scaled.predict(tokens)
            window = slice(step.first + 1, step.last + 2)
            misfit = scaled.misfit(tokens, step)
            assert (misfit.error, misfit.allocations) == (0, ())
            assert sum(item.count for item in misfit.unmatched) == (96 if (tokens < 1024) != (pair[1] < 1024) else 0)
            assert 0 <= prediction.requested - step.peak < 50_000  # the previous step's input and loss are not freed
            assert prediction.allocated == pytest.approx(replay.allocated.bytes[window].max(), rel=1e-4)
            assert prediction.reserved == replay.reserved.bytes[window].max()
