"""Predictions of programs whose sizes are known functions of the size of the step."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import MIB
from ipygpumem.features.fit.advice.observations import StepObservations
from ipygpumem.snapshot.replay.run import run
from ipygpumem.snapshot.replay.verification import cached_verification
from ipygpumem.snapshot.scaling import matching
from ipygpumem.snapshot.scaling.edits import StepEdit
from ipygpumem.snapshot.scaling.results import PredictionFailedError
from ipygpumem.snapshot.scaling.run_selection import releases_once
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor
from ipygpumem.snapshot.scaling.step_requests import CreatedBlocks, InitialState
from snapshot.scaling.recorder import BACKWARD, OPTIMIZER, Recorder, line


def state_before(step):
    return InitialState.at(step.snapshot, step.device, step.first)


requests = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 600, 3 * MIB, 11 * MIB]),
        st.sampled_from([0, 4, 1000, MIB // 3, 2 * MIB]),
        st.integers(0, 8),
        st.sampled_from([BACKWARD, line(3), line(4)]),
        st.sampled_from([0, 0, 0, 7]),
    ),
    min_size=1,
    max_size=14,
)
"""For each request: constant size, size per unit, number of requests before its free, call stack and stream."""


def program(items):
    def step(recorder, size):
        live = []
        for number, (constant, per_unit, lifetime, frames, stream) in enumerate(items):
            for entry in [entry for entry in live if entry[0] <= number]:
                live.remove(entry)
                recorder.free(entry[1])
            live.append((number + 1 + lifetime, recorder.alloc(constant + per_unit * size, frames, stream)))
        for _, address in live[len(live) // 3 :]:
            recorder.free(address)

    return step


@settings(max_examples=25)
@given(items=requests, target=st.integers(1, 40))
def test_random_steps_are_predicted_exactly(items, target):
    recorder = Recorder()
    recorder.run(program(items), 2, 5, target)
    *small, (_, last) = recorder.steps()
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    prediction = scaled.predict(target)
    assert (prediction.requested, prediction.allocated, prediction.reserved) == recorder.peaks[-1]
    assert sum(group.bytes for group in scaled.breakdown(target)) == prediction.requested
    (piece,) = (piece for piece in scaled.pieces(1, 40) if piece.first <= target <= piece.last)
    assert prediction.requested == pytest.approx(piece.bytes + piece.bytes_per_unit * target, abs=2)
    assert prediction.left == sum(size for size, _ in recorder.live.values()) - last.start


def train(recorder, size):
    activations = [recorder.alloc(size * MIB, line(10 + layer)) for layer in range(3)]
    gradients = []
    for address in reversed(activations):
        workspace = recorder.alloc(size * MIB // 2, BACKWARD)
        gradients.append(recorder.alloc(5 * MIB, BACKWARD))
        recorder.free(workspace)
        recorder.free(address)
    temporaries = [recorder.alloc(15 * MIB, OPTIMIZER) for _ in range(2)]
    for address in temporaries + gradients:
        recorder.free(address)


def weights(recorder, _):
    recorder.alloc(100 * MIB, line(1))


def test_pieces_and_breakdown():
    steps = Recorder().run(weights, 1).run(train, 2, 3).steps()
    scaled = RecordedStepPredictor.from_recordings(steps[1:])
    small, large = scaled.pieces(1, 100)
    assert (small.first, small.last, small.bytes, small.bytes_per_unit) == (1, 11, 145 * MIB, 0)
    assert (small.phase, small.line) == ("optimizer", "user/train.py:99 step")
    assert (large.first, large.last, large.bytes, large.bytes_per_unit) == (12, 100, 105 * MIB, 3.5 * MIB)
    assert (large.phase, large.line) == ("backward", "user/train.py:12 forward")
    groups = {group.label: group.bytes // MIB for group in scaled.breakdown(20)}
    lines = {f"user/train.py:{10 + layer} forward": 20 for layer in range(3)}
    backward = "(no Python frames on the thread, as in a backward pass)"
    assert groups == {"user/train.py:1 forward": 100, **lines, backward: 15}
    assert [group.label for group in scaled.breakdown(20, "stream")] == ["default stream"]


def test_largest_size_and_outcomes():
    steps = Recorder().run(weights, 1).run(train, 2, 3).steps()
    scaled = RecordedStepPredictor.from_recordings(steps[1:], "linear")
    largest = scaled.largest("1 GiB")
    assert scaled.predict(largest, "1 GiB").outcome == "fits"
    assert scaled.predict(largest + 1, "1 GiB").outcome != "fits"
    with_release = scaled.largest("1 GiB", after_release=True)
    assert with_release >= largest > scaled.largest("1 GiB", 0.1)
    failing = scaled.predict(with_release + 1, "1 GiB")
    assert failing.outcome == "does not fit"
    assert (failing.missing > 0, failing.reserved > 1 << 30) == (True, True)
    assert scaled.largest("100 MiB") is None
    assert scaled.largest("1 GiB", last=7) == 7
    assert scaled.predict(50).allocated > scaled.predict(50, settings="expandable_segments:True").allocated
    assert run(scaled.events(largest), scaled.events(largest).settings).allocator.peak <= 1 << 30


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("generations", [1, 2])
def test_tensors_that_are_kept_until_the_next_run(expandable, generations):
    def make():
        kept = []

        def step(recorder, size):
            activations = [recorder.alloc(size * MIB, line(layer)) for layer in (1, 2)]
            kept.append(recorder.alloc(2 * size * MIB, line(3)))
            if len(kept) > generations:
                recorder.free(kept.pop(0))
            for address in activations:
                recorder.free(address)

        return step

    recorder = Recorder(expandable=expandable).run(weights, 1).run(make(), 2, 4, 2, 8, 40)
    recorder.empty_cache()
    steps = recorder.steps()[1:]
    state = InitialState.at(steps[0][1].snapshot, 0, len(recorder.trace) - 1)
    scaled = RecordedStepPredictor.from_recordings(steps, state=state, runs=[((size,), step) for size, step in steps])
    assert scaled.predict(8).allocated == (100 + sum((2 * 40, 2 * 8)[:generations]) + 4 * 8) * MIB
    repeated = scaled.repeated()
    for size in (4, 60):
        actual = Recorder(expandable=expandable).run(weights, 1).run(make(), size, size, size, size)
        prediction = repeated.predict(size)
        assert (prediction.requested, prediction.allocated, prediction.reserved) == actual.peaks[-1]
        assert prediction.left == 0
        assert sum(group.bytes for group in repeated.breakdown(size)) == prediction.requested
    assert scaled.events(1).settings.expandable == expandable
    edit = StepEdit(repeated)
    edit.remove(np.unique(repeated.step_requests.retained.sources[repeated.step_requests.resized]))
    assert edit.apply().predict(60).requested == (100 + 2 * 60) * MIB  # nor has a previous run kept anything
    times, amounts = edit.changes((60,))
    assert amounts[times < edit.time(0)].sum() == -generations * 2 * 60 * MIB
    assert repeated.pieces(1, 100)[-1].bytes_per_unit == (2 + 2 * generations + 2) * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_memory_that_is_released_between_the_runs(expandable):
    """Outputs are kept, with unmapped memory at lower addresses of the same segment, and each run has its own file."""

    def make():
        kept = []

        def step(recorder, size):
            activations = [recorder.alloc(size * MIB, line(layer)) for layer in (1, 2)]
            kept.append(recorder.alloc(2 * size * MIB, line(3)))
            activations.append(recorder.alloc(size * MIB // 2, line(4)))
            for address in [*activations, *(kept.pop(0) for _ in kept[2:])]:
                recorder.free(address)

        return step

    recorder, step = Recorder(expandable=expandable), make()
    steps = [recorder.record(step, size) for size in (25, 69, 25, 73, 117)]
    assert not any(cached_verification(step.snapshot, 0).difference for _, step in steps)
    last = steps[-1][1]
    state = InitialState.at(last.snapshot, 0, len(last.timeline.trace) - 1)
    runs = [((size,), step) for size, step in steps]
    repeated = RecordedStepPredictor.from_recordings(steps[-3:], state=state, runs=runs).repeated()
    for size in (40, 600):
        actual = Recorder(expandable=expandable).run(make(), *[size] * 6)
        prediction = repeated.predict(size)
        assert (prediction.requested, prediction.allocated) == actual.peaks[-1][:2]
        assert prediction.reserved == pytest.approx(actual.peaks[-1][2], rel=0.03)


def test_runs_are_matched_once(monkeypatch):
    """Runs with different numbers of allocations take long to compare, and each prediction compares all of them."""
    calls, match = [], matching.match
    monkeypatch.setattr(matching, "match", lambda *arguments: calls.append(1) or match(*arguments))
    steps = Recorder().run(with_extra(lambda recorder, size: [MIB] * size), 2, 3, 4).steps()
    reasons = [RecordedStepPredictor.from_recordings(steps).reasons for _ in range(3)]
    assert reasons[0] and reasons.count(reasons[0]) == 3
    assert len(calls) == len(steps)


def training(temporaries=2):
    """Return a step whose first update creates state of the optimizer, and a list for the addresses of this state."""
    state, gradients = [], []

    def step(recorder, size):
        while gradients:
            recorder.free(gradients.pop())
        activations = [recorder.alloc(size * MIB * (layer + 3), line(10 + layer)) for layer in range(4)]
        for layer in reversed(range(4)):
            gradients.append(recorder.alloc((5 + layer) * MIB, BACKWARD))
            recorder.free(activations[layer])
        if not state:
            state.extend(recorder.alloc((5 + layer) * MIB, OPTIMIZER) for layer in range(4) for _ in range(2))
        for address in [recorder.alloc(5 * MIB, OPTIMIZER) for _ in range(temporaries)]:
            recorder.free(address)

    return step, state


def predicted_training():
    step, state = training()
    recorder = Recorder().run(weights, 1)
    state.extend(recorder.alloc((5 + layer) * MIB, OPTIMIZER) for layer in range(4) for _ in range(2))
    recorder.run(step, 2, 2, 4, 2, 8)
    recorder.empty_cache()
    steps = recorder.steps()[1:]
    initial = InitialState.at(steps[0][1].snapshot, 0, len(recorder.trace) - 1)
    scaled = RecordedStepPredictor.from_recordings(
        steps[1:], state=initial, runs=[((size,), run) for size, run in steps]
    )
    requests = scaled.step_requests
    update = next(event for event in range(len(requests.operations)) if requests.position(event)[0] == "optimizer")
    addresses = initial.state.blocks["address"].tolist()
    blocks = np.asarray([addresses.index(address) for address in state])
    return scaled.repeated(CreatedBlocks(blocks, np.full(len(blocks), update), np.full(len(blocks), -1)))


@pytest.mark.parametrize(("size", "runs"), [(3, 2), (5, 3), (33, 2)])
def test_training_before_the_first_step(size, runs):
    actual = Recorder().run(weights, 1).run(training()[0], *[size] * 5)
    reserved = list(itertools.accumulate((reserved for _, _, reserved in actual.peaks[1:]), max))
    assert reserved[runs - 2] < reserved[runs - 1] == reserved[-1]
    scaled = predicted_training()
    prediction = scaled.predict(size)
    requested, allocated, _ = map(max, zip(*actual.peaks, strict=True))
    assert (prediction.requested, prediction.allocated, prediction.reserved) == (requested, allocated, reserved[-1])
    assert scaled.predict(size, reserved[-1]).outcome == "fits"
    assert scaled.predict(size, reserved[-1] - 2 * MIB).outcome != "fits"
    assert scaled.largest(reserved[-1], last=size) == size
    assert scaled.largest(reserved[-1] - 2 * MIB, last=size) != size


def searching():
    """Return a step whose first run at a size releases the cache after trying an algorithm with a large workspace."""
    sizes = set()

    def step(recorder, size):
        activations = []
        for layer in range(6):
            activations.append(recorder.alloc(size * MIB * (layer + 2), line(10 + layer)))
            recorder.free(recorder.alloc(size * MIB * (7 if layer % 2 else 3), line(20 + layer)))
            if size not in sizes:
                recorder.empty_cache()
        sizes.add(size)
        for address in reversed(activations):
            recorder.free(recorder.alloc(size * MIB * 5, BACKWARD))
            recorder.free(address)

    return step


def test_releases_in_the_first_run_at_a_size():
    step, recorder = searching(), Recorder().run(weights, 1)
    for size in (2, 2, 4, 2, 8):
        recorder.run(step, size)
        recorder.empty_cache()
    steps = recorder.steps()[2:]
    state = InitialState.at(steps[0][1].snapshot, 0, len(recorder.trace) - 1)
    runs = [((size,), run) for size, run in steps]
    scaled = RecordedStepPredictor.from_recordings(steps, state=state, runs=runs)
    assert releases_once(runs)
    assert not releases_once(runs[1:])  # the first run at the first size
    assert not releases_once([runs[0], runs[2]])  # no run
    for size in (5, 16, 40):
        actual = Recorder().run(weights, 1).run(searching(), *[size] * 5)
        reserved = [reserved for _, _, reserved in actual.peaks[1:]]
        assert max(reserved) > reserved[0]
        assert scaled.repeated(releases_once=True).predict(size).reserved == max(reserved)
        assert scaled.repeated().predict(size).reserved < max(reserved)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_bounds_of_growth(power):
    def step(recorder, size):
        other = [recorder.alloc(MIB, line(9))] if size == 2 else []
        tensors = [recorder.alloc(3 * size**power, line(10)), recorder.alloc(7 * MIB, line(11))]
        recorder.free(recorder.alloc(1000 * size**power, line(12)))  # a workspace
        for address in (*tensors, *other):
            recorder.free(address)

    runs = [((size,), run) for size, run in Recorder().run(step, 2, 4, 8).steps()]
    limit, size = 1 << 50, 1024
    actual = Recorder().run(step, size).peaks[-1][1]
    alone = RecordedStepPredictor.from_recordings(runs[1:])
    assert alone.bound(size, limit) >= actual
    if power == 1:
        assert alone.bound(size, limit) > alone.predict(size).allocated
    scaled = RecordedStepPredictor.from_recordings(runs[1:], runs=runs)
    assert scaled.bound(size, limit) >= actual
    assert (scaled.bound(size, limit) == scaled.predict(size).allocated == actual) == (power == 1)


def accumulating(generations):
    """Return a step that adds gradients to those of earlier runs and keeps its output, and the gradients' addresses."""
    kept, gradients = [], []

    def step(recorder, size):
        nbytes, new = size * MIB // 2, []
        layers = [[recorder.alloc(nbytes, line(layer)) for _ in range(2)] for layer in range(6)]
        output = layers[-1].pop()
        gradient = recorder.alloc(nbytes, BACKWARD)
        for activations in reversed(layers):
            previous, gradient = gradient, recorder.alloc(nbytes, BACKWARD)
            for address in (previous, *activations[1:]):
                recorder.free(address)
            new.append(recorder.alloc(4 * MIB, BACKWARD))
            recorder.free(activations[0])
            if gradients:
                recorder.free(new[-1])
        recorder.free(gradient)
        gradients.extend([] if gradients else new)
        kept.append(output)
        if len(kept) > generations:
            recorder.free(kept.pop(0))

    return step, gradients


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("generations", [1, 2])
def test_gradients_to_which_later_runs_add(expandable, generations):
    step, gradients = accumulating(generations)
    recorder = Recorder(expandable=expandable).run(weights, 1).run(step, 2, 2, 4, 2, 8)
    recorder.empty_cache()
    steps = recorder.steps()[2:]
    state = InitialState.at(steps[0][1].snapshot, 0, len(recorder.trace) - 1)
    scaled = RecordedStepPredictor.from_recordings(steps, state=state, runs=[((size,), run) for size, run in steps])
    addresses = state.state.blocks["address"].tolist()
    observations = StepObservations(gradients=[addresses.index(address) for address in gradients])
    repeated = scaled.repeated(observations.created_blocks(scaled))
    for size in (40, 160):
        actual = Recorder(expandable=expandable).run(weights, 1).run(accumulating(generations)[0], *[size] * 5)
        prediction = repeated.predict(size)
        assert (prediction.requested, prediction.allocated, prediction.reserved) == actual.peaks[-1]
        assert prediction.reserved > 1.1 * actual.peaks[1][2]
    assert prediction.reserved > scaled.repeated().predict(size).reserved
    edit = StepEdit(repeated)
    edit.block_factor[observations.gradients] = 0
    assert edit.apply().predict(160).requested == prediction.requested - 6 * 4 * MIB


