"""The search reads all objects in Python's memory only if the user's variables do not account for the memory."""

from __future__ import annotations

import collections
import functools
import gc
import random
import re
import sys
import time
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes.builds import needs_saved_tensors
from ipygpumem.features.holders import tracked_objects
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.reference_graph import SearchRoot

MIB = 1 << 20
NOT_FOUND = "not found within the limits of the search"
NOT_REACHABLE = "not reachable from Python: autograd graphs, C++ objects"
NOT_SEARCHED = "less than 1%, not searched: use --all"


def ones(nbytes):
    return torch.ones(nbytes, dtype=torch.uint8, device="cuda")


def find(variables, **options):
    return holders([SearchRoot("", variables, "variable", "names")], **options)


def names(result):
    return [holder.name for holder in result.holders]


def remainders(result):
    return {part.label: part.amount for part in result.total("cuda:0").rest}


@pytest.fixture
def heap_searches(monkeypatch):
    """Return a list to which each call of `gc.get_objects` adds an element."""
    gc.collect()  # tensors in reference cycles of earlier tests would be unknown tensors
    searches, get_objects = [], gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or get_objects())
    return searches


@pytest.fixture
def library(monkeypatch):
    module = types.ModuleType("zz_library")
    module.__file__ = str(Path(torch.__file__).with_name("zz_library.py"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


# random object graphs


class Plain:
    def __init__(self, *values):
        for i, value in enumerate(values):
            setattr(self, f"a{i}", value)


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self, first, second=None):
        self.first, self.second = first, second


class Silent:
    """An object whose methods must not be called."""

    def __getattribute__(self, name):
        raise SystemExit

    __eq__ = __hash__ = __repr__ = __len__ = __iter__ = __bool__ = __getattribute__


def silent(value):
    obj = Silent()
    object.__setattr__(obj, "value", value)
    return obj


def closure(value):
    return lambda: value


def waiting(value):
    def generate():
        yield value

    generator = generate()
    next(generator)
    return generator


def object_array(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def module_of(value):
    parent = torch.nn.Module()
    parent.child = torch.nn.Module()
    parent.child.kept = [value]
    return parent


MAKERS = [
    lambda *values: list(values),
    lambda *values: values,
    lambda *values: {f"k{i}": value for i, value in enumerate(values)},
    lambda *values: collections.deque(values),
    Plain,
    lambda *values: Slotted(*values[:2]),
    lambda *values: [silent(value) for value in values],
    lambda *values: closure(values[0]),
    lambda *values: functools.partial(print, *values),
    lambda *values: waiting(values),
    lambda *values: object_array(*(types.SimpleNamespace(value=value) for value in values)),
    lambda *values: type("Config", (), {"values": list(values)}),
    lambda *values: type("Config", (), {"values": list(values)})(),
    lambda *values: module_of(values[0]),
    lambda *values: types.MappingProxyType({"a": values[0]}),
    lambda *values: weakref.WeakValueDictionary({"a": Plain(*values)}),
]


def random_graph(search, seed):
    """Return variables that refer to tensors in random ways, and a list of objects to which only a library refers."""
    choice = random.Random(seed)
    weight = torch.nn.Parameter(search.tensor())
    loss = (weight * search.tensor()).exp().sum()
    loss.backward(retain_graph=True)
    objects = [weight, loss, weight.detach()[3:], *(search.tensor() for _ in range(4))]
    for _ in range(25):
        objects.append(choice.choice(MAKERS)(*choice.choices(objects, k=choice.randint(1, 3))))
    cycle = [choice.choice(objects)]
    cycle.append(cycle)
    objects.append(cycle)
    chosen = choice.sample(range(len(objects)), 5)
    return {f"v{i}": objects[i] for i in chosen}, [objects[choice.randrange(len(objects))], search.tensor()]


@pytest.mark.parametrize("seed", range(12))
def test_both_searches_agree_on_what_variables_refer_to(search, library, seed):
    variables, library.cache = random_graph(search, seed)
    cache = SearchRoot("zz_library.", vars(library), "module", "names")
    everywhere = search.storages(variables, cache)  # without distant roots, this is the only search
    distant = [cache._replace(distant=True), *search.distant_roots(__name__, "zz_library")]
    near = search.storages(variables, *distant, unnamed_share=lambda _: 0.0)

    def facts(storages, *, names=False):
        return {
            (info.kind, info.graph, storage.location, len(re.findall(r"[\[.(]", info.name)) if names else 0)
            for storage in storages
            for info in (storage.info,)
            if storage.place == "variable"
        }

    assert facts(near) == facts(everywhere)
    assert {storage.info.places for storage in near} == {("variable",)}
    # if other objects have no name, instances name their classes, so that some paths are shorter
    if {place for storage in everywhere for place in storage.info.places} <= {"variable", "module"}:
        assert facts(near, names=True) == facts(everywhere, names=True)  # of several shortest names, either is correct


def test_gradients_are_found_through_their_parameters(search):
    weight = search.parameter()
    (weight * 2).sum().backward()
    weight.grad.note = search.tensor(extra=1)
    weight.requires_grad_(False)
    options = {"unnamed_share": lambda _: 0.0}
    near = search.storages({"w": weight}, *search.distant_roots(__name__), **options)
    assert {storage.info.name: storage.info.kind for storage in near} == {"w": "plain", "w.grad": "gradient"}
    assert search.storage({"w": weight}, *search.distant_roots(__name__), extra=1, **options).info.name == "w.grad.note"


def test_fast_search_keeps_no_tensor_alive(search):
    gc.collect()
    gc.disable()
    try:
        x = search.tensor()
        reference = weakref.ref(x)
        assert search.storages({"x": [x]}, *search.distant_roots(__name__), threads=True, unnamed_share=lambda _: 0.0)
        del x
        assert reference() is None
    finally:
        gc.enable()


class KeepingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = [torch.ones(100 + i) for i in range(5)]
        return x * 1


def lists_of_tensors(search):
    tensors = [[search.tensor(i) for i in range(5)] for _ in range(10)]
    weight, optimizer = search.parameter(), torch.optim.SGD([search.parameter()])
    optimizer.state[optimizer.param_groups[0]["params"][0]]["history"] = [search.tensor() for _ in range(5)]
    tensors[3][1].note = [search.tensor()]
    return {
        "plain": tensors[0],
        "first": tensors[1],
        "second": tensors[1],
        "x": tensors[2][1],
        "named": tensors[2],
        "attributes": tuple(tensors[3]),
        "storage": tensors[4][0].untyped_storage(),
        "alias": torch.empty(0).set_(tensors[4][1]),
        "shared": tensors[4],
        "optimizer": optimizer,
        "history": optimizer.state,
        "loss": sum((tensor * weight).sum() for tensor in (search.tensor(), *tensors[5][:1])),
        "saved": [search.tensor() for _ in range(5)],
        "kept": KeepingFunction.apply(weight),
        "deep": functools.reduce(lambda value, i: {f"k{i}": value}, range(14), tensors[6]),
        "views": [tensor[1:] for tensor in tensors[7]],
        "large": [torch.ones(1000).resize_(5) for _ in range(5)],
        "parameters": [search.parameter() for _ in range(5)],
        "sparse": [torch.eye(9).to_sparse() for _ in range(5)],
        "mixed": [search.tensor(), "a", torch.ones(3, device="meta"), search.tensor(), 5],
    }


def test_elements_of_lists_have_the_same_names_as_if_searched_one_by_one(search, monkeypatch):
    variables = lists_of_tensors(search)
    results = []
    for minimum in (3, 1000):
        monkeypatch.setattr(tracked_objects, "_MIN_LONG", minimum)
        near = search.result(variables, *search.distant_roots(__name__), unnamed_share=lambda _: 0.0)
        results.append(sorted(repr((storage.info, *storage[2:])) for storage in near.storages))
    assert results[0] == results[1]
    assert len(results[0]) > 60


def test_elements_of_lists_are_not_searched_one_by_one(search):
    variables = {"list": [search.tensor() for _ in range(500)]}
    near = search.result(variables, *search.distant_roots(__name__), unnamed_share=lambda _: 0.0)
    assert {storage.info.name for storage in near.storages} == {f"list[{i}]" for i in range(500)}
    assert near.objects < 100


# the rest of the heap


def test_heap_is_not_searched_if_variables_account_for_memory(fake_gpu, library, heap_searches):
    variables = {"x": ones(100 * MIB), "data": [[i] for i in range(1000)]}
    library.cache = [ones(MIB), *([i] for i in range(50_000))]
    result = find(variables)
    assert (names(result), heap_searches, result.complete) == (["x"], [], True)
    assert remainders(result) == {NOT_SEARCHED: MIB}
    full_result = find(variables, everywhere=True)
    assert (names(full_result), remainders(full_result), heap_searches) == (["x", "zz_library.cache"], {}, [1])


def test_heap_is_searched_for_more_than_one_percent(fake_gpu, library, heap_searches):
    variables = {"x": ones(100 * MIB)}
    library.cache = ones(2 * MIB)
    assert names(find(variables)) == ["x", "zz_library.cache"]
    assert heap_searches == [1]


def test_heap_is_not_searched_for_memory_that_no_tensor_holds(fake_gpu, heap_searches):
    variables = {"x": ones(100 * MIB)}
    fake_gpu.alloc(50 * MIB)
    result = find(variables)
    assert remainders(result) == {NOT_REACHABLE: 50 * MIB}
    assert (result.complete, heap_searches) == (True, [])


@needs_saved_tensors
def test_heap_is_searched_for_autograd_graph_of_unknown_tensor(fake_gpu, library, heap_searches):
    variables = {"x": ones(100 * MIB)}
    fake_gpu.alloc(50 * MIB)
    library.loss = torch.ones(3, requires_grad=True).exp().sum()  # its graph keeps no GPU memory alive
    library.small = ones(5000)
    assert remainders(find(variables)) == {NOT_REACHABLE: 50 * MIB, NOT_SEARCHED: 5120}
    assert heap_searches == []
    saved = torch.ones(MIB, device="cuda")
    library.loss = (saved * torch.ones(MIB, requires_grad=True)).sum()
    del saved
    assert names(find(variables)) == ["x", "zz_library.loss", "zz_library.small"]
    assert heap_searches == [1]


def test_results_of_earlier_searches_are_not_searched(fake_gpu):
    variables = {"x": ones(100 * MIB), "small": [ones(1000) for _ in range(50)]}
    objects = find(variables).objects
    variables["results"] = [find(variables) for _ in range(3)]
    assert objects < find(variables).objects < objects + 20


def test_workspace_and_private_pools_do_not_cause_a_search(fake_gpu, library, heap_searches):
    import ipygpumem

    ipygpumem.preload_pytorch()
    variables = {"x": ones(100 * MIB)}
    library.cache = ones(MIB)
    fake_gpu.alloc(32 * MIB)  # the workspace of another thread
    fake_gpu.alloc(50 * MIB, pool=(1, 0))
    find(variables)
    assert heap_searches == []


# the time limit


@pytest.fixture
def slow_reading(monkeypatch):
    """Let the clock advance by 10 ms for each chunk of 500 objects, and let lists of 100 objects count as large."""
    clock, read = [0.0], tracked_objects.TrackedObjects._read

    def timed(self, *arguments):
        clock[0] += 0.01
        return read(self, *arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(tracked_objects.TrackedObjects, "_read", timed)
    monkeypatch.setattr(tracked_objects, "_CHUNK", 500)
    monkeypatch.setattr(tracked_objects, "_MIN_LARGE", 100)
    monkeypatch.setattr(tracked_objects, "_MIN_OBJECTS", 0)


def nested(depth, value):
    for _ in range(depth):
        value = {"inner": value}
    return value


def test_variables_of_a_training_session_are_named_in_a_busy_process(fake_gpu, slow_reading, monkeypatch):
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(1, 1)) for _ in range(50)))
    for layer in model:
        layer[0].state = nested(20, ones(MIB))
    variables = {"data": [[i] for i in range(20_000)], "model": model, "hog": ones(100 * MIB)}
    monkeypatch.setattr(tracked_objects, "_MIN_OBJECTS", 150_000)
    result = find(variables, limit=0.0)
    assert {holder.name: holder.amount for holder in result.holders} == {"hog": 100 * MIB, "model": 50 * MIB}
    assert result.objects > 20_000
    assert (result.complete, remainders(result)) == (True, {})
    monkeypatch.setattr(tracked_objects, "_MIN_OBJECTS", 10_000)
    assert not find(variables, limit=0.0).complete


