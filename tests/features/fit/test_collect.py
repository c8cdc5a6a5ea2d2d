"""Predictions of steps of user code, whose tensors are allocated on a fake GPU."""

from __future__ import annotations

import gc
import itertools
import json
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ipygpumem
from ipygpumem import OptionError, RecordingError
from ipygpumem.core.units import MIB
from ipygpumem.features.fit import collect
from ipygpumem.features.fit.axes import SizeAxis, largest_sizes
from ipygpumem.features.fit.ranks import RankCommunicator
from ipygpumem.measurement.allocation_history import RecordingOptions
from ipygpumem.measurement.recorder import AllocationRecorder
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor
from ipygpumem.snapshot.scaling.step_requests import InitialState
from snapshot.scaling.recorder import Recorder, line

GIB = 1 << 30


class Training:
    def __init__(self, optimizer=torch.optim.AdamW, **options):
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.updates = 0
        self.optimizer.register_step_pre_hook(self.count)

    def count(self, *_):
        self.updates += 1

    def step(self, batch):
        x = torch.randn(batch, 64)
        loss = functional.mse_loss(self.model(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measured(step, *size):
    """Run a step twice, and return the peak of the second run, which starts with the gradients of the first."""
    for _ in range(2):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        step(*size)
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_prediction_is_exact(allocations, optimizer, options):
    """Before the first update, the prediction contains the state that the optimizer will create."""
    training = Training(optimizer, **options)
    weights = [parameter.clone() for parameter in training.model.parameters()]
    result = ipygpumem.fit(training.step, range(1, 257), most=0.0001)
    assert not result.refusal
    assert result.error == 0
    assert len(result.probes) == 5
    assert all(torch.equal(old, new) for old, new in zip(weights, training.model.parameters(), strict=True))
    assert result.pieces[0].phase == "optimizer"
    assert result.pieces[-1].phase == "backward"
    assert result.predict(5_000) == measured(training.step, 5_000)
    assert sum(group.bytes for group in result.breakdown(5_000)) <= result.predict(5_000)
    assert result.reserved(5_000) >= result.predict(5_000)


def test_updates_are_not_run(allocations, monkeypatch):
    training = Training()
    monkeypatch.setattr(torch.optim.AdamW, "_init_group", lambda self, group, *_: self.fail() if group else None)
    monkeypatch.setattr(torch.optim.AdamW, "fail", lambda self: pytest.fail("the update was run"), raising=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipygpumem.features.fit.optimizer_updates.computed_update", lambda *_: _empty_update())
        assert not ipygpumem.fit(training.step, range(1, 65)).refusal


def _empty_update():
    from ipygpumem.features.fit.optimizer_updates import ComputedUpdate

    return ComputedUpdate((), ())


class OwnOptimizer(torch.optim.Optimizer):
    """An optimizer that is not part of PyTorch and that replaces the data of the parameters."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(0.9).add_(parameter.grad)
                parameter.data = parameter.data - momentum


@pytest.mark.parametrize("optimizer", [getattr(torch.optim, "Adafactor", OwnOptimizer), OwnOptimizer])
def test_other_optimizers_are_run_and_undone(allocations, optimizer):
    training = Training(optimizer)
    parameters = [*training.model.parameters()]
    weights = [weight.clone() for weight in parameters]
    result = ipygpumem.fit(training.step, range(1, 65))
    assert f"The update of {optimizer.__name__} cannot be computed" in str(result)
    assert all(torch.equal(old, new) for old, new in zip(weights, parameters, strict=True))
    assert not training.optimizer.state
    assert parameters[0].grad is None


def test_length_of_a_sequence(allocations):
    layer = nn.Linear(16, 16)

    def step(length):
        x = layer(torch.randn(2, length, 16))
        ((x @ x.transpose(1, 2)).softmax(-1) @ x).sum().backward()

    result = ipygpumem.fit(step, range(16, 1025), most=0.00001)
    assert not result.refusal
    assert max(probe.size[0] for probe in result.probes) < 400
    assert result.predict(500) == measured(step, 500)
    piece = result.pieces[-1]
    assert piece.first <= 500 <= piece.last
    value = sum(value * 500**power for power, value in enumerate(piece.coefficients))
    assert value == pytest.approx(result.predict(500), rel=0.001)
    (formula,) = re.findall(r"to 1,024: (.*), in the", str(result))
    assert re.fullmatch(r"[\d.]+ K?i?B \* length \+ [\d.]+ K?i?B \* length\*\*2", formula), formula
    units = {"MiB": "* MIB", "KiB": "* 1024", "B": ""}
    code = re.sub(r" ([KM]?i?B)\b", lambda match: units[match[1]], formula)
    assert eval(code, {"MIB": MIB, "length": 500}) == pytest.approx(result.predict(500), rel=0.01)  # noqa: S307


@pytest.mark.parametrize("free", [600 << 20, 139 << 30])
def test_growth_that_small_sizes_hide(allocations, fake_gpu, free):
    """A product of the batch with itself is invisible at small sizes, and no run needs more than its share."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - free, 0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))

    def step(batch):
        z = model(torch.randn(batch, 64))
        functional.cross_entropy(z @ z.T, torch.arange(batch)).backward()

    before, share = torch.cuda.memory_allocated(), 0.25 if free < GIB else 0.0003
    result = ipygpumem.fit(step, range(1, 8193), most=share)
    assert not result.refusal
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert max(probe.allocated for probe in result.probes) - before <= share * result.capacity
    assert len(result.probes) == 6
    assert result.error < 0.001
    if free > GIB:
        assert abs(result.predict(2_000) / measured(step, 2_000) - 1) < 0.01


@pytest.mark.parametrize("first", [1, 256])
def test_quadratic_growth_with_the_first_of_two_variables(allocations, first):
    """The growth is invisible in the first runs, or its prediction at the first larger size is wrong."""
    layer = nn.Linear(64, 64)

    def step(batch, width):
        z = layer(torch.randn(4 * batch, 64))
        (functional.cross_entropy(z @ z.T, torch.arange(4 * batch)) + torch.randn(width).sum()).backward()

    before, share = torch.cuda.memory_allocated(), 0.0003 if first == 1 else 0.001
    result = ipygpumem.fit(step, {"batch": range(first, 2049), "width": range(64, 4097)}, most=share)
    assert not result.refusal
    assert max(probe.allocated for probe in result.probes) - before <= share * result.capacity
    assert result.probes[-1].role == "verification"
    assert result.error < 0.001
    assert abs(result.predict(512, 1024) / measured(step, 512, 1024) - 1) < 0.01


def test_verification_at_proportional_sizes(allocations, fake_gpu):
    """If 600 MiB are free, no sizes at the same positions of both ranges are allowed after the first prediction."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 600 * MIB, 0)
    layer = nn.Linear(64, 64)

    def step(batch, length):
        tensors = [torch.empty(batch, length, 64), torch.empty(batch, batch), torch.empty(batch, batch)]
        layer(torch.randn(4, 64)).sum().backward()
        del tensors

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, {"batch": range(256, 4097), "length": range(16, 1025)})
    assert not result.refusal
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    assert (result.probes[-1].role, result.error) == ("verification", 0)
    batch, length = result.probes[-1].size
    assert batch / length == pytest.approx(1024 / 128, rel=0.01)


@pytest.mark.parametrize(("dimensions", "last"), [(2, 4096), (3, 256)])
def test_images_from_a_few_pixels(allocations, fake_gpu, dimensions, last):
    """No run exceeds its share if the allocations of the smallest images do not show how the memory grows.

    The sizes are similar to those of a convolutional network on an H200, whose peak was lower for 4 than for 2 pixels
    because of workspaces of cuDNN.
    """
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 8 * GIB, 0)
    layer, workspaces = nn.Linear(1024, 4096), {2: 70_000, 4: 1_000, 8: 140_000}

    def workspace(image):
        torch.empty(workspaces.get(image, 10 * image**dimensions))

    def step(image):
        pixels, halved = [image] * dimensions, [-(-image // 2)] * dimensions
        tensors = [torch.empty(4, 3, *pixels)]
        if image == 2:
            tensors.append(torch.empty(60_000))
        workspace(image)
        tensors += [torch.empty(4, 64, *pixels), torch.empty(4, 64, *pixels)]
        workspace(image)
        tensors.append(torch.empty(4, 128, *halved))
        layer(torch.randn(4, 1024)).sum().backward()

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(2, last + 1))
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    assert not result.refusal
    assert result.probes[-1].role == "verification"
    assert result.error < 0.01
    assert result.predict(last // 3) == pytest.approx(measured(step, last // 3), rel=0.01)


@pytest.mark.parametrize(("sizes", "dimensions"), [(range(64, 2049, 32), 2), (range(2, 4097), 2), (range(2, 257), 3)])
def test_workspaces_of_convolutions_grow_like_images(allocations, fake_gpu, sizes, dimensions):
    """cuDNN converts the tensors of a convolution in a workspace, except those of small images."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 8 * GIB, 0)
    layer = nn.Linear(1024, 4096)

    def step(image):
        pixels, channels = [image] * dimensions, 32
        tensors = []
        for _ in range(3):
            tensors.append(torch.empty(channels, *pixels))
            # the kernel for small images needs less memory
            torch.empty(
                2 * channels * image**dimensions + 9 * channels**2
                if image > (90 if dimensions == 2 else 40)
                else 100_000
            )
        layer(torch.randn(4, 1024)).sum().backward()

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, sizes)
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    assert not result.refusal
    assert result.probes[-1].role == "verification"
    assert result.predict(result.recommended) == pytest.approx(measured(step, result.recommended), rel=0.001)
    assert torch.cuda.memory_stats()["num_ooms"] == torch.cuda.memory_stats()["num_alloc_retries"] == 0


@pytest.mark.parametrize("first_needs_more", [False, True])
def test_smaller_runs_if_no_larger_run_is_allowed(allocations, fake_gpu, first_needs_more):
    """The first four sizes do not confirm a quadratic function, and the fifth would exceed the share of a run.

    The largest size runs twice. If its first run needs more memory, the step cannot be predicted.
    """
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 2900 * MIB, 0)
    layer, large_images = nn.Linear(1024, 4096), []

    def step(image):
        tensors = [torch.empty(256, image, image), torch.empty(256, image, image)]
        if image == 512:
            large_images.append(torch.empty(20, image, image) if first_needs_more and not large_images else None)
        layer(torch.randn(4, 1024)).sum().backward()
        del tensors
        large_images[:] = [None for _ in large_images]

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(64, 2049, 32))
    sizes = [(probe.size[0], probe.role) for probe in result.probes]
    assert sizes[-3:] == [(512, "fit"), (320, "fit"), (512, "verification")]
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    if first_needs_more:
        assert "two runs at size 512 differ by 20.0 MiB at their peaks: make the step allocate" in result.refusal
    else:
        assert result.predict(1024) == measured(step, 1024)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_checks_at_sizes_beyond_those_of_the_prediction(allocations, fake_gpu, power):
    """A prediction is confirmed at 1.5 times the sizes that determine it, or more, or refused."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 600 * MIB, 0)
    layer = nn.Linear(1024, 4096)

    def step(size):
        tensors = [torch.empty(64 * size**power), torch.empty(32 * size**power)]
        layer(torch.randn(4, 1024)).sum().backward()
        del tensors

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(2, 4097))
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    if power > 3:
        assert "differs from the measured value" in result.refusal
        assert result.recommended is None
    else:
        *smaller, last = result.probes
        assert not result.refusal
        assert last.role == "verification"
        assert last.size[0] >= 1.5 * max(
            probe.size[0] for probe in smaller if probe.size < last.size and probe.role == "fit"
        )
        assert abs(last.error) < 0.001
        size = 1000 if power < 3 else 100
        assert result.predict(size) == pytest.approx(measured(step, size), rel=0.05)


@pytest.mark.parametrize(("power", "refused"), [(1, False), (2, False), (3, False), (4, True)])
def test_growth_below_a_large_constant(allocations, fake_gpu, power, refused):
    """A constant allocation, which is much larger than the growing ones at small sizes, does not hide their growth."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 600 * MIB, 0)
    layer = nn.Linear(64, 64)

    def step(size):
        constant = torch.empty(16 * MIB)
        tensors = [torch.empty(8 * size**power + 512 * size), torch.empty(4 * size**power + 4 * size)]
        layer(torch.randn(4, 64)).sum().backward()
        del constant, tensors

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(2, 4097))
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    assert bool(result.refusal) == refused
    if not refused:
        assert result.predict(result.recommended) == pytest.approx(measured(step, result.recommended), rel=0.003)