def test_changed_training_before_the_first_step():
    scaled, (step, _) = predicted_training(), training(temporaries=5)
    edit, requests = StepEdit(scaled), scaled.step_requests
    temporary = np.flatnonzero([phase == "optimizer" for phase in requests.step.phases])[[0, 0, 0]]
    edit.insert(int(requests.created.boundaries[0]), temporary, np.arange(3), 3 + np.arange(3))
    actual = Recorder().run(weights, 1).run(step, *[33] * 5)
    prediction = edit.apply().predict(33)
    requested, allocated, reserved = map(max, zip(*actual.peaks, strict=True))
    assert (prediction.requested, prediction.allocated, prediction.reserved) == (requested, allocated, reserved)


def test_growing_list():
    def step(recorder, size):
        activation = recorder.alloc(30 * size * MIB, line(1))
        recorder.alloc(3 * size * MIB, line(2))
        recorder.free(activation)

    recorder = Recorder().run(weights, 1).run(step, 2, 4, 8)
    recorder.empty_cache()
    steps = recorder.steps()[1:]
    state = InitialState.at(steps[0][1].snapshot, 0, len(recorder.trace) - 1)
    scaled = RecordedStepPredictor.from_recordings(steps, state=state, runs=[((size,), run) for size, run in steps])
    prediction = scaled.repeated().predict(20)
    assert prediction.allocated == (100 + 3 * (2 + 4 + 8) + 33 * 20) * MIB == scaled.predict(20).allocated
    assert prediction.left == 3 * 20 * MIB


