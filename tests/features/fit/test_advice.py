"""Predicted changes of steps, compared with steps in which these changes were made."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import ipygpumem
from fakes.allocation_mode import AllocationMode
from ipygpumem import OptionError
from ipygpumem.features.fit.advice.contexts import AUTOCAST, OFFLOADING
from ipygpumem.features.fit.advice.model_blocks import ModelBlockName, block_expressions
from ipygpumem.features.fit.advice.observations import StepObservations
from ipygpumem.features.fit.step_runner import StepRunner
from ipygpumem.snapshot.scaling.edits import ModuleCall

SIZE = 32


@pytest.fixture(autouse=True)
def no_contexts(allocations, monkeypatch):
    monkeypatch.setattr(StepRunner, "contexts", ())


@pytest.fixture
def offloading(monkeypatch):
    """Replace ``save_on_cpu`` by hooks that store tensors outside the fake GPU."""

    def save_on_cpu(pin_memory):
        assert pin_memory

        def pack(tensor):
            with AllocationMode.paused():
                return tensor.detach().clone()

        return torch.autograd.graph.saved_tensors_hooks(pack, torch.clone)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", save_on_cpu)


@pytest.fixture
def contexts(offloading, monkeypatch):
    """Predict changes by context managers, with autocast for host tensors."""
    autocast = torch.autocast
    monkeypatch.setattr(StepRunner, "contexts", (AUTOCAST, OFFLOADING))
    monkeypatch.setattr(torch, "autocast", lambda _, **options: autocast("cpu", **options))


def test_durations_of_blocks():
    """The first block of a type, which loads kernels, counts like the other blocks of this type."""
    none = np.zeros(0, np.int64)
    durations = [(0, 25.0), (0, 5.0), (1, 1.0), (2, 2.0), (3, 1.5), (4, 40.0)]
    calls = tuple(ModuleCall(block, 0, 0, 0, none, none, False, value) for block, value in durations)
    names = [ModelBlockName("model", f"layers.{number}", 5, False, "Layer") for number in range(5)]
    names[4] = dataclasses.replace(names[4], type="Head")
    observations = StepObservations(tuple(names), calls, seconds=100.0)
    assert observations.block_seconds == {0: 1.5, 1: 1.0, 2: 2.0, 3: 1.5, 4: 40.0}
    assert observations.step_seconds == 100 - 74.5 + 46
    assert StepObservations().step_seconds == 0


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = 0.5 * x  # only activation checkpointing saves the argument
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, blocks=3, width=32, words=64):
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(Block(width, 0.1 * (number % 2)) for number in range(blocks))

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class UNet(nn.Module):
    """A model without lists of modules, whose blocks end with an operation that saves its result."""

    def __init__(self):
        super().__init__()

        def block(inputs, outputs):
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

        self.down1, self.down2, self.up = block(3, 8), block(8, 16), block(16, 8)
        self.larger = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.larger(self.down2(functional.max_pool2d(a, 2)))
        return self.last(self.up(torch.cat([a, b], 1))).square().mean()


class Training:
    def __init__(self, model, make_input, optimizer=torch.optim.SGD, **options):
        self.model, self.make_input = model, make_input
        self.optimizer = optimizer(model.parameters(), **{"lr": 1e-3} | options)
        self.parts, self.autocast = 1, False

    def step(self, batch):
        self.optimizer.zero_grad()
        for _ in range(self.parts):
            with torch.autocast("cpu", enabled=self.autocast):
                loss = self.model(self.make_input(batch // self.parts))
            loss.backward()
            del loss
        self.optimizer.step()

    def measured(self, batch):
        """Return the peak of a step, which starts with the gradients of an earlier step."""
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        self.step(batch)
        return torch.cuda.max_memory_allocated()


def words(batch):
    return torch.randint(0, 64, (batch, 16))


def images(batch):
    return torch.randn(batch, 3, 16, 16)


def run_changed(training, change, size=SIZE):
    """Make a change as its code states, and return the peak of a step."""
    if change.kind == "checkpointing":
        exec(change.code, {"self": training})  # noqa: S102 (the code that is shown to users)
    elif change.kind == "accumulation":
        training.parts = int(change.name.split()[-2])
    try:
        return training.measured(size)
    finally:
        training.parts = 1
        for module in training.model.modules():
            vars(module).pop("forward", None)


@pytest.mark.parametrize(
    ("make", "inputs", "autocast", "runs"),
    [
        (Transformer, words, False, ["checkpoint 1 of 3 blocks", "accumulate gradients over 4 parts"]),
        (Transformer, words, True, ["checkpoint 3 of 3 blocks"]),
        (UNet, images, False, ["checkpoint 2 of 3 blocks"]),
    ],
)
def test_changes(make, inputs, autocast, runs):
    """The predictions of changes agree with runs of the changed step."""
    training = Training(make(), inputs)
    training.autocast = autocast
    training.step(2)
    result = ipygpumem.fit(training.step, range(1, 129), on="700 MiB", most=0.0003)
    advice = result.advice(SIZE)
    assert advice.current.allocated == result.predict(SIZE)
    names = [change.name for change in advice]
    assert names[:2] == [f"checkpoint {count} of 3 blocks" for count in (1, 2)]
    assert "accumulate gradients over 4 parts" in names
    for change in advice:
        assert change.allocated < 0.99 * advice.current.allocated or change.kind == "settings"
        assert change.largest >= advice.current.largest
        if change.name in runs:
            assert change.allocated == pytest.approx(run_changed(training, change), rel=0.02), change.name


def test_largest_size():
    """The changed step needs the memory that is available."""
    training = Training(Layers(), lambda batch: torch.randn(batch, 128))
    training.step(2)
    result = ipygpumem.fit(training.step, range(1, 60_000), on="660 MiB", most=0.0001)
    advice = result.advice()
    assert advice.size == (result.largest,)
    change = next(change for change in advice if change.name == "accumulate gradients over 4 parts")
    assert 3 * result.largest < change.largest
    torch.cuda.empty_cache()
    run_changed(training, change, change.largest)
    assert 0.8 * result.capacity < torch.cuda.max_memory_reserved() <= result.capacity


class Layers(nn.Module):
    """A model whose peak is in the optimizer's update at small sizes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3)))

    def forward(self, x):
        return self.layers(x).square().mean()


