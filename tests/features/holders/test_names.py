"""Tensors are named after all kinds of Python objects that refer to them."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import re
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ipygpumem.features.holders.search import NO_NAME


class Box:
    def __init__(self, value):
        self.value = value


class Slots:
    __slots__ = ("empty", "value")

    def __init__(self, value):
        self.value = value


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Data:
    value: object


class Holder:
    def __init__(self, value):
        self.value = value

    def method(self):
        return self


def generator(value):
    yield 1
    yield value


def started_generator(lazy):
    lazy.send(None)
    return lazy


def closure(value):
    def inner():
        return value

    return inner


def default(value):
    def inner(parameter=value):
        return parameter

    return inner


def cached(value):
    values = [value]

    @functools.lru_cache
    def load():
        return values.pop()

    load()
    return load


def module(value):
    parent = torch.nn.Module()
    parent.weight = torch.nn.Parameter(value)
    return parent


def nested_modules(value):
    parent = torch.nn.Module()
    parent.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), module(value)])
    return parent


MAKERS = {
    "x": lambda tensor: tensor,
    "x[1]": lambda tensor: [0, tensor],
    "x[0][0]": lambda tensor: ((tensor,),),
    'x["image"]': lambda tensor: {"image": tensor},
    "x[(1, 'a')]": lambda tensor: {(1, "a"): tensor},
    "x[<Box>]": lambda tensor: {Box(0): tensor},
    "x (key)": lambda tensor: {tensor: 1},
    "x.value": Box,
    "x.value.value[2]": lambda tensor: Box(Slots([0, 0, tensor])),
    "x.second": lambda tensor: Pair(0, tensor),
    "x[0].value": lambda tensor: collections.deque([Data(tensor)]),
    "x{...}": lambda tensor: {tensor},
    "x (local value)": lambda tensor: started_generator(generator(tensor)),
    "x (closure value)": closure,
    "x (default parameter)": default,
    "x (partial)[0]": lambda tensor: functools.partial(print, tensor),
    "x (lru_cache)": cached,
    "x.__self__.value": lambda tensor: Holder(tensor).method,
    "x.table": lambda tensor: type("Config", (), {"table": tensor}),
    "x.weight": module,
    "x.layers[1].weight": nested_modules,
}


@pytest.mark.parametrize("name", MAKERS)
def test_reference_names(search, name):
    storage = search.storage({"x": MAKERS[name](search.tensor())})
    assert storage.info.name == name
    assert (storage.holder, storage.place, storage.info.places) == ("x", "variable", ("variable",))
    if name != "x (local value)" or sys.version_info >= (3, 11):  # Python 3.10 also keeps a dict with the frame
        assert storage.info.also == ()
    assert storage.info.tensor == f"float32 [{search.elements}]"


def test_storage_is_listed_once_with_all_names(search):
    x = search.tensor()
    storage = search.storage({"x": x, "views": [x[5:], x.view(1, -1)], "same": x})
    assert storage.info.name == "x"
    assert set(storage.info.also) == {"same", "views[0]", "views[1]"}


def test_view_that_keeps_whole_storage_alive(search):
    storage = search.storage({"small": search.tensor()[:2]})
    assert (storage.info.name, storage.info.view) == ("small", 8)


def test_storage_without_tensor(search):
    assert search.storage({"s": search.tensor().untyped_storage()}).info.name == "s"


@pytest.mark.parametrize("count", [1, 31, 32, 33, 200])
def test_few_and_many_tensors_give_equal_results(search, count):
    tensors = [search.tensor() for _ in range(count)]
    storages = search.storages({"rows": [{"x": tensor} for tensor in tensors], "again": tensors})
    assert sorted(storage.info.name for storage in storages) == sorted(f"again[{i}]" for i in range(count))
    other_names = {name for storage in storages for name in storage.info.also}
    assert other_names == {f'rows[{i}]["x"]' for i in range(count)}


def test_kinds_of_tensors_in_modules_and_optimizers(search):
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(search.tensor())
    model.register_buffer("mean", search.tensor(1))
    optimizer = torch.optim.AdamW(model.parameters())
    (model.weight * model.mean[1:]).sum().backward()
    optimizer.step()
    variables = {"optimizer": optimizer, "parameters": list(model.parameters()), "model": model}
    kinds = {
        storage.info.name: storage.info.kind for extra in (0, 1) for storage in search.storages(variables, extra=extra)
    }
    assert kinds == {
        "model.weight": "parameter",
        "model.mean": "buffer",
        "model.weight.grad": "gradient",
        'optimizer.state[model.weight]["exp_avg"]': "optimizer state",
        'optimizer.state[model.weight]["exp_avg_sq"]': "optimizer state",
    }


def test_parameters_held_only_by_optimizer(search):
    optimizer = torch.optim.SGD([torch.nn.Parameter(search.tensor())])
    storage = search.storage({"optimizer": optimizer})
    assert (storage.info.name, storage.info.kind) == ('optimizer.param_groups[0]["params"][0]', "parameter")


def test_state_of_parameter_held_only_by_optimizer(search):
    optimizer = torch.optim.Adam([torch.nn.Parameter(search.tensor())])
    optimizer.param_groups[0]["params"][0].grad = search.tensor()
    optimizer.step()
    names = {storage.info.name for storage in search.storages({"o": optimizer})}
    assert {'o.param_groups[0]["params"][0]', 'o.state[o.param_groups[0]["params"][0]]["exp_avg"]'} < names
    assert not any(name.startswith("o.state (key)") for name in names)


def test_enum_member(search):
    assert search.storage({"Kind": enum.Enum("Kind", {"A": search.tensor()})}).info.name == "Kind.A._value_"


def test_long_and_quoted_keys(search):
    variables = {"x": {'say "hi"\n': search.tensor(), "y" * 200: search.tensor(1)}}
    assert search.storage(variables).info.name == "x['say \"hi\"\\n']"
    assert len(search.storage(variables, extra=1).info.name) < 50


def test_self_referencing_list(search):
    x = [search.tensor()]
    x.append(x)
    assert search.storage({"x": x}).info.name == "x[0]"


def test_only_first_of_several_shortened_names_is_shown(search):
    nested = [search.tensor()]
    for _ in range(100):
        nested = [nested, nested]
    storage = search.storage({"x": nested})
    assert (storage.info.name, storage.info.also) == ("x...[0][0][0][0]", ())


def linked(count, value):
    link = {"value": value}
    for _ in range(count):
        link = {"next": link}
    return link


def test_long_reference_chain_is_followed_to_its_end(search):
    storage = search.storage({"chain": linked(5_000, search.tensor())})
    assert re.fullmatch(r'chain\.\.\.(\["next"\])+\["value"\]', storage.info.name)


def test_deeply_nested_list(search):
    x = search.tensor()
    for _ in range(5_000):
        x = [x]
    storage = search.storage({"x": x})
    assert storage.holder == "x"
    assert storage.info.name.startswith("x...") and len(storage.info.name) < 100
    while type(x) is list:  # deallocated step by step, because the interpreter would recurse
        x = x[0]


# Objects that the garbage collector does not track: NumPy arrays and objects that only they refer to


def structured(value):
    array = np.zeros(3, dtype=[("step", int), ("loss", object)])
    array[2]["loss"] = value
    return array


def object_array(value, shape, index):
    array = np.empty(shape, object)
    array[index] = value
    return array


class CodeRuns:
    enabled = False


class OverridingArray(np.ndarray):
    def __array_finalize__(self, other):
        if CodeRuns.enabled:
            raise SystemExit

    def __iter__(self):
        raise SystemExit

    __getitem__ = __len__ = tolist = __iter__
    size = ndim = dtype = base = property(__iter__)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: object_array(value, 4, 2), "x[2]"),
        (lambda value: object_array([value], (2, 3), (1, 0)), "x[1, 0][0]"),
        (lambda value: [object_array({"a": value}, (), ())], 'x[0][()]["a"]'),
        (structured, 'x[2]["loss"]'),
        (lambda value: object_array(object_array(Box(value), 2, 1), 3, 0), "x[0][1].value"),
        (lambda value: object_array(value, 4, 2)[3:], "x.base[2]"),
        (lambda value: object_array(value, 4, 2).view(OverridingArray), "x[2]"),
    ],
)
def test_tensor_in_object_array(search, monkeypatch, make, name):
    variables = {"x": make(types.SimpleNamespace(tensor=search.tensor()))}
    monkeypatch.setattr(CodeRuns, "enabled", True)
    assert search.storage(variables).info.name == f"{name}.tensor"


SHARING = {
    "numpy": (lambda tensor: tensor.numpy(), "x"),
    "view": (lambda tensor: [tensor.numpy()[1:].reshape(4, -1)[1:]], "x[0]"),
    "in an array": (lambda tensor: object_array(tensor.numpy(), (2,), (1,)), "x[1]"),
    "memoryview": (lambda tensor: memoryview(tensor.numpy()), "x"),
    "asarray": (lambda tensor: {"a": np.asarray(tensor)}, 'x["a"]'),
}


@pytest.mark.parametrize(("make", "name"), SHARING.values(), ids=SHARING)
def test_array_sharing_memory_with_tensor(search, make, name):
    storage = search.storage({"x": make(search.tensor())})
    assert (storage.info.name, storage.place) == (name, "variable")


def test_array_referenced_only_by_c_object(search):
    iterator = iter(object_array(types.SimpleNamespace(tensor=search.tensor()), 2, 1))
    assert search.storage({}).holder == NO_NAME
    del iterator


# Classes without a name, and thin wrappers


def local_class(value):
    class Config:
        inner = type("Inner", (), {"value": value})

    return Config


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: local_class(value)(), "x.__class__.inner.value"),
        (lambda value: (1, local_class(value)), "x[1].inner.value"),
        (lambda value: type("Sub", (local_class(value),), {}), "x (base Config).inner.value"),
        (lambda value: type("Outer", (), {"Nested": type("Nested", (), {"value": value})}), "x.Nested.value"),
        (lambda value: types.MappingProxyType({"a": value}), 'x["a"]'),
        (lambda value: types.SimpleNamespace(a=value), "x.a"),
        (lambda value: staticmethod(default(value)), "x (default parameter)"),
        (lambda value: property(default(value)), "x (default parameter)"),
    ],
)
def test_tensor_behind_class_or_wrapper(search, make, name):
    assert search.storage({"x": make(search.tensor())}).info.name == name


def test_class_is_named_after_one_of_many_instances(search):
    cls = local_class(search.tensor())
    variables = {"many": [cls() for _ in range(2000)]}
    del cls
    assert re.fullmatch(r"many\[\d+\]\.__class__\.inner\.value", search.storage(variables).info.name)


def test_default_argument_is_named_by_parameter(search):
    loss = (torch.ones(4, requires_grad=True) * 2).sum()
    loss.grad_fn.register_hook(default(search.tensor()))  # the dict of hooks belongs to a C++ object
    storage = search.storage({"loss": loss})
    assert storage.holder == NO_NAME
    assert re.fullmatch(r"<OrderedDict>\[\d+\] \(default parameter\)", storage.info.name)