def attention(recorder, size):
    batch, length = size if isinstance(size, tuple) else (1, size)
    kept = [recorder.alloc(batch * length * length * 4, line(5)) for _ in range(2)]
    kept.append(recorder.alloc(batch * length * 1000 + 3000, line(6)))
    for address in kept:
        recorder.free(address)
    recorder.free(recorder.alloc(MIB, OPTIMIZER))  # the peak at small sizes


def test_quadratic_axis():
    recorder = Recorder().run(attention, 16, 48, 96, 120, 512)
    steps = recorder.steps()
    for scaled in (
        RecordedStepPredictor.from_recordings(steps[:4]),
        RecordedStepPredictor.from_recordings(steps[:3], "quadratic"),
    ):
        assert (scaled.predict(512).requested, scaled.reasons) == (recorder.peaks[-1][0], ())
        (piece,) = scaled.pieces(400, 600)
        assert piece.bytes is None
    assert RecordedStepPredictor.from_recordings(steps[:4]).model.nodes == ((16, 48, 120),)
    wrong = RecordedStepPredictor.from_recordings(steps[:3])
    assert "use larger sizes or, if the size is a length, at least four sizes" in wrong.reasons[0]
    deviation = wrong.deviation(512, steps[4][1])
    assert deviation.allocations[0].line == "user/train.py:5 forward"
    assert (deviation.allocations[0].recorded, deviation.peak_error < 0) == (512 * 512 * 4, True)