def test_optimizers():
    """Other options of an optimizer are computed on fake parameters. They save nothing if the peak is elsewhere."""
    training = Training(Layers(), lambda batch: torch.randn(batch, 128), torch.optim.AdamW, foreach=True)
    training.step(2)
    result = ipygpumem.fit(training.step, range(1, 129), most=0.00005)
    advice = result.advice(2)
    changes = {change.name: change for change in advice if change.kind == "optimizer"}
    assert set(changes) == {"AdamW(foreach=False)", "AdamW(fused=True)", "AdamW with 8-bit state"}
    for name, options in (("foreach=False", {"foreach": False}), ("fused=True", {"fused": True})):
        other = torch.optim.AdamW(training.model.parameters(), lr=1e-3, **options)
        other.load_state_dict(training.optimizer.state_dict())
        other.param_groups[0].update({"foreach": False, "fused": False} | options)
        training.optimizer = other
        gc.collect()
        training.step(2)
        assert changes[f"AdamW({name})"].allocated == training.measured(2)
        assert name in changes[f"AdamW({name})"].code
    small = 3 * 128 * 4 * 2
    saved = advice.current.allocated - changes["AdamW with 8-bit state"].allocated
    parameters = sum(parameter.nbytes for parameter in training.model.parameters())
    assert saved == pytest.approx(2 * (parameters - small) * (1 - 1 / 4 - 1 / 256) + parameters, rel=0.006)
    names = [change.name for change in result.advice(4000)]
    assert "AdamW(fused=True)" not in names
    assert "accumulate gradients over 8 parts" in names


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["h.0", "h.1", "h.2"], ["m.h"]),
        (["h.1", "h.2"], ["m.h[1:3]"]),
        (["h.0", "h.2"], ["[m.h[i] for i in (0, 2)]"]),
        (["h.2", "down", "up.0.mlp"], ["m.h[2:3]", '[m.down, m.get_submodule("up.0.mlp")]']),
    ],
)
def test_expressions(paths, expected):
    names = [ModelBlockName("m", path, 3 * path.startswith("h"), False, "Block") for path in paths]
    assert block_expressions(names) == expected


def test_gradients_that_are_kept():
    training = Training(Layers(), lambda batch: torch.randn(batch, 128))
    zero = training.optimizer.zero_grad
    training.optimizer.zero_grad = lambda: zero(set_to_none=False)
    training.step(2)
    advice = ipygpumem.fit(training.step, range(1, 129), most=0.00005).advice(256)
    change = next(change for change in advice if "set_to_none=True" in change.code)
    del training.optimizer.zero_grad
    training.step(2)
    training.optimizer.zero_grad()
    assert change.allocated == pytest.approx(training.measured(256), rel=0.02)


class LanguageModel(Transformer):
    """A model with a large output, whose loss is optionally computed in chunks."""

    def __init__(self):
        super().__init__(2, 32, 2000)
        self.chunks = 1

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        x, target = x.flatten(0, 1), ids.flatten()
        if self.chunks == 1:
            return functional.cross_entropy(self.head(x), target)

        def chunk_loss(x, target):
            return functional.cross_entropy(self.head(x), target, reduction="sum")

        parts = zip(x.chunk(self.chunks), target.chunk(self.chunks), strict=True)
        return sum(checkpoint(chunk_loss, *part, use_reentrant=False) for part in parts) / target.numel()