@pytest.mark.parametrize("power", [2, 3])
@pytest.mark.parametrize("free", [80, 600])
def test_temporary_tensors_are_not_workspaces(allocations, fake_gpu, power, free):
    """Tensors that are freed before the next allocation, like workspaces, are predicted and limit the next run."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - free * MIB, 0)

    def step(size):
        constant = torch.empty(MIB)
        tensors = [torch.empty(8 * size**power + 512 * size), torch.empty(4 * size**power + 4 * size)]
        del tensors, constant

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(2, 4097))
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)
    assert not result.refusal
    assert result.predict(result.recommended) == pytest.approx(measured(step, result.recommended), rel=0.01)


@pytest.mark.parametrize(("power", "free"), [(1.5, 80), (1.75, 600), (2, 80)])
def test_note_about_unknown_growth(allocations, fake_gpu, power, free):
    """Sizes that are not polynomials can be predicted too low if only much smaller runs are allowed."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - free * MIB, 0)

    def step(size):
        constant = torch.empty(MIB)
        tensors = [torch.empty(int(8 * size**power) + 512 * size), torch.empty(int(4 * size**power) + 4 * size)]
        del tensors, constant

    result = ipygpumem.fit(step, range(2, 4097))
    actual, predicted = measured(step, result.recommended) / MIB, result.predict(result.recommended) / MIB
    if power == 2:
        assert (predicted, result.notes) == (pytest.approx(actual, rel=0.001), ())
    else:
        (note,) = result.notes
        bound = re.match(
            rf"At size {result.recommended:,}, the step may need up to ([\d.]+) MiB: its runs do not", note
        )
        assert 1.2 * predicted < actual < float(bound[1])


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("sizes", [range(1, 1 << 40), [2, 4, 8, 16, 32, 50_000, 1 << 40], [2, 4, 6, 1 << 40]])
def test_sizes_that_no_memory_can_hold(allocations, sizes, dry):
    """Sizes at which a step would need more memory than a process has addresses do not fit."""
    layer = nn.Linear(64, 64)

    def step(size):
        x = layer(torch.randn(size, 64))
        (x @ x.T).sum().backward()

    options = {"dry": True, "device": "24 GiB"} if dry else {"most": 0.00005, "on": "24 GiB"}
    result = ipygpumem.fit(step, sizes, **options)
    assert not result.refusal
    expected = ipygpumem.fit(step, range(1, 1 << 17), **options).largest
    assert 70_000 < expected < 90_000
    assert result.largest == max(size for size in sizes[: 1 << 17] if size <= expected)
    assert "on average" not in str(result)