def test_two_axes():
    sizes = [(batch, length) for batch in (2, 3) for length in (16, 32, 64)]
    recorder = Recorder().run(attention, *sizes, (4, 48), (7, 300))
    *small, (_, last) = recorder.steps()
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    prediction = scaled.predict((7, 300))
    assert (prediction.requested, prediction.allocated, prediction.reserved) == recorder.peaks[-1]
    by_batch, by_length = scaled.at(1, 300), scaled.at(0, 7)
    assert by_batch.predict(7).requested == by_length.predict(300).requested == prediction.requested
    assert by_batch.pieces()[-1].bytes_per_unit == 2 * 300 * 300 * 4 + 300 * 1000
    largest = by_batch.largest("64 MiB")
    assert by_batch.predict(largest, "64 MiB").outcome == "fits"
    with pytest.raises(OptionError, match="axis 2 cannot be fixed"):
        scaled.at(2, 1)


def test_memory_of_the_previous_run_is_freed():
    kept = []

    def step(recorder, size):
        activation = recorder.alloc(size * MIB, line(5))
        while kept:
            recorder.free(kept.pop())
        kept.extend(recorder.alloc(nbytes * MIB, BACKWARD) for nbytes in (8, 9))
        kept.append(recorder.alloc(size * 300_000, line(6)))
        recorder.free(activation)

    recorder = Recorder()
    recorder.alloc(9 * MIB, line(1))
    *small, (_, last) = recorder.run(step, 1, 2, 4, 40).steps()
    scaled = RecordedStepPredictor.from_recordings(small[1:], state=state_before(last))
    prediction = scaled.predict(40)
    assert (prediction.requested, prediction.allocated, prediction.reserved) == recorder.peaks[-1]
    assert {group.label: group.bytes for group in scaled.breakdown(40)}["user/train.py:1 forward"] == 9 * MIB
    assert prediction.left == (40 - 4) * 300_000


