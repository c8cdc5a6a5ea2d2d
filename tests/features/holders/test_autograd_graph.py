"""Tensors that an autograd graph keeps alive are listed under the tensor with the graph."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fakes.builds import needs_saved_tensors
from ipygpumem.sources.storages import StorageInspector


@needs_saved_tensors
def test_activations_belong_to_tensor_with_graph(search):
    x = search.parameter()
    losses = [x.exp().sum() for _ in range(2)]
    storages = search.storages({"losses": losses, "x": x})
    assert sorted((storage.info.name, storage.info.graph, storage.info.kind) for storage in storages) == [
        ("losses[0]", True, "activation"),
        ("losses[1]", True, "activation"),
        ("x", False, "plain"),
    ]


def test_named_activation(search):
    x = search.parameter()
    y = x.exp()
    storages = search.storages({"loss": y.sum(), "y": y, "x": x})
    assert {storage.info.name: storage.info.graph for storage in storages} == {"x": False, "y": False}


@needs_saved_tensors
def test_no_hook_is_called_and_no_checkpoint_is_recomputed(search):
    calls = []

    def unpack(packed):
        calls.append("unpack")
        return packed

    def block(x):
        calls.append("forward")
        return x.exp().sin()

    x = search.parameter()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = x.exp().sum()
    checkpointed = checkpoint(block, x, use_reentrant=False).sum()
    before = list(calls)
    storages = search.storages({"loss": loss, "checkpointed": checkpointed, "x": x})
    assert {storage.info.name for storage in storages} == {"loss", "x"}
    assert calls == before
    loss.backward()
    assert "unpack" in calls, "the hook works without the search"


def checkpointed(x):
    return checkpoint(lambda y: y.exp().sin(), x * 1, use_reentrant=False).sum()


def offloaded(x):
    store = {}

    def pack(tensor):
        store[len(store)] = tensor.clone()
        return len(store) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda key: store[key]):
        return x.exp().sum()


class Offload:
    def __init__(self):
        self.tensors = []

    def pack(self, tensor):
        self.tensors.append(tensor.clone())
        return len(self.tensors) - 1

    def unpack(self, index):
        return self.tensors[index]


def offloaded_by_a_method(x):
    hooks = Offload()
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        return x.exp().sum()


@needs_saved_tensors
@pytest.mark.parametrize("make", [checkpointed, offloaded, offloaded_by_a_method])
def test_tensors_saved_by_hooks_belong_to_the_loss(search, make):
    storages = search.storages({"losses": [make(search.parameter()) for _ in range(2)]})
    assert sorted({(storage.info.name, storage.place, storage.info.graph) for storage in storages}) == [
        ("losses[0]", "variable", True),
        ("losses[1]", "variable", True),
    ]


def test_torch_without_hook_introspection_gives_incomplete_results():
    saved_tensor = type("SavedTensor", (), {"data": 1})
    node = type("Node", (), {"_raw_saved_self": saved_tensor()})
    assert StorageInspector(torch).saved(node()) == ([1], True)


@needs_saved_tensors
def test_tensors_saved_by_custom_functions(search):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.extra = search.tensor(1)
            ctx.save_for_backward(x * 2)
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            return grad

    variables = {"y": Double.apply(search.parameter())}
    assert search.storage(variables, extra=1).holder == "y"
    assert {storage.holder for storage in search.storages(variables)} == {"y"}
