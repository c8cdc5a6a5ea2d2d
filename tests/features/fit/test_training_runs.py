"""Predictions before the first training step: later steps need more reserved memory, and must fit, too."""

from __future__ import annotations

import collections
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

import ipygpumem
from ipygpumem.core.units import GIB, MIB
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.step_code import function_step
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.snapshot.scaling.simulated_recording import SimulatedRecording


class OwnOptimizer(torch.optim.Optimizer):
    """An optimizer whose update cannot be computed, so that it is run."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state |= {"average": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
            state["average"].lerp_(parameter.grad, 0.1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.output = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.output(self.layers(x))


def reserved_peaks(step, size, count=3):
    """Return the highest reserved memory up to the end of each step."""
    peaks = []
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(count):
        step(size)
        peaks.append(torch.cuda.max_memory_reserved())
    return peaks


@pytest.mark.parametrize(
    "make", [lambda parameters: torch.optim.AdamW(parameters, foreach=True), OwnOptimizer], ids=["AdamW", "own"]
)
def test_reserved_memory(allocations, make):
    model = nn.Sequential(*[Block(192) for _ in range(3)], nn.Linear(192, 2000))
    optimizer = make(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        model(torch.randn(batch * 8, 192)).logsumexp(-1).mean().backward()
        optimizer.step()

    before = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(1, 4097), most=0.001)
    assert (result.refusal, torch.cuda.memory_allocated(), len(optimizer.state)) == ("", before, 0)
    segments = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot())
    assert segments == torch.cuda.memory_reserved() < before + 32 * 2**20  # the cached memory of the runs was freed
    first, *_, last = reserved_peaks(step, 200)
    assert last > 1.1 * first
    assert result.reserved(200) == pytest.approx(last, rel=0.02)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(400_000))

    def forward(self, x):
        return functional.hardtanh(x * self.weight)  # a fast function that saves its argument


def test_gradients_to_which_later_steps_add(allocations):
    """The first step creates gradients in cached memory, which is then split, so that a kept output needs a segment."""
    model = nn.Sequential(*[Scale() for _ in range(3)])
    kept = []

    def step(batch):
        output = model(torch.ones(batch, 400_000))
        output.pow(2).mean().backward()
        kept[:] = [output]

    result = ipygpumem.fit(step, range(1, 4097), most=0.0015)
    estimate = ipygpumem.fit(step, range(1, 4097), dry=True, device="24 GiB")
    assert (result.refusal, estimate.refusal, kept, model[0].weight.grad) == ("", "", [], None)
    first, *_, last = reserved_peaks(step, 12)
    assert result.reserved(12) == last > 1.05 * first
    kept.clear()
    model.zero_grad()
    *_, (_, estimated) = simulated_peaks(step, 12)
    assert estimate.reserved(12) == estimated


@pytest.mark.parametrize(("count", "peaks"), [(2, (506, 1674, 12_874))])
def test_gradients_that_are_not_deleted(count, peaks):
    """The first step creates the gradients in its cached memory.

    After an earlier step, whose workspace of cuBLAS has its own segment, 506, 1,706 and 12,906 MiB were measured on an
    H200. The first step of a new process creates this workspace of 32 MiB in its cached memory, too.
    """
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())))
    outputs = collections.deque(maxlen=count)

    def step(batch):
        output = model(torch.randn(batch * 128, 1024, device="cuda"))
        output.pow(2).mean().backward()
        outputs.append(output)

    result = ipygpumem.fit(step, range(1, 4097), dry=True, device="139 GiB")
    assert tuple(result.reserved(size) // MIB for size in (40, 160, 1280)) == peaks


def simulated_peaks(step, size, count=3):
    """Return the highest allocated and reserved memory of the first steps without data."""
    code = function_step(step, range(1, 4097))
    runner = DryRunner(code, "16 GiB")
    before, requests = None, []
    with runner.updates(StepObjects(torch, code.roots()), None):
        for _ in range(count):
            runner.run((size,))
            before = list(runner.device.log.before) if before is None else before
            requests += runner.device.log.requests
            recording = SimulatedRecording(before, requests)
            yield recording.allocated, recording.reserved
    runner.close()


class GPT(nn.Module):
    def __init__(self, width=256, words=8192):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(256, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        return self.head(self.layer(self.words(ids) + self.positions.weight))


@pytest.mark.parametrize("keeps_output", [False, True])
def test_recommended_size_of_a_transformer(keeps_output):
    """The first step also creates the workspaces of cuBLAS in its cached memory."""
    kept = {}

    def make():
        model = GPT()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step(batch):
            ids = torch.randint(0, 8192, (batch, 256), device="cuda")
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(ids)
                loss = functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
            loss.backward()
            optimizer.step()
            if keeps_output:
                kept["logits"] = logits

        return step

    result = ipygpumem.fit(make(), range(1, 4097), dry=True, device="16 GiB")
    for size in (64, result.recommended):
        kept.clear()
        (_, first), *later = simulated_peaks(make(), size, 3 if keeps_output else 2)
        allocated, reserved = later[-1]
        assert reserved > 1.1 * first or size != 64
        assert result.reserved(size) == pytest.approx(reserved, rel=0.001)
        assert result.predict(size) == pytest.approx(allocated, rel=0.005)
    assert 0.95 * result.capacity < reserved < result.capacity < 16 * GIB


def test_other_allocations_at_large_sizes(allocations):
    """The step also runs at half of the largest size, so that two sizes have the allocations of large sizes."""

    def step(batch):
        if batch > 20:
            return len((torch.empty(60_000 * batch), torch.empty(39_000 * batch)))
        return len(torch.empty(100_000 * batch))

    result = ipygpumem.fit(step, range(1, 4097), most=0.001)
    (last, half) = [probe for probe in result.probes if probe.size[0] > 20]
    assert (result.refusal, half.size[0], last.predicted > last.allocated) == ("", -(-last.size[0] // 2), True)
    assert result.predict(1000) - torch.cuda.memory_allocated() == pytest.approx(99_000 * 4 * 1000, rel=1e-4)