def test_emptied_cache_is_part_of_the_step():
    def step(recorder, size):
        for _ in range(2):
            recorder.free(recorder.alloc(size * 20 * MIB, line(5)))
            recorder.empty_cache()
            recorder.free(recorder.alloc(size * 21 * MIB, line(6)))

    recorder = Recorder().run(step, 1, 2, 5)
    *small, (_, last) = recorder.steps()
    prediction = RecordedStepPredictor.from_recordings(small, state=state_before(last)).predict(5)
    assert prediction.reserved == recorder.peaks[-1][2] == 142 * MIB


def with_extra(extra):
    def step(recorder, size):
        addresses = [recorder.alloc(size * MIB, line(5)) for _ in range(4)]
        addresses += [recorder.alloc(nbytes, line(7)) for nbytes in extra(recorder, size)]
        addresses += [recorder.alloc(size * MIB // 4, BACKWARD) for _ in range(4)]
        for address in addresses:
            recorder.free(address)
        recorder.free(recorder.alloc((12 if size == 3 else 1) * MIB, line(9)))  # not at the peak

    return step


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            lambda recorder, size: [2 * MIB] * len(recorder.windows),
            r"^Two recordings of size 2 differ by 6\.0 MiB at the peak, for example in .*:7 forward: make",
        ),
        (
            lambda recorder, size: [MIB] * (size == 4),
            r"Not all recorded sizes .* 1 allocation \([\d.]+% of the peak\) .*:7 forward at size 4\. Use",
        ),
        (
            lambda recorder, size: [MIB] * (size == 3),
            r"Not all recorded sizes .* 1 allocation \([\d.]+% of the peak\) .*:7 forward at size 3\. Use",
        ),
        (
            lambda recorder, size: [{2: 1, 3: 9, 4: 1}[size] * MIB],
            r"^The peak at size 3 is 24\.0 MiB, but the prediction is 16\.0 MiB, .* user/train\.py:7 forward: use",
        ),
        (
            lambda recorder, size: [(20 - 4 * size) * MIB],
            r"^At larger sizes, 1 allocation at the peak would shrink by 4\.0 MiB in total, .*:7 forward: use",
        ),
    ],
    ids=["not repeatable", "only at largest size", "only at smaller size", "irregular", "shrinking"],
)
def test_reasons(extra, message):
    steps = Recorder().run(with_extra(extra), 2, 3, 4, 2).steps()
    reasons = RecordedStepPredictor.from_recordings(steps).reasons
    assert [reason for reason in reasons if re.search(message, reason)], reasons


