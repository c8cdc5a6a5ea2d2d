"""Tensors that are made of tensors: whose they are, and what they are called."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch

from ipygpumem.features.holders.roots import Root
from ipygpumem.features.holders.search import search_holders

SIZE = 0
"""Elements of the tensors that a test looks for: those of no other test have as many."""
_sizes = itertools.count(50_048, 128)


@pytest.fixture(autouse=True)
def own_size():
    global SIZE  # noqa: PLW0603
    SIZE = next(_sizes)


class Wrapper(torch.Tensor):
    """Without memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        assert function is torch.ops.aten.detach.default, function  # of which parameters are made
        return cls(arguments[0].inner)


def look(space, nbytes=None):
    found = search_holders([Root("", space, "variable", "names")], torch, lambda name: name == "cpu", threads=False)
    assert found.complete
    return {one.name: one.kind for one in found.storages if one.memory.size == (nbytes or SIZE * 4)}


def big(**options):
    return torch.ones(SIZE, **options)


def test_what_a_parameter_is_made_of_is_a_parameter():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(big()))
    module.register_buffer("kept", Wrapper(big()))
    assert look({"module": module}) == {"module.weight.inner": "parameter", "module.kept.inner": "buffer"}


def test_a_wrapper_in_a_wrapper():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(Wrapper(big())))
    assert look({"module": module}) == {"module.weight.inner.inner": "parameter"}


def test_what_an_optimizer_keeps_of_it_is_named_by_it():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(big()))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer.state[module.weight]["momentum_buffer"] = Wrapper(big())
    assert look({"module": module, "optimizer": optimizer}) == {
        "module.weight.inner": "parameter",
        'optimizer.state[module.weight]["momentum_buffer"].inner': "optimizer state",
    }


def test_what_is_somebodys_by_itself_stays_so():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(big()))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.weight.kept = optimizer.state[module.weight]["s"] = Wrapper(big())
    found = look({"module": module, "optimizer": optimizer})
    assert sorted(found.values()) == ["optimizer state", "parameter"]


def test_a_class_names_what_it_is_made_of():
    calls = []

    class Named(Wrapper):
        def __tensor_flatten__(self):
            calls.append(self)
            return ["inner"], None

    class Listed(Wrapper):
        tensor_data_names = ["inner"]  # noqa: RUF012 (as torchao has it)

    module = torch.nn.Module()
    for name, kind in (("one", Named), ("two", Listed)):
        setattr(module, name, torch.nn.Parameter(kind(big())))
        getattr(module, name).main_grad = big()
    assert look({"module": module}) == {
        "module.one.inner": "parameter",
        "module.one.main_grad": "plain",
        "module.two.inner": "parameter",
        "module.two.main_grad": "plain",
    }
    assert calls == []


def test_its_class_is_not_asked():
    calls = []

    class Meta(type(torch.Tensor)):
        def __getattribute__(cls, name):
            calls.append(name)
            return super().__getattribute__(name)

    class Odd(Wrapper, metaclass=Meta):
        pass

    x = Odd(big())
    calls.clear()
    assert look({"x": x}) == {"x.inner": "plain"}
    assert calls == []


def test_one_that_holds_itself_and_one_that_holds_nothing():
    x = Wrapper(big())
    x.me = x
    empty = Wrapper(torch.ones(3, device="meta"))
    empty.me = empty
    nest = x
    for _ in range(2000):
        nest = Wrapper(nest)
    assert look({"x": x, "empty": empty, "nest": nest}) == {"x.inner": "plain"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="a torch without distributed")
def test_modules_that_are_distributed():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        batch = distribute_tensor(torch.ones(1, SIZE), mesh, [Shard(0)])
        model = torch.nn.Linear(SIZE, 1, bias=False)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, SIZE)).sum().backward()
        optimizer.step()
        assert look({"batch": batch, "model": model, "optimizer": optimizer}) == {
            "batch._local_tensor": "plain",
            "model.weight._local_tensor": "parameter",
            "model.weight.grad._local_tensor": "gradient",
            'optimizer.state[model.weight]["exp_avg"]._local_tensor': "optimizer state",
            'optimizer.state[model.weight]["exp_avg_sq"]._local_tensor': "optimizer state",
        }
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="no torchao")
def test_modules_that_torchao_quantized():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(4 * 128, SIZE // 128, bias=False)).bfloat16()
    quantize_(model, Int8WeightOnlyConfig())
    assert look({"model": model}, 4 * 128 * (SIZE // 128)) == {"model[0].weight.qdata": "parameter"}
