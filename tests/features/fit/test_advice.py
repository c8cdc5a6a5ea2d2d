"""Predicted changes of steps, compared with steps in which these changes were made."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

import ipygpumem
from ipygpumem.sources.storages import StorageInspector

SIZE = 96


@pytest.fixture(autouse=True)
def located(allocations, monkeypatch):
    monkeypatch.setattr(StorageInspector, "storage_locations", lambda _, *args: allocations.storage_locations(*args))


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, blocks=4, width=32, words=64):
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


def run_changed(training, change):
    """Make a change as its code states, and return the peak of a step."""
    if change.kind == "checkpointing":
        exec(change.code, {"self": training})  # noqa: S102 (the code that users are told to run)
    elif change.kind == "accumulation":
        training.parts = int(change.name.split()[-2])
    try:
        return training.measured(SIZE)
    finally:
        training.parts = 1
        for module in training.model.modules():
            vars(module).pop("forward", None)


@pytest.mark.parametrize(
    ("make", "inputs", "autocast", "blocks"),
    [(Transformer, words, False, 4), (Transformer, words, True, 4), (UNet, images, False, 3)],
)
def test_changes(make, inputs, autocast, blocks):
    """The predictions of all changes agree with runs of the changed step."""
    training = Training(make(), inputs)
    training.autocast = autocast
    training.step(2)
    result = ipygpumem.fit(training.step, range(1, 4097), most=0.00005)
    advice = result.advice(SIZE)
    assert advice.current.allocated == result.predict(SIZE)
    names = [change.name for change in advice]
    assert names[:2] == [f"checkpoint {count} of {blocks} blocks" for count in (1, 2)]
    assert "accumulate gradients over 4 parts" in names
    for change in advice:
        assert change.allocated < 0.99 * advice.current.allocated or change.kind == "settings"
        if change.kind in {"checkpointing", "accumulation"}:
            assert change.allocated == pytest.approx(run_changed(training, change), rel=0.02), change.name
            assert change.largest >= advice.current.largest