@pytest.mark.parametrize(("nbytes", "sizes", "count"), [(50_000, {4}, 1), (10_000, {4}, 0), (50_000, {2, 3, 4}, 0)])
def test_allocation_at_only_the_largest_size(nbytes, sizes, count):
    step = with_extra(lambda _, size: [nbytes] * (size in sizes))
    scaled = RecordedStepPredictor.from_recordings(Recorder().run(step, 2, 3, 4, 2).steps())
    assert (scaled.reasons, len(scaled.notes)) == ((), count)
    pattern = r"^1 allocation at .* \(4\), .* user/train\.py:7 forward, did not occur .* up to 0\.[23]% of the peak"
    assert all(re.search(pattern, note) for note in scaled.notes), scaled.notes


def test_growth_faster_than_a_square_is_not_assumed():
    step = with_extra(lambda _, size: [(size - 19) ** 2 * 4 * MIB])
    scaled = RecordedStepPredictor.from_recordings(Recorder().run(step, 20, 21, 22, 23).steps())
    assert "for example in user/train.py:7 forward: use larger sizes" in scaled.reasons[0]


def test_the_line_in_a_reason_has_the_largest_sum():
    def step(recorder, size):
        recorder.alloc(100 * MIB, line(5))
        recorder.alloc((40 - 3 * size) * MIB, line(6))
        for _ in range(3):
            recorder.alloc((40 - 2 * size) * MIB, line(7))

    reasons = RecordedStepPredictor.from_recordings(Recorder().run(step, 2, 3, 4).steps()).reasons
    (shrinking,) = (reason for reason in reasons if reason.startswith("At larger sizes, 4 allocations"))
    assert "mainly in user/train.py:7 forward: use larger sizes" in shrinking


def test_irregular_workspace_below_the_peak_is_no_reason():
    scaled = RecordedStepPredictor.from_recordings(Recorder().run(with_extra(lambda *_: ()), 2, 3, 4).steps())
    assert (scaled.reasons, scaled.deviations[1].error) == ((), 0)