def test_loss_in_chunks():
    training = Training(LanguageModel(), words)
    training.step(2)
    advice = ipygpumem.fit(training.step, range(1, 129), most=0.0001).advice(SIZE)
    change = next(change for change in advice if change.kind == "loss")
    training.model.chunks = 8
    training.step(SIZE)
    assert change.allocated == pytest.approx(training.measured(SIZE), rel=0.02)
    assert advice.current.allocated > 2 * change.allocated


class UnhashableMeta(type):
    """A metaclass whose methods raise an exception."""

    def __eq__(cls, other):
        raise RuntimeError("comparison")

    def __hash__(cls):
        raise RuntimeError("hash")


class Unhashable(metaclass=UnhashableMeta):
    """A class whose instances cannot be members of a set of types."""


def test_variables_that_the_step_does_not_use(monkeypatch):
    training = Training(Layers(), lambda batch: torch.randn(batch, 128))
    training.step(2)
    monkeypatch.setitem(globals(), "outputs", [torch.zeros(1 << 20), torch.zeros(1 << 18)])
    monkeypatch.setitem(globals(), "weight", training.model.layers[0].weight)
    monkeypatch.setitem(globals(), "unhashable", Unhashable())
    result = ipygpumem.fit(lambda batch: training.step(batch) or Layers, range(1, 129), most=0.0002)
    change = next(change for change in result.advice(100) if change.kind == "variables")
    assert change.code == "del outputs"
    globals()["outputs"].clear()
    assert change.allocated == training.measured(100)


