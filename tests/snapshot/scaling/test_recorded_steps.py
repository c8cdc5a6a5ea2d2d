"""Predictions of steps that were recorded on an H200."""

import numpy as np
import pytest

from ipygpumem.core.units import MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.scaling.edits import ModuleCall, StepEdit, checkpoint, peak_order
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor
from ipygpumem.snapshot.scaling.step_requests import CreatedBlocks, InitialState
from snapshot import files


def steps(name, unit=8):
    """Return the training steps of a recording by size.

    The size is that of the input, which a step allocates first. ``unit`` is its size in bytes for a step of size 1.
    """
    snapshot = Snapshot.load(files.path(name))
    trace = snapshot.timeline(0).trace
    regions = [region for region in snapshot.annotations() if region.name.startswith("Optimizer.zero_grad")]
    ends = [trace.time[-1] if region.end_us is None else region.end_us for region in regions]
    allocations = trace.events(Action.ALLOC)
    following = np.searchsorted(allocations, np.searchsorted(trace.time, ends, side="right"))
    last = np.append(allocations, len(trace))[following] - 1
    result, first = {}, -1
    for event in last.tolist():
        step = StepRecording(snapshot, 0, first, event)
        result.setdefault(int(step.sizes[0]) // unit, []).append(step)
        first = event
    return result


@pytest.fixture(scope="module")
def small():
    return {tokens: found[0] for tokens, found in steps("gpt_two_sizes").items()}


@pytest.fixture(scope="module")
def target():
    return steps("gpt_small")[2560][0]


@pytest.fixture(scope="module")
def scaled(small, target):
    return RecordedStepPredictor.from_recordings(
        list(small.items()), state=InitialState.at(target.snapshot, 0, target.first)
    )


def test_peak_of_a_ten_times_larger_step(scaled, target):
    assert sorted(size for deviation in scaled.deviations for size in deviation.size) == [256, 384]
    prediction = scaled.predict(2560)
    replay = target.snapshot.replay()
    assert prediction.requested == target.peak == 1893068808
    assert prediction.allocated == replay.allocated_peak == 1909847040
    assert prediction.reserved == replay.reserved_peak == 1936 * MIB
    assert (prediction.phase, prediction.line) == ("backward", "project/train_gpt.py:21 step")
    assert scaled.deviation(2560, target).peak_error == 0
    assert scaled.reasons == ()


def test_convolutions():
    """Training of a CNN, with 64 pixels as unit of the size. cuDNN selects other algorithms and workspaces by size."""
    recorded = {size: found[0] for size, found in steps("cnn_steps", 64 * 3 * 4).items()}
    assert sorted(recorded) == [2820, 6496, 9282, 19740, 22680, 27636, 37128]
    runs = [(size, recorded[size]) for size in (2820, 6496, 9282)]
    replay = recorded[2820].snapshot.replay()
    for size, step in recorded.items():
        scaled = RecordedStepPredictor.from_recordings(runs, state=InitialState.at(step.snapshot, 0, step.first))
        prediction = scaled.predict(size)
        window = slice(step.first + 1, step.last + 2)
        assert (scaled.reasons, prediction.requested) == ((), step.peak)
        assert prediction.allocated == pytest.approx(replay.allocated.bytes[window].max(), rel=1e-3)
        assert prediction.reserved == replay.reserved.bytes[window].max()


def test_reserved_memory_depends_on_addresses():
    """Training of ResNet-50. Free blocks of the same size are chosen by address, and cudaMalloc's addresses descend."""
    snapshot, middle = Snapshot.load(files.path("resnet_steps")), 2605
    runs = [(256, StepRecording(snapshot, 0, -1, middle)), (512, StepRecording(snapshot, 0, middle))]
    for size, step in runs:
        prediction = RecordedStepPredictor.from_recordings(
            runs, state=InitialState.at(snapshot, 0, step.first)
        ).predict(size)
        window = slice(step.first + 1, step.last + 2)
        assert prediction.reserved == snapshot.replay().reserved.bytes[window].max()


def test_other_sizes_of_a_long_recording():
    recorded = steps("gpt_100k")
    snapshot = recorded[256][0].snapshot
    replay = snapshot.replay()
    for pair in ((256, 384), (512, 768), (1024, 1152)):
        runs = [(tokens, recorded[tokens][0]) for tokens in pair]
        for tokens, (step, *_) in recorded.items():
            scaled = RecordedStepPredictor.from_recordings(runs, state=InitialState.at(snapshot, 0, step.first))
            prediction = scaled.predict(tokens)
            window = slice(step.first + 1, step.last + 2)
            deviation = scaled.deviation(tokens, step)
            assert (deviation.error, deviation.allocations) == (0, ())
            assert sum(item.count for item in deviation.unmatched) == (96 if (tokens < 1024) != (pair[1] < 1024) else 0)
            assert 0 <= prediction.requested - step.peak < 50_000  # the previous step's input and loss are not freed
            assert prediction.allocated == pytest.approx(replay.allocated.bytes[window].max(), rel=1e-4)
            assert prediction.reserved == replay.reserved.bytes[window].max()


def test_buffers_of_reductions_and_kept_output():
    """Training of an MLP that keeps its gradients, and keeps its output until the next step.

    The buffers of the reductions that compute the gradients of biases stop growing at 132 MiB.
    """
    recorded = files.raw("kept_output")
    runs = [((size,), StepRecording(Snapshot.load(run), 0, last=last)) for size, run, last in recorded["runs"]]
    assert [size for (size,), _ in runs] == [2, 4, 2, 8, 152]
    last = runs[-1][1]
    state = InitialState.at(last.snapshot, 0, len(last.timeline.trace) - 1)
    created = CreatedBlocks(*map(np.asarray, recorded["created"]))
    scaled = RecordedStepPredictor.from_recordings(runs, state=state, runs=runs).repeated(created)
    assert scaled.reasons == ()
    for size, (allocated, reserved) in recorded["measured"].items():
        prediction = scaled.predict(size)
        assert (prediction.allocated, prediction.reserved) == (allocated, reserved)
    (piece,) = [piece for piece in scaled.pieces(1, 4096) if piece.first <= 1216 <= piece.last]
    assert piece.bytes + 1216 * piece.bytes_per_unit == pytest.approx(scaled.predict(1216).requested, rel=1e-6)


def checkpoint_block(edit, block):
    """Apply activation checkpointing to one of the 12 blocks, each of which has 15 allocations."""
    requests, first = edit.step.step_requests, 2 + 15 * block  # after the input and its embedding
    output = first + 14
    begin, end = (int(requests.start[number]) for number in (first, output + 1))
    backward = int(requests.end[output]) + 1  # the next block needs the output until then
    arguments = np.asarray([first - 1]), np.asarray([output])
    assert checkpoint(edit, ModuleCall(0, begin, end, backward, *arguments, autocast=False, seconds=1.0))


@pytest.mark.parametrize(("blocks", "expected"), [(0, 1740.3711), (6, 1289.668), (12, 838.9649)])
def test_activation_checkpointing(scaled, blocks, expected):
    """The peaks are those of runs of the checkpointed model on fake tensors, plus 65 MiB for libraries on the GPU."""
    edit = StepEdit(scaled)
    for block in range(blocks):
        checkpoint_block(edit, block)
    changed = edit.apply()
    prediction = changed.predict(2560)
    assert prediction.requested / MIB == pytest.approx(expected + 65, rel=1e-6)
    assert prediction.requested <= prediction.allocated <= prediction.reserved
    assert changed.largest("24 GiB") >= scaled.largest("24 GiB")
    if not blocks:
        assert prediction == scaled.predict(2560)


def test_order_of_changes(scaled):
    edits = [StepEdit(scaled) for _ in range(12)]
    for block, edit in enumerate(edits):
        checkpoint_block(edit, block)
    costs = [10.0 if block == 3 else 1.0 for block in range(12)]
    assert peak_order(scaled, edits, costs, (2560,)) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 3]
    assert peak_order(scaled, edits, costs, (256,)) == []  # the peak is in the optimizer's update
