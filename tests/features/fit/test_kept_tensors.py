"""Predictions of steps that keep tensors until their next run. After a few runs, these tensors have the same size."""

from __future__ import annotations

import collections
import gc

import pytest
import torch
from torch import nn

import ipygpumem

VARIABLES = {}


class Program:
    """A program with a step for each way of keeping tensors."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.kept = {}
        self.outputs = collections.deque(maxlen=3)

    def output(self, batch):
        self.kept["out"] = self.model(torch.randn(batch * 16, 64))
        self.kept["out"].sum().backward()
        self.model.zero_grad()

    def graph(self, batch):
        self.kept["loss"] = self.model(torch.randn(batch * 16, 64)).pow(2).mean()

    def graph_after_backward(self, batch):
        self.kept["loss"] = loss = self.model(torch.randn(batch * 16, 64)).pow(2).mean()
        loss.backward(retain_graph=True)

    def hidden_states(self, batch):
        x, hidden = torch.randn(batch * 16, 64), []
        for layer in self.model:
            x = layer(x)
            hidden.append(x)
        self.hidden = tuple(hidden)
        x.sum().backward()

    def three_outputs(self, batch):
        with torch.no_grad():
            self.outputs.append(self.model(torch.randn(batch * 16, 64)))

    def previous_output(self, batch):
        self.kept["previous"] = self.kept.get("out")
        self.kept["out"] = self.model(torch.randn(batch * 16, 64)).detach()

    def global_container(self, batch):
        VARIABLES["inputs"] = torch.randn(batch * 16, 64)
        VARIABLES["outputs"] = self.model(VARIABLES["inputs"])
        VARIABLES["outputs"].pow(2).mean().backward()

    def cache(self, batch):
        past = torch.empty(batch, 0, 64)
        with torch.no_grad():
            for _ in range(4):
                past = torch.cat([past, self.model(torch.randn(batch, 8, 64))], 1)
        self.kept["past"] = past

    def deleted_first(self, batch):
        self.kept.clear()
        self.output(batch)


STEPS = sorted(name for name, value in vars(Program).items() if callable(value) and name[0] != "_")


def measured(step, *size):
    """Return the peak of a step after previous runs at the same size."""
    for _ in range(5):
        torch.cuda.reset_peak_memory_stats()
        step(*size)
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("name", STEPS)
def test_tensors_of_the_previous_run(allocations, name):
    VARIABLES.clear()
    step = getattr(Program(), name)
    result = ipygpumem.fit(step, range(1, 200), most=0.0001)
    assert (result.refusal, result.error) == ("", 0)
    actual = {size: measured(step, size) for size in (8, 40, 180)}
    assert {size: result.predict(size) for size in actual} == pytest.approx(actual, rel=0.005)
    if name in {"graph", "three_outputs"}:
        estimate = ipygpumem.fit(step, range(1, 200), dry=True, device="24 GiB")
        workspaces = estimate.predict(8) - actual[8]
        assert {size: estimate.predict(size) - workspaces for size in actual} == pytest.approx(actual, rel=0.005)


def test_two_sizes(allocations):
    program = Program()

    def step(batch, length):
        program.kept["out"] = program.model(torch.randn(batch, length, 64))

    result = ipygpumem.fit(step, {"batch": range(1, 65), "length": range(8, 257)}, most=0.0001)
    assert not result.refusal
    for size in ((4, 16), (16, 100), (60, 250)):
        assert result.predict(*size) == pytest.approx(measured(step, *size), rel=0.005)


def test_cyclic_garbage_of_the_last_run_is_not_included(allocations):
    program = Program()

    def step(batch):
        cycle = [program.model(torch.randn(batch * 16, 64))]
        cycle.append(cycle)

    result = ipygpumem.fit(step, range(1, 200), most=0.0001)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step(8)
    assert result.predict(8) == torch.cuda.max_memory_allocated()


def test_cyclic_garbage_of_replaced_objects(allocations):
    """Objects that are replaced and refer to themselves, such as a `Trainer`, are freed after the step."""

    class Trainer:
        def __init__(self, model, batch):
            self.trainer = self
            self.output = model(torch.randn(batch * 16, 64)).detach()

    program = Program()

    def step(batch):
        program.kept["trainer"] = Trainer(program.model, batch)

    result = ipygpumem.fit(step, range(1, 200), most=0.0001)
    assert (result.refusal, result.error) == ("", 0)
    for size in (8, 180):
        for _ in range(3):
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            step(size)
        assert result.predict(size) == torch.cuda.max_memory_allocated()


def test_optimizer_that_each_step_creates(allocations):
    """The computed state of an optimizer, as of a `Trainer` that each step creates, is freed with the optimizer."""
    program = Program()

    def step(batch):
        program.model(torch.randn(batch, 64)).sum().backward()
        program.kept["optimizer"] = torch.optim.Adam(program.model.parameters(), foreach=True)
        program.kept["optimizer"].step()
        program.model.zero_grad()

    result = ipygpumem.fit(step, range(1, 200), most=0.0001)
    assert (result.refusal, result.error) == ("", 0)
    assert result.predict(100) == measured(step, 100)