def test_objects_in_large_containers_are_read_last(fake_gpu, slow_reading):
    variables = {"data": [{"a": [i]} for i in range(20_000)], "model": nested(8, ones(100 * MIB))}
    result = find(variables, limit=0.6)
    assert names(result) == ["model"]
    assert not result.complete
    assert result.objects < 20_000
    assert "the search reached a limit after" in result.notes[0]


def test_names_are_found_if_reading_takes_longer_than_the_limit(fake_gpu, slow_reading):
    result = find({"x": ones(100 * MIB)}, limit=0.005)
    assert (names(result), result.complete) == (["x"], False)


def test_local_variables_of_user_code_are_found_first(fake_gpu, slow_reading):
    def step():
        x = ones(100 * MIB)
        return find({"data": nested(50, 0), "y": ones(30 * MIB)}, limit=0.005), x

    result, _ = step()
    assert "step() x" in names(result)[0]
    assert not result.complete


def test_partial_result_states_remaining_bytes(fake_gpu, slow_reading):
    variables = {"x": ones(100 * MIB), "data": [nested(3, i) for i in range(20_000)]}
    variables["data"][-1]["late"] = nested(3, ones(30 * MIB))
    result = find(variables, limit=0.2)
    assert names(result) == ["x"]
    assert remainders(result) == {NOT_FOUND: 30 * MIB}
    result = find(variables, limit=60)
    assert (names(result), remainders(result), result.complete) == (["x", "data"], {}, True)


def test_names_are_kept_if_search_of_heap_reaches_limit(fake_gpu, library, slow_reading):
    variables = {"x": ones(100 * MIB)}
    library.cache = [[i] for i in range(50_000)]
    library.table = nested(3, ones(30 * MIB))
    result = find(variables, limit=0.9)
    assert (names(result), remainders(result), result.complete) == (["x"], {NOT_FOUND: 30 * MIB}, False)
    assert names(find(variables, limit=60)) == ["x", "zz_library.table"]


@pytest.mark.parametrize("place", ["variable", "library"])
def test_half_a_million_objects_and_a_short_limit(fake_gpu, library, slow_reading, place):
    objects = [(i, [i]) for i in range(250_000)]
    variables = {"hog": [ones(100 * MIB)], **({"objects": objects} if place == "variable" else {})}
    library.objects = objects
    result = find(variables, limit=0.2)
    assert names(result) == ["hog"]
    assert result.total("cuda:0").unreached == 0
