"""Storages of tensors that are wrapped by tensor subclasses have a kind and a name."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch

from ipygpumem.features.holders.reference_graph import SearchRoot
from ipygpumem.features.holders.search import search_holders

SIZE = 0
"""Number of elements of the tensors, which is different in each test."""
_sizes = itertools.count(50_048, 128)


@pytest.fixture(autouse=True)
def own_size():
    global SIZE  # noqa: PLW0603
    SIZE = next(_sizes)


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        assert function is torch.ops.aten.detach.default, function  # called by Parameter
        return cls(arguments[0].inner)


def kinds_by_name(space, nbytes=None):
    result = search_holders(
        [SearchRoot("", space, "variable", "names")], torch, lambda name: name == "cpu", threads=False
    )
    assert result.complete
    return {
        storage.info.name: storage.info.kind
        for storage in result.storages
        if storage.location.size == (nbytes or SIZE * 4)
    }


def big(**options):
    return torch.ones(SIZE, **options)


def test_inner_tensor_of_a_parameter():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(big()))
    module.register_buffer("buffer", Wrapper(big()))
    assert kinds_by_name({"module": module}) == {"module.weight.inner": "parameter", "module.buffer.inner": "buffer"}


def test_nested_subclasses():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(Wrapper(big())))
    assert kinds_by_name({"module": module}) == {"module.weight.inner.inner": "parameter"}


def test_optimizer_state():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(big()))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer.state[module.weight]["momentum_buffer"] = Wrapper(big())
    assert kinds_by_name({"module": module, "optimizer": optimizer}) == {
        "module.weight.inner": "parameter",
        'optimizer.state[module.weight]["momentum_buffer"].inner': "optimizer state",
    }


def test_tensor_with_several_owners():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapper(big()))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.weight.kept = optimizer.state[module.weight]["s"] = Wrapper(big())
    kinds = kinds_by_name({"module": module, "optimizer": optimizer})
    assert sorted(kinds.values()) == ["optimizer state", "parameter"]


def test_class_that_lists_its_inner_tensors():
    calls = []

    class Named(Wrapper):
        def __tensor_flatten__(self):
            calls.append(self)
            return ["inner"], None

    class Listed(Wrapper):
        tensor_data_names = ["inner"]  # noqa: RUF012 (as in torchao)

    module = torch.nn.Module()
    for name, kind in (("one", Named), ("two", Listed)):
        setattr(module, name, torch.nn.Parameter(kind(big())))
        getattr(module, name).main_grad = big()
    assert kinds_by_name({"module": module}) == {
        "module.one.inner": "parameter",
        "module.one.main_grad": "plain",
        "module.two.inner": "parameter",
        "module.two.main_grad": "plain",
    }
    assert calls == []


def test_attributes_of_the_class_are_not_read():
    calls = []

    class Meta(type(torch.Tensor)):
        def __getattribute__(cls, name):
            calls.append(name)
            return super().__getattribute__(name)

    class Subclass(Wrapper, metaclass=Meta):
        pass

    x = Subclass(big())
    calls.clear()
    assert kinds_by_name({"x": x}) == {"x.inner": "plain"}
    assert calls == []


def test_cycles_and_deep_nesting():
    x = Wrapper(big())
    x.me = x
    empty = Wrapper(torch.ones(3, device="meta"))
    empty.me = empty
    nest = x
    for _ in range(2000):
        nest = Wrapper(nest)
    assert kinds_by_name({"x": x, "empty": empty, "nest": nest}) == {"x.inner": "plain"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")
@pytest.mark.skipif(not hasattr(torch.distributed, "tensor"), reason="PyTorch 2.6 added fully_shard")
def test_distributed_modules():
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
        assert kinds_by_name({"batch": batch, "model": model, "optimizer": optimizer}) == {
            "batch._local_tensor": "plain",
            "model.weight._local_tensor": "parameter",
            "model.weight.grad._local_tensor": "gradient",
            'optimizer.state[model.weight]["exp_avg"]._local_tensor': "optimizer state",
            'optimizer.state[model.weight]["exp_avg_sq"]._local_tensor': "optimizer state",
        }
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
@pytest.mark.skipif(not hasattr(torch, "int1"), reason="torchao needs data types that PyTorch 2.6 added, such as int1")
def test_modules_quantized_by_torchao():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(4 * 128, SIZE // 128, bias=False)).bfloat16()
    quantize_(model, Int8WeightOnlyConfig())
    assert kinds_by_name({"model": model}, 4 * 128 * (SIZE // 128)) == {"model[0].weight.qdata": "parameter"}