def test_allocations_that_differ_are_matched_by_their_growth():
    def step(recorder, size):
        kept = [recorder.alloc(size * 3 * MIB, line(layer)) for layer in range(6)]
        for layer in reversed(range(6)):
            gradient = recorder.alloc(size * 1000 * (layer + 1) + 300, BACKWARD)
            for factor in range(2 if size >= 4 else 0):
                recorder.free(recorder.alloc(size * 7001 * (factor + 1), BACKWARD))
            parameter = recorder.alloc(777 * (layer + 1), BACKWARD)
            recorder.free(gradient)
            recorder.free(kept[layer])
            recorder.free(parameter)

    recorder = Recorder().run(step, 2, 3, 6, 30)
    *small, (_, last) = recorder.steps()
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    assert scaled.reasons == ()
    assert [sum(item.count for item in deviation.unmatched) for deviation in scaled.deviations] == [12, 12, 0]
    assert scaled.predict(30).requested == recorder.peaks[-1][0]
    assert scaled.deviation(30, last).unmatched == ()


def test_buffers_of_reductions_are_not_matched_with_gradients():
    def step(recorder, size):
        kept = [recorder.alloc(size * 20 * MIB, line(layer)) for layer in range(6)]
        gradients = []
        for address in reversed(kept):
            if size >= 8:
                buffer = recorder.alloc(size * 3 * MIB // 2, BACKWARD)
                recorder.free(recorder.alloc(size * 16, BACKWARD))
                recorder.free(buffer)
            gradients.append(recorder.alloc(3 * MIB, BACKWARD))
            recorder.free(address)
        for address in (recorder.alloc(400 * MIB, line(8)), *gradients):
            recorder.free(address)

    recorder = Recorder().run(step, 2, 4, 8, 30)
    *small, (_, last) = recorder.steps()
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    assert scaled.reasons == ()
    assert [deviation.error for deviation in scaled.deviations] == [0, 0, 0]
    assert scaled.predict(30).requested == recorder.peaks[-1][0]


def with_workspace(workspaces):
    """Return a step with a workspace at the peak, which exists only at sizes for which its size in MiB is given."""

    def step(recorder, size):
        kept = [recorder.alloc(size * MIB, line(layer)) for layer in range(8)]
        gradient = recorder.alloc(size * 1000, BACKWARD)
        if size in workspaces:
            recorder.free(recorder.alloc(int(workspaces[size] * MIB), BACKWARD))
        weights = recorder.alloc(MIB, BACKWARD)
        for address in (*kept, gradient, weights):
            recorder.free(address)

    return step


@pytest.mark.parametrize(
    "workspaces",
    [
        {2: 40, 8: 24, 16: 32, 24: 48, 96: 192},  # proportional from 16 on
        {2: 40, 4: 8, 8: 24, 16: 12, 24: 12, 96: 12},  # constant from 16 on
        {4: 60, 8: 24, 12: 22, 16: 26, 24: 34, 96: 106},  # 10 MiB plus 1 MiB per unit from 12 on
        {2: 40, 8: 24, 16: 17, 24: 25, 96: 97},  # 1 MiB plus 1 MiB per unit at two sizes
    ],
)
def test_workspaces_of_algorithms_that_depend_on_the_size(workspaces):
    recorder = Recorder().run(with_workspace(workspaces), 2, 4, 8, 12, 16, 24, 96)
    *small, (_, last) = recorder.steps()
    small = [run for run in small if run[0] in workspaces or run[0] < 8]
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    assert scaled.reasons == ()
    assert (scaled.predict(96).requested, scaled.deviation(96, last).error) == (recorder.peaks[-1][0], 0)


def image_step(recorder, size, workspaces=()):
    """Allocate tensors and workspaces like a convolution; ``workspaces`` contains exceptional sizes in bytes."""
    kept = [recorder.alloc(1000 * size**2, line(layer)) for layer in range(4)]
    for layer in range(4):
        nbytes = dict(workspaces).get(size, 2000 * size**2 + 300_000)
        recorder.free(recorder.alloc(nbytes, BACKWARD))
        kept.append(recorder.alloc(4000 * (layer + 1), BACKWARD))
    for address in kept:
        recorder.free(address)


def test_workspaces_grow_with_the_number_of_pixels():
    """Those at small sizes belong to other algorithms."""
    other = {64: 40_000_000, 128: 100_000}
    recorder = Recorder().run(lambda *args: image_step(*args, other), 64, 128, 256, 320, 512, 2048)
    *small, (_, last) = recorder.steps()
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    assert scaled.reasons == ()
    assert scaled.predict(2048).requested == recorder.peaks[-1][0]
    largest = scaled.largest("100 GiB")
    assert 0.92 * (100 << 30) < scaled.predict(largest).reserved <= 0.94 * (100 << 30)


def test_line_through_two_sizes_of_a_quadratic_function():
    scaled = RecordedStepPredictor.from_recordings(Recorder().run(image_step, 320, 512).steps())
    (reason,) = scaled.reasons
    assert re.search(r"are not linear functions of the size: use smaller sizes", reason)


def test_workspaces_are_linear_if_the_tensors_are():
    sizes = {2: 98.81, 4: 196.34, 8: 388.34, 65: 3124.34, 260: 12484.34}
    recorder = Recorder().run(with_workspace(sizes), *sizes)
    *small, (_, last) = recorder.steps()
    scaled = RecordedStepPredictor.from_recordings(small, state=state_before(last))
    assert (scaled.reasons, scaled.model.nodes) == ((), ((2, 65),))
    assert scaled.predict(260).requested == pytest.approx(recorder.peaks[-1][0], rel=0.001)


def test_irregular_workspaces():
    sizes = (2, 4, 8, 16)
    irregular = Recorder().run(with_workspace({2: 4, 4: 8, 8: 40, 16: 16}), *sizes).steps()
    (reason,) = RecordedStepPredictor.from_recordings(irregular).reasons
    assert re.search(r"irregular, mainly in \(no Python .* between 576\.1 MiB and 832\.1 MiB. Use larger", reason)
    slightly = Recorder().run(with_workspace({2: 2, 4: 4, 8: 8.5, 16: 16}), *sizes).steps()
    scaled = RecordedStepPredictor.from_recordings(slightly)
    assert scaled.reasons == ()
    assert 9 * MIB * scaled.largest("100 GiB") < 0.995 * (100 << 30)  # at the upper bound of the workspace


def test_state_in_another_snapshot():
    first, second = Recorder().run(train, 2, 4), Recorder()
    for number in range(40):
        second.alloc(MIB, line(100 + number))
    second.run(train, 2)
    state = state_before(second.steps()[0][1])
    scaled = RecordedStepPredictor.from_recordings(first.steps(), state=state)
    assert scaled.predict(2).requested == second.peaks[-1][0]


def test_private_pools_are_refused():
    def graph(recorder, size):
        recorder.alloc(size * MIB // 2, line(5), pool_id=(1, 0))
        recorder.alloc(size * MIB // 2, line(6), pool_id=(1, 0))

    steps = Recorder().run(graph, 2, 4).steps()
    with pytest.raises(
        PredictionFailedError,
        match=r"^the step allocates 4\.0 MiB in private pools .*, first in user/train\.py:5 forward, which",
    ):
        RecordedStepPredictor.from_recordings(steps)


def test_step_that_ran_out_of_memory_is_refused():
    def failing(recorder, size):
        train(recorder, size)
        recorder.log("oom", 0, size * MIB, device_free=0)

    with pytest.raises(PredictionFailedError, match="ran out of memory: record it at a smaller size"):
        RecordedStepPredictor.from_recordings(Recorder().run(failing, 2, 4).steps())


@pytest.mark.parametrize(
    ("sizes", "axis", "message"),
    [
        ([2], "linear", "2 different sizes are required to predict other sizes, but the recorded sizes are 2"),
        ([2, 3], "quadratic", "3 different sizes are required"),
        ([2, 3], "cubic", "for each axis, but got 'cubic'"),
        (
            [(2, 16), (3, 32)],
            "linear",
            r"in all combinations to predict other sizes, but the recorded sizes are \(2, 16\), \(3, 32\)",
        ),
        ([2, (3, 32)], "linear", "all sizes must have the same number of axes"),
        ([2, 0], "linear", "the size of a step must consist of positive integers, but got 0"),
        ([], "linear", "recordings at several sizes are required"),
    ],
)
def test_invalid_arguments(sizes, axis, message):
    (_, recording) = Recorder().run(train, 2).steps()[0]
    with pytest.raises(OptionError, match=message):
        RecordedStepPredictor.from_recordings([(size, recording) for size in sizes], axis)


def test_invalid_sizes():
    scaled = RecordedStepPredictor.from_recordings(Recorder().run(train, 2, 4).steps())
    with pytest.raises(OptionError, match=r"the size \(2, 3\) must have 1 value"):
        scaled.predict((2, 3))
    with pytest.raises(OptionError, match="the step needs 65,536 GiB or more"):
        scaled.predict(1 << 40)
    assert scaled.largest("1 TiB", last=1 << 60) < 1 << 20