class TrainingInContext(Training):
    """Training whose forward pass runs in a context manager, as in the code that is shown to users."""

    code = "with torch.enable_grad():"

    def step(self, batch):
        self.optimizer.zero_grad()
        for _ in range(self.parts):
            with eval(self.code.partition("\n")[0][len("with ") : -1]):  # noqa: S307
                loss = self.model(self.make_input(batch // self.parts))
            loss.backward()
            del loss
        self.optimizer.step()


@pytest.fixture
def sizes_run(monkeypatch):
    """Return a list of the sizes at which steps have run."""
    result, run = [], StepRunner.run

    def counted(runner, size, **options):
        result.append(size)
        return run(runner, size, **options)

    monkeypatch.setattr(StepRunner, "run", counted)
    return result


def test_trials(contexts, sizes_run):
    """The step runs with activation checkpointing and in context managers, and is then as before."""
    training = TrainingInContext(Transformer(), words)
    training.step(2)
    training.model.gradient_checkpointing_enable = lambda *_: None  # as models of transformers
    backward, before = torch.autograd.backward, [parameter.clone() for parameter in training.model.parameters()]
    result = ipygpumem.fit(training.step, range(1, 129), most=0.00005, try_changes=True)
    size = max(sizes_run)
    checkpointed = [f"checkpoint {count} of 3 blocks" for count in (1, 2, 3)]
    assert [trial.name for trial in result.trials] == [*checkpointed, "bf16 autocast", "save_on_cpu"]
    assert [trial.size for trial in result.trials] == 3 * [size] + 2 * [(8,)]
    assert all(trial.error == 0 for trial in result.trials)
    assert result.trials[2].measured <= result.trials[0].measured < result.predict(*size)
    assert not any("forward" in vars(module) for module in training.model.modules())
    assert torch.autograd.backward is backward
    assert all(map(torch.equal, before, training.model.parameters()))
    sizes_run.clear()
    advice = result.advice(SIZE)
    assert not sizes_run, "the changes have been predicted"
    text = str(advice)
    assert 'self.model.gradient_checkpointing_enable({"use_reentrant": False})' in text
    assert text.count("for block in") == 1, "the code of one of these changes"
    assert "runs with changes" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["trials"][0]["size"] == list(size)
    for change in advice:
        if change.kind in {"precision", "offloading"}:
            training.code = change.code
            training.step(2)
            assert change.allocated == training.measured(SIZE)


def test_trials_that_fail(monkeypatch):
    """A step that cannot be recomputed fails only in the trials."""
    training = Training(UNet(), images)
    forward = UNet.forward

    def limited(model, x):
        if any("forward" in vars(module) for module in model.modules()):
            raise ValueError("no recomputation")
        return forward(model, x)

    monkeypatch.setattr(UNet, "forward", limited)
    result = ipygpumem.fit(training.step, range(1, 33), most=0.0001, try_changes=True)
    assert not result.trials
    assert not result.refusal
    assert "The step failed with the change 'checkpoint 3 of 3 blocks': no recomputation" in str(result)
    assert not any("forward" in vars(module) for module in training.model.modules())


def test_contexts_that_are_not_predicted(contexts, sizes_run, monkeypatch):
    training = TrainingInContext(Layers(), lambda batch: torch.randn(batch, 128))
    training.step(2)
    result = ipygpumem.fit(training.step, range(1, 129), most=0.0001)
    assert len(sizes_run) <= 6
    sizes_run.clear()

    def make_input(batch):
        if torch.is_autocast_enabled("cpu"):
            raise ValueError("no autocast on this system..")
        return torch.randn(batch, 128)

    training.make_input = make_input
    monkeypatch.setitem(globals(), "outputs", torch.zeros(1 << 16))
    failed, changed = result.advice(100).notes
    assert failed == "bf16 autocast is not predicted: the step failed: no autocast on this system."
    assert changed == (
        "save_on_cpu is not predicted: the size of existing tensors has changed since fit ran; run fit again."
    )
    assert result.advice(2).notes == (failed, changed)
    assert sizes_run == [(2,), (2,), (2,), (4,), (2,), (8,)], "the step runs once for all sizes"
    training.code, training.make_input = AUTOCAST.code, lambda batch: torch.randn(batch, 128)
    with monkeypatch.context() as patch:
        patch.setattr("ipygpumem.features.fit.advice.contexts._HOST_SHARE", 0)
        sizes_run.clear()
        assert not ipygpumem.fit(training.step, range(1, 129), most=0.0001).advice(100).notes
        assert len(sizes_run) <= 6, "the step uses autocast, and host memory is insufficient"
    result = ipygpumem.fit(training.step, range(1, 129), most=0.0001)
    reference = weakref.ref(training)
    del training
    gc.collect()
    assert reference() is None, "the result does not refer to the model"
    assert result.advice(100).notes == (
        "save_on_cpu is not predicted: the object of the method step no longer exists: keep a reference to it.",
    )


ESTIMATED = {
    "accumulate gradients over 4 parts": lambda training, _: setattr(training, "parts", 4),
    "bf16 autocast": lambda training, code: setattr(training, "code", code),
    "bf16 parameters": lambda training, _: training.model.to(torch.bfloat16),
    "checkpoint 1 of 1 block": lambda training, code: exec(code, {"self": training}),  # noqa: S102
}
"""Functions that change a step on tensors without data."""


def make_estimated():
    training = TrainingInContext(Layers(), None, torch.optim.AdamW)
    training.make_input = lambda batch: torch.randn(batch << 12, 128, dtype=training.model.layers[0].weight.dtype)
    return training


def test_estimated_changes(offloading):
    """Predictions without a GPU agree with estimates of the changed step. Durations are unknown."""
    training = make_estimated()

    def estimate(training):
        return ipygpumem.fit(training.step, range(1, 9), dry=True, device="1 GiB")

    advice = estimate(training).advice(8)
    changes = {change.name: change for change in advice}
    assert not advice.notes
    assert {change.added_time for change in advice} == {None}
    assert "added time" not in str(advice)
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}
    assert not training.optimizer.state
    for name, make_change in ESTIMATED.items():
        changed = make_estimated()
        make_change(changed, changes[name].code)
        assert changes[name].allocated == estimate(changed).predict(8), name
    del changed
    training.code = changes["save_on_cpu"].code
    training.step(2)
    workspaces = 2 * 8320 * 1024 + (1 << 20)
    assert changes["save_on_cpu"].allocated - workspaces == pytest.approx(training.measured(8), rel=0.0002)


def test_nothing_to_change():
    model = nn.Linear(64, 64)

    def step(batch):
        return model(torch.randn(batch, 64))

    def evaluate(batch):
        with torch.no_grad(), torch.autocast("cpu"):
            step(batch)

    result = ipygpumem.fit(step, range(1, 129), most=0.00001)
    assert [change.kind for change in result.advice()] in ([], ["settings"])
    model.to(torch.bfloat16)
    note = "No change was tried: activation checkpointing does not reduce the peak at size"
    assert note in str(ipygpumem.fit(evaluate, range(1, 129), most=0.00001, try_changes=True))
    with pytest.raises(OptionError, match="must have 1 value"):
        result.advice(1, 2)
    with pytest.raises(OptionError, match="cannot be predicted"):
        ipygpumem.fit(lambda batch: torch.randn(batch, torch.randint(1, 10_000, ()).item()), range(1, 65)).advice()


def test_two_variables():
    training = Training(Transformer(2), words)

    def step(batch, length):
        training.make_input = lambda batch: torch.randint(0, 64, (batch, length))
        training.step(batch)

    result = ipygpumem.fit(step, {"batch": range(1, 33), "length": range(4, 33)}, on="800 MiB", most=0.0001)
    assert result.advice().size == (32, 32)
    change = result.advice(16, 24).changes[1]
    exec(change.code, {"self": training})  # noqa: S102
    step(16, 24)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step(16, 24)
    assert torch.cuda.max_memory_allocated() == pytest.approx(change.allocated, rel=0.02)