def test_sizes_that_are_padded(allocations, fake_gpu):
    """The peak is the same at all small sizes, which do not show how much memory larger sizes need."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 600 * MIB, 0)
    layer = nn.Linear(1024, 64)

    def step(batch):
        layer(torch.randn(-(-batch // 64) * 64, 1024)).sum().backward()

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(2, 1 << 16))
    assert max(probe.allocated for probe in result.probes) - before <= 0.25 * (result.capacity - before)


@pytest.mark.parametrize("benchmark", [False, True])
def test_workspaces_of_the_first_run_at_a_size(allocations, monkeypatch, benchmark):
    """With ``cudnn.benchmark``, cuDNN's search may use workspaces in the first run at some sizes."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    known_sizes = {2, 4, 8, 16, 32, 64}

    def step(size):
        x = torch.empty(size * MIB // 4)
        if benchmark and size not in known_sizes:
            known_sizes.add(size)
            workspace = torch.empty(40 * MIB)
            del workspace
        y = torch.empty(size * MIB // 8)
        del x, y

    result = ipygpumem.fit(step, [2, 4, 8, 16, 32, 63, 64])
    assert bool(result.refusal) == benchmark
    assert ("The prediction for the size 63 differs" in result.refusal) == benchmark


@pytest.mark.parametrize("power", [1, 3])
def test_sizes_that_are_too_close_together(allocations, fake_gpu, power):
    """Only exactly linear growth is predicted from sizes that are slightly larger than the smallest size."""
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 600 * MIB, 0)

    def step(size):
        torch.empty(8_000_000 // 100**power * size**power)

    result = ipygpumem.fit(step, [100, 104, 108, 109, 110, 800])
    assert max(probe.size for probe in result.probes) <= (110,)
    if power == 1:
        assert not result.refusal
        assert result.probes[-1].role == "verification"
    else:
        assert result.recommended is None
        assert "begin the range at a smaller size" in result.refusal


def test_first_run_that_needs_too_much_memory(allocations, fake_gpu, monkeypatch):
    """A first run that certainly exceeds its share is not started, and the state remains the same."""
    monkeypatch.setattr(collect, "_use_gpu", lambda _: True)
    torch.cuda.synchronize()  # creates the CUDA context
    device = fake_gpu.nvml_device
    device.others[4711] = max(device.free - 600 * MIB, 0)
    training, sizes = Training(), []

    def step(batch):
        sizes.append(batch)
        training.step(batch)

    training.step(3)
    gradients = [parameter.grad for parameter in training.model.parameters()]
    torch.cuda.reset_peak_memory_stats()
    peak = torch.cuda.max_memory_allocated()
    result = ipygpumem.fit(step, range(1_000_000, 2_000_001))
    assert re.fullmatch(
        r"the first run, at size 1,000,000, needs [\d.,]+ GiB, more than 25% of the free 59\d.\d MiB.*", result.refusal
    )
    assert torch.cuda.max_memory_allocated() == peak
    assert not result.probes
    assert not sizes
    assert [parameter.grad for parameter in training.model.parameters()] == gradients
    assert not ipygpumem.fit(step, range(1_000, 200_001)).refusal


def test_small_sizes_that_use_other_kernels(allocations):
    layer = nn.Linear(64, 64)

    def step(batch):
        x = torch.randn(batch, 64)
        workspace = torch.empty(1_000_000) if batch < 3 else torch.empty(batch * batch) if batch < 7 else None
        layer(x).sum().backward()
        del workspace

    result = ipygpumem.fit(step, range(1, 257), most=0.0001)
    assert not result.refusal
    assert result.predict(1_000) == measured(step, 1_000)


def test_two_variables(allocations):
    layer = nn.Linear(16, 16)

    def step(batch, length):
        x = layer(torch.randn(batch, length, 16))
        ((x @ x.transpose(1, 2)).softmax(-1) @ x).sum().backward()

    sizes = {"batch": range(1, 65), "length": np.arange(16, 257)}
    result = ipygpumem.fit(step, sizes, on="800 MiB", most=0.01)
    assert not result.refusal
    assert result.predict(40, 200) == measured(step, 40, 200)
    rows = result.combinations
    assert [row.size for row in rows] == sorted(row.size for row in rows)
    assert rows[0].size == 16
    assert rows[-1].size == 256
    assert rows[0].largest == 64
    assert rows[-1].recommended is None or rows[-1].recommended <= rows[-1].largest <= 64
    assert "largest batch" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["combinations"][0]["size"] == 16


def test_largest_size(fake_gpu):
    """The answer is the largest size that the device can serve, and no run needs more than the allowed share."""

    def step(batch):
        torch.empty((batch * 3 * GIB // 4,), dtype=torch.uint8, device="cuda")

    torch.cuda.init()
    result = ipygpumem.fit(step, range(1, 4097))
    free = result.capacity
    assert 138 * GIB < free < 140 * GIB
    assert result.largest == free // (3 * GIB // 4)
    assert result.recommended == int(0.98 * free) // (3 * GIB // 4)
    used = [probe.allocated for probe in result.probes]
    assert free / 5 < max(used) <= free / 4
    assert torch.cuda.memory_stats()["num_ooms"] == torch.cuda.memory_stats()["num_alloc_retries"] == 0
    half = ipygpumem.fit(step, range(1, 4097), margin=0.1, most=0.5)
    assert free / 3 < max(probe.allocated for probe in half.probes) <= free / 2
    assert half.recommended == int(0.9 * free) // (3 * GIB // 4)
    assert half.largest == half.after_release == result.largest
    assert torch.cuda.memory_reserved() <= 4 << 20
    other = ipygpumem.fit(step, range(1, 4097), on="24 GiB")
    assert 22 * GIB < other.capacity < 24 * GIB
    assert other.largest == other.capacity // (3 * GIB // 4)
    assert "for a GPU with 24 GiB" in str(other)
    few = ipygpumem.fit(step, [12, 2, 4, 6, 8])
    assert few.largest == 12
    assert "the largest of these values" in str(few)
    assert ipygpumem.fit(step, range(1, 4097), on=24 * GIB).label == f"{other.label[:-6]}24.0 GiB"
    with pytest.raises(OptionError, match=r"not more than the .* that this process uses outside PyTorch"):
        ipygpumem.fit(step, range(1, 65), on="100 MiB")


def test_order_of_the_largest_sizes():
    """Reserved memory is not a monotonic function of the size: some tensors fit into cached segments by rounding."""

    def step(recorder, size):
        kept = recorder.alloc(size * 4 * MIB, line(3))
        recorder.free(recorder.alloc(size * 11 * MIB + size * MIB // 4, line(4)))
        recorder.free(recorder.alloc(size * 11 * MIB + size * MIB // 4 + MIB, line(5)))
        recorder.free(kept)

    steps = Recorder().run(step, 4, 8).steps()
    before = InitialState.at(steps[0][1].snapshot, 0, steps[0][1].first)
    scaled = RecordedStepPredictor.from_recordings(steps, state=before)
    axis, ranks = SizeAxis("batch", range(1, 65)), RankCommunicator()
    reserved = [scaled.predict(size).reserved for size in axis.sizes]
    assert reserved != sorted(reserved)
    for capacity in range(100 * MIB, 1500 * MIB, 10 * MIB):
        sizes = largest_sizes(ranks, axis, scaled, capacity, 0.1)
        recommended, largest, after_release = (sizes[name] for name in ("recommended", "largest", "after_release"))
        assert (recommended or 0) <= (largest or 0) <= (after_release or 0), capacity
        assert largest is None or reserved[largest - 1] <= capacity
        assert recommended is None or reserved[recommended - 1] <= 0.9 * capacity


def test_unreachable_tensors_of_the_program(fake_gpu):
    """Tensors in unreachable reference cycles, such as those of an old traceback, are freed before the first run."""
    torch.cuda.init()
    cycle = [torch.empty((110 * GIB,), dtype=torch.uint8, device="cuda")]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        result = ipygpumem.fit(lambda batch: torch.empty((batch * GIB,), dtype=torch.uint8, device="cuda").dim())
    finally:
        gc.enable()
    assert "reference cycles" not in str(result)
    assert max(probe.allocated for probe in result.probes) <= result.capacity / 4


def test_optimizer_that_some_runs_update(allocations):
    training, calls = Training(foreach=True), itertools.count(1)

    def step(batch):
        training.model(torch.randn(batch, 64)).sum().backward()
        if next(calls) % 4 == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()

    result = ipygpumem.fit(step, range(1, 65))
    assert "at their peaks: update the optimizer in every run, after the gradients" in result.refusal
    assert all(parameter.grad is None for parameter in training.model.parameters())


def test_iterator_without_more_items(allocations):
    layer = nn.Linear(8, 8)
    batches = iter(torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=64))

    def step(batch):
        layer(next(batches)[:batch]).sum().backward()

    result = ipygpumem.fit(step, range(1, 65))
    assert result.refusal.startswith("an iterator of the step has no more items in the run at size 4: create")
    assert "The step advanced the iterator batches, which is not undone." in result.notes
    assert layer.weight.grad is None


def test_other_processes(fake_gpu):
    """The memory of other processes is neither used nor counted."""

    def step(batch):
        torch.empty((batch * GIB,), dtype=torch.uint8, device="cuda")

    torch.cuda.init()
    fake_gpu.nvml_device.others[4711] = 100 * GIB
    result = ipygpumem.fit(step, range(1, 4097))
    assert 37 <= result.largest <= 39
    assert max(probe.allocated for probe in result.probes) <= 10 * GIB


_lengths = itertools.cycle([70, 30, 90, 10])


def lengths(batch):
    torch.randn(batch * next(_lengths), 64)


def by_value(batch):
    x = torch.randn(batch, 64)
    return torch.cat([x] * 40).sum() if batch > 20 else x.sum()


def in_parts(batch):
    weight = torch.randn(16, 200, requires_grad=True)
    for part in torch.randn(64 * batch, 16).split(512):
        functional.cross_entropy(part @ weight, torch.zeros(len(part), dtype=torch.long)).backward()


def large(batch):
    torch.empty(batch * 20 * GIB, dtype=torch.uint8, device="cuda")


def half_as_large(batch):
    torch.empty(batch * 12 * GIB, dtype=torch.uint8, device="cuda")


def too_large(batch):
    torch.empty(batch * 80 * GIB, dtype=torch.uint8, device="cuda")


def leak(batch, kept=[]):  # noqa: B006 (the list keeps tensors between calls)
    kept.append(torch.randn(batch, 1000 * (1 + len(kept))))


@pytest.mark.parametrize(
    ("step", "reason", "runs"),
    [
        (lengths, r"two runs at size 2 differ by [\d.]+ KiB at their peaks: make the step allocate the same memory", 3),
        (leak, "make the step allocate the same memory in each run", 3),
        (
            by_value,
            r"size 64 differs from the measured value by more than 2%: predicted [\d.]+ KiB, measured [\d.]+ MiB\.",
            5,
        ),
        (
            in_parts,
            r"allocations \(\d\d\.\d% of the peak\) occur at only some .*same number of iterations of each loop\.",
            5,
        ),
    ],
)
def test_refusals(allocations, step, reason, runs):
    result = ipygpumem.fit(step, range(1, 65))
    assert re.search(reason, result.refusal), result.refusal
    assert result.refusal in str(result)
    assert len(result.probes) == runs
    assert result.largest is None
    assert result.to_dict()["refusal"] == result.refusal
    with pytest.raises(OptionError, match="cannot be predicted"):
        result.predict(8)
    assert not leak.__defaults__[0]


@pytest.mark.parametrize(
    ("step", "reason", "runs"),
    [
        (large, "the run at size 2 needs 40.0 GiB, more than 25% of the free 139.2 GiB: allow up to half with", 1),
        (too_large, "the step ran out of memory at size 2 (tried to allocate 163840.00 MiB)", 0),
    ],
)
def test_smallest_size_is_too_large(fake_gpu, step, reason, runs):
    torch.cuda.init()
    result = ipygpumem.fit(step, range(1, 65))
    assert reason in result.refusal
    assert len(result.probes) == runs
    percent = reason.replace("25%", "0.7%")
    assert percent in ipygpumem.fit(step, range(1, 65), most=0.007).refusal


def test_second_size_is_too_large(fake_gpu):
    """Before the second run, only an upper bound of its memory usage is known."""
    torch.cuda.init()
    result = ipygpumem.fit(half_as_large, range(1, 65))
    assert result.refusal.startswith("a run at size 3 may need up to 54.0 GiB, more than 25% of the free 139.2 GiB")
    assert len(result.probes) == 1


def test_refusals_of_the_environment(make_gpu):
    def step(batch):
        torch.ones(batch, device="cuda")

    gpu = make_gpu()
    step(1)
    with gpu.capture():
        assert "a CUDA graph is being captured" in ipygpumem.fit(step).refusal
    torch.cuda.memory._record_memory_history()
    assert "allocation history is being recorded" in ipygpumem.fit(step).refusal
    make_gpu(backend="cudaMallocAsync")
    assert "cudaMallocAsync cannot record allocation history" in ipygpumem.fit(step).refusal


def test_memory_that_is_needed_at_any_size(allocations, monkeypatch):
    """Nothing is run if the optimizer's state and temporary tensors alone need more than a run may use."""
    training = Training()
    monkeypatch.setattr("ipygpumem.features.fit.optimizer_updates.ComputedUpdate.total", lambda *_: 100 * GIB)
    refusal = ipygpumem.fit(training.step, range(1, 65)).refusal
    assert refusal.startswith("a step of any size, with its gradients and the optimizer's state, needs 100.0 GiB")
    assert not training.updates
    model = nn.Linear(64, 64)

    def step(batch):
        optimizer = torch.optim.AdamW(model.parameters())  # unknown before the step runs
        model(torch.randn(batch, 64)).sum().backward()
        optimizer.step()

    refusal = ipygpumem.fit(step, range(1, 65)).refusal
    assert refusal == "the optimizer's state and update need too much memory: run one step first"


def generator(batch):
    yield torch.ones(batch)


async def coroutine(batch):
    return torch.ones(batch)


@pytest.mark.parametrize(
    ("step", "sizes", "message"),
    [
        (generator, range(1, 65), "generator is a generator function: pass a function that runs one step"),
        (coroutine, range(1, 65), "coroutine is a coroutine function: pass a function that runs one step"),
        (generator(1), range(1, 65), "step must be a function .* but got an object of type generator"),
        (lambda batch: (x for x in range(batch)), range(1, 65), "returns a generator, whose code has not run"),
        (lambda batch: [0] * batch, range(1, 65), "<lambda> allocates no GPU memory at size 2"),
        (lengths, range(5, 1), r"the range 5\.\.0 of batch is empty"),
        (lengths, [], "the list of sizes of batch is empty: pass at least 3 sizes"),
        (lengths, {}, "sizes is empty"),
        (lengths, range(1, 3), "a prediction requires at least 3 sizes"),
        (lengths, range(-5, 5), "must be positive integers"),
        (lengths, [1.5, 2.5, 3.5], "must be integers, such as"),
        (lengths, range(1, 10**19), "the sizes of batch must not exceed 1,099,511,627,776"),
        (lengths, [1, 2, 10**5000], "must not exceed"),
        (lengths, {1: range(1, 9)}, "the keys of sizes must be names of parameters, but got 1"),
        (lengths, 64, r"must be integers, such as range\(1, 65\), but got 64"),
        (lengths, np.array([2, 4, 8, 0] * 99), r"must be positive integers, but got array\(\[.*\.\.\."),
        (lengths, [2, 4, True], "must be integers"),
        (lambda a, b: None, range(1, 65), r"called with one size \(missing a required argument: 'b'\): for two sizes"),
        (lambda: None, range(1, 65), r"<lambda> cannot be called with one size \(too many positional arguments\)"),
        (lengths, {"c": range(1, 65)}, r"lengths cannot be called with the arguments c \(missing a"),
        (lengths, dict.fromkeys("abc", range(1, 9)), "one or two different variables"),
    ],
)
def test_invalid_arguments(allocations, step, sizes, message):
    with pytest.raises(OptionError, match=message) as error:
        ipygpumem.fit(step, sizes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"margin": 1}, {"margin": -0.1}, {"most": 0}, {"most": 0.6}, {"on": "many"}])
def test_invalid_options(allocations, options):
    with pytest.raises(OptionError):
        ipygpumem.fit(by_value, range(1, 65), **options)


def test_without_a_gpu():
    with pytest.raises(RecordingError, match="the step must run on a GPU, and torch"):
        ipygpumem.fit(by_value)


class Store:
    """The store of two ranks, of which the second has less memory, or refuses after some answers."""

    def __init__(self, answers=None):
        self.values, self.answers = {}, answers

    def add(self, *_):
        return 1

    def set(self, key, value):
        self.values[key] = value

    def check(self, keys):
        return all(key in self.values for key in keys)

    def wait(self, keys, timeout):
        mine = int(self.values[keys[0]])
        if self.answers is None or len(self.values) // 2 < self.answers:
            self.values[keys[1]] = str(min(mine, 100))
        elif self.answers < 0:
            raise RuntimeError("timeout")
        else:
            self.values[keys[1]] = "0"

    def get(self, key):
        return self.values[key]


@pytest.mark.parametrize(
    ("answers", "refusal", "runs"),
    [
        (None, "", 5),
        (-1, "rank 1 of 2 did not respond within 60 s: run fit on every rank", 0),
        (2, "another rank cannot predict the step: see the result of that rank", 0),
        (3, "another rank cannot predict the step: see the result of that rank", 1),
    ],
)
def test_ranks(allocations, monkeypatch, answers, refusal, runs):
    """All ranks must call fit, and the rank with the least memory determines the answer."""
    from torch import distributed

    from ipygpumem.features.fit import ranks

    monkeypatch.setattr(ranks, "rank_and_world", lambda: (0, 2))
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: Store(answers))
    training = Training()
    result = ipygpumem.fit(training.step, range(1, 257))
    assert refusal in result.refusal
    assert bool(refusal) is bool(result.refusal)
    assert len(result.probes) == runs
    assert not training.optimizer.state
    if not refusal:
        assert result.largest == result.recommended == 100
        assert max(probe.size for probe in result.probes) == (101,)


def test_beside_a_recording_of_this_package(allocations):
    """A recording, such as that of oom_snapshot, is used by fit, and contains its events and all earlier ones."""

    def step(batch):
        model(torch.randn(batch, 8)).sum().backward()

    model = torch.nn.Linear(8, 8)
    alone = ipygpumem.fit(step, range(1, 65))
    recorder = AllocationRecorder(current(), RecordingOptions(max_entries=1000))
    recorder.start()
    before = torch.ones(1234)
    result = ipygpumem.fit(step, range(1, 65))
    assert not result.refusal
    added = result.probes[0].allocated - alone.probes[0].allocated
    assert added >= before.nbytes
    assert result.predict(64) - alone.predict(64) == added
    assert not result.error
    recorder.keep_snapshot = True
    assert not recorder.save(None, sources={}, numbers={}).error
    sizes = [event["size"] for event in recorder.snapshot["device_traces"][0]]
    assert before.nbytes in sizes
    recorder.stop()
    for options, reason in (
        (RecordingOptions("all"), "allocation history is being recorded: before running fit, stop the recording with"),
        (RecordingOptions(max_entries=9), "limited to 9 allocator events: use a shorter step, or turn"),
    ):
        recorder = AllocationRecorder(current(), options)
        recorder.start()
        assert reason in ipygpumem.fit(step, range(1, 65)).refusal
        assert current().active_recording.running
        recorder.stop()
