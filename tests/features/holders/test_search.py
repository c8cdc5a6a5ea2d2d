"""Names for tensors: real tensors in main memory, found and named without a call of anybody's code."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import itertools
import re
import sys
import threading
import time
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ipygpumem.features.holders.heap import Heap
from ipygpumem.features.holders.naming import ObjectNames
from ipygpumem.features.holders.referrers import ReferrerGraph
from ipygpumem.features.holders.roots import Root
from ipygpumem.features.holders.search import NO_NAME, search_holders
from ipygpumem.sources.storages import TorchTypes

SIZE = 0
"""Elements of the tensors that a test looks for: no other test's tensors have as many bytes."""
_sizes = itertools.count(5001, 4)


@pytest.fixture(autouse=True)
def own_size():
    global SIZE  # noqa: PLW0603 (a test that fails leaves its tensors in the report)
    SIZE = next(_sizes)


def big(extra=0):
    return torch.zeros(SIZE + extra)


def look(space, *roots, size=None, **options):
    """What was found of the storages of a size, by a walk from a namespace."""
    options.setdefault("threads", False)
    found = search_holders([Root("", space, "variable", "names"), *roots], torch, lambda name: name == "cpu", **options)
    return [one for one in found.storages if one.memory.size == (size or SIZE * 4)]


def only(space, *roots, **options):
    (one,) = look(space, *roots, **options)
    return one


class Slots:
    __slots__ = ("empty", "kept")

    def __init__(self, kept):
        self.kept = kept


class Plain:
    def __init__(self, kept):
        self.kept = kept


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Data:
    kept: object


def generator(kept):
    yield 1
    yield kept


async def coroutine(kept):
    await asyncio_like()
    return kept


class asyncio_like:  # noqa: N801 (an awaitable that never ends)
    def __await__(self):
        yield


def closure(kept):
    def inner():
        return kept

    return inner


def default(kept):
    def inner(given=kept):
        return given

    return inner


def started(lazy):
    lazy.send(None)
    return lazy


def loaded():
    @functools.lru_cache
    def load(_):
        return big()

    load(1)
    return load


def types_method():
    class Holder:
        def __init__(self):
            self.kept = big()

        def method(self):
            return self

    return Holder().method


def parameter():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(big())
    return module


def nested():
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), parameter()])
    return module


MAKERS = {
    "x": big,
    "x[1]": lambda: [0, big()],
    "x[0][0]": lambda: ((big(),),),
    'x["image"]': lambda: {"image": big()},
    "x[(1, 'a')]": lambda: {(1, "a"): big()},
    "x[<Plain>]": lambda: {Plain(0): big()},
    "x (key)": lambda: {big(): 1},
    "x.kept": lambda: Plain(big()),
    "x.kept.kept[2]": lambda: Plain(Slots([0, 0, big()])),
    "x.second": lambda: Pair(0, big()),
    "x[0].kept": lambda: collections.deque([Data(big())]),
    "x{...}": lambda: {big()},
    "x (local kept)": lambda: started(generator(big())),
    "x (closure kept)": lambda: closure(big()),
    "x (default given)": lambda: default(big()),
    "x (partial)[0]": lambda: functools.partial(print, big()),
    "x (lru_cache)": loaded,
    "x.__self__.kept": types_method,
    "x.table": lambda: type("Config", (), {"table": big()}),
    "x.weight": parameter,
    "x.layers[1].weight": nested,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_path_by_its_name(name):
    one = only({"x": MAKERS[name]()})
    assert one.name == name
    assert (one.holder, one.place, one.places, one.other_names) == ("x", "variable", ("variable",), ())
    assert one.tensor == f"float32 [{SIZE}]"


def test_a_storage_is_counted_once_and_all_its_names_are_told():
    x = big()
    space = {"x": x, "views": [x[5:], x.view(1, -1)], "same": x}
    one = only(space)
    assert one.name == "x"
    assert set(one.other_names) == {"same", "views[0]", "views[1]"}


def test_a_view_that_keeps_a_whole():
    one = only({"small": big()[:2]})
    assert (one.name, one.view) == ("small", 8)


def test_a_bare_storage_has_a_name():
    assert only({"s": big().untyped_storage()}).name == "s"


def test_what_modules_and_optimizers_own_is_told_by_kind():
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(big())
    model.register_buffer("mean", big(1))
    optimizer = torch.optim.AdamW(model.parameters())
    (model.weight * model.mean[1:]).sum().backward()
    optimizer.step()
    space = {"optimizer": optimizer, "params": list(model.parameters()), "model": model}
    found = {one.name: one.kind for size in (SIZE, SIZE + 1) for one in look(space, size=size * 4)}
    assert found == {
        "model.weight": "parameter",
        "model.mean": "buffer",
        "model.weight.grad": "gradient",
        'optimizer.state[model.weight]["exp_avg"]': "optimizer state",
        'optimizer.state[model.weight]["exp_avg_sq"]': "optimizer state",
    }


def test_parameters_that_only_an_optimizer_has():
    optimizer = torch.optim.SGD([torch.nn.Parameter(big())])
    one = only({"optimizer": optimizer})
    assert (one.name, one.kind) == ('optimizer.param_groups[0]["params"][0]', "parameter")


def test_an_autograd_graph_is_told_under_the_tensor_that_keeps_it():
    x = torch.ones(SIZE, requires_grad=True)
    losses = [x.exp().sum() for _ in range(2)]
    found = sorted((one.name, one.graph, one.kind) for one in look({"losses": losses, "x": x}))
    assert found == [("losses[0]", True, "activation"), ("losses[1]", True, "activation"), ("x", False, "plain")]


def test_a_tensor_that_a_graph_keeps_and_a_name_is_the_names():
    x = torch.ones(SIZE, requires_grad=True)
    y = x.exp()
    found = {one.name: one.graph for one in look({"loss": y.sum(), "y": y, "x": x})}
    assert found == {"x": False, "y": False}


def test_the_graph_is_read_without_a_hook_and_checkpoints_are_not_run_again():
    from torch.utils.checkpoint import checkpoint

    calls = []

    def unpack(packed):
        calls.append("unpack")
        return packed

    def block(x):
        calls.append("forward")
        return x.exp().sin()

    x = torch.ones(SIZE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = x.exp().sum()
    checkpointed = checkpoint(block, x, use_reentrant=False).sum()
    before = list(calls)
    names = {one.name for one in look({"loss": loss, "checkpointed": checkpointed, "x": x})}
    assert names == {"loss", "x"}
    assert calls == before
    loss.backward()
    assert "unpack" in calls, "or the hook would prove nothing"


def checkpointed(x):
    from torch.utils.checkpoint import checkpoint

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
        self.kept = []

    def pack(self, tensor):
        self.kept.append(tensor.clone())
        return len(self.kept) - 1

    def unpack(self, key):
        return self.kept[key]


def offloaded_by_a_method(x):
    hooks = Offload()
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        return x.exp().sum()


@pytest.mark.parametrize("make", [checkpointed, offloaded, offloaded_by_a_method])
def test_what_a_hook_keeps_is_the_losss(make):
    found = look({"losses": [make(torch.ones(SIZE, requires_grad=True)) for _ in range(2)]})
    assert sorted({(one.name, one.place, one.graph) for one in found}) == [
        ("losses[0]", "variable", True),
        ("losses[1]", "variable", True),
    ]


def test_a_torch_that_does_not_show_hooks_says_that_something_is_not_known():
    class Saved:
        data = 1

    Saved.__name__ = "SavedTensor"
    kind = type("Node", (), {"_raw_saved_self": Saved()})
    assert TorchTypes(torch).saved(kind()) == ([1], True)


def test_what_a_custom_function_keeps():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.extra = big(1)
            ctx.save_for_backward(x * 2)
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            return grad

    y = Twice.apply(torch.ones(SIZE, requires_grad=True))
    assert only({"y": y}, size=(SIZE + 1) * 4).holder == "y"
    assert {one.holder for one in look({"y": y})} == {"y"}


def test_variables_come_before_outputs_and_those_before_tracebacks():
    def fail(x):
        raise ValueError

    x = big()
    try:
        fail(x)
    except ValueError as problem:
        error = problem
    history = {3: x}
    roots = [Root("Out", history, "output", "items"), Root("last exception", error, "traceback", terminal=False)]
    one = only({"x": x}, *roots)
    assert (one.name, one.holder, one.places) == ("x", "x", ("variable", "output", "traceback"))
    one = only({}, *roots)
    assert (one.name, one.holder) == ("Out[3]", "Out[3]")
    history.clear()
    del x
    one = only({}, roots[1])
    assert one.holder == "last exception: fail() x"
    assert one.places == ("traceback",)
    error.__traceback__ = None


def test_a_thread_has_its_locals():
    ready, done = threading.Event(), threading.Event()

    def work():
        batch = [big()]
        ready.set()
        done.wait()
        del batch

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    ready.wait()
    try:
        one = only({}, threads=True)
        assert (one.name, one.holder, one.place) == (
            "thread loader: work() batch[0]",
            "thread loader: work() batch",
            "thread",
        )
    finally:
        done.set()
        thread.join()


def test_looking_at_locals_keeps_nothing_alive():
    """On old Pythons ``f_locals`` leaves a copy: it is emptied again."""
    ready, go_on, done = threading.Event(), threading.Event(), threading.Event()
    gone = []

    def work():
        batch = big()
        gone.append(weakref.ref(batch))
        ready.set()
        go_on.wait()
        batch = None
        ready.set()
        done.wait()
        return batch

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    ready.clear()
    try:
        assert only({}, threads=True).place == "thread"
        go_on.set()
        ready.wait()
        assert gone[0]() is None
    finally:
        go_on.set()
        done.set()
        thread.join()


def test_a_cycle_that_nobody_reaches_is_told_as_such_and_not_collected():
    holder = Plain(big())
    holder.me = holder
    alive = weakref.ref(holder)
    gc.collect()
    gc.disable()
    try:
        del holder
        one = only({})
        assert (one.holder, one.place, one.places) == ("unreachable cycles", "garbage", ("garbage",))
        assert alive() is not None
        gc.collect()
        assert look({}) == []
    finally:
        gc.enable()


def test_what_somebody_holds_whom_nobody_sees_is_alive():
    holder = Plain(big())
    holder.me = holder
    iterator = iter([holder])  # of a local that no root names, in a frame of the test itself
    del holder
    one = only({})
    assert (one.holder, one.places) == (NO_NAME, ("elsewhere",))
    del iterator


def test_nothing_of_the_walk_stays():
    gc.collect()
    gc.disable()
    try:
        x = big()
        gone = weakref.ref(x)
        look({"x": x}, threads=True)
        del x
        assert gone() is None, "no cycle of ours keeps what we saw until the next collection"
    finally:
        gc.enable()


def test_the_collector_does_not_run_and_is_left_as_it_was():
    before = gc.get_stats()
    look({"x": big()})
    assert gc.isenabled()
    assert [one["collections"] for one in gc.get_stats()][2] == before[2]["collections"]


def note_asked(monkeypatch, *modules):
    """Record for each call of `gc.get_referents` whether it asks one of the modules."""
    asked, ask = [], gc.get_referents

    def get_referents(*things):
        asked.append(any(thing is module for thing in things for module in modules))
        return ask(*things)

    monkeypatch.setattr(gc, "get_referents", get_referents)
    return asked


@pytest.mark.whole_heap
def test_what_is_frozen_is_found(request, monkeypatch):
    """The collector leaves it out of its list (gc.freeze, as before a fork)."""
    import _asyncio

    request.addfinalizer(gc.unfreeze)
    inner = big()
    space = {"model": {"weights": [inner]}}
    del inner
    gc.freeze()
    assert gc.get_freeze_count() > 1000
    asked = note_asked(monkeypatch, _asyncio)
    walked = search_holders([Root("", space, "variable", "names")], torch, lambda name: name == "cpu", threads=False)
    assert [one.name for one in walked.storages if one.memory.size == SIZE * 4] == ['model["weights"][0]']
    assert walked.complete
    assert len(asked) > 1000
    assert not any(asked), "as below"
    assert not search_holders([Root("", space, "variable", "names")], torch, lambda _: True, limit=0.0).complete


def test_asyncios_module_is_not_asked(monkeypatch):
    """On Python 3.12.3 that once ended no more, and took all of the memory (CPython #122695)."""
    module, other = types.ModuleType("_asyncio"), types.ModuleType("another")
    asked = note_asked(monkeypatch, module)
    assert look({"x": big()})
    assert len(asked) > 100
    assert not any(asked)
    asked = note_asked(monkeypatch, other)
    assert look({"x": big()})
    assert any(asked)


def test_a_walk_that_is_short_of_time_says_so():
    found = search_holders([Root("", {"x": big()}, "variable", "names")], torch, lambda _: True, limit=0.0)
    assert not found.complete


def test_a_nest_of_a_hundred_thousand():
    x = big()
    for _ in range(100_000):
        x = [x]
    start = time.perf_counter()
    one = only({"x": x})
    assert one.holder == "x"
    assert one.name.startswith("x...") and len(one.name) < 100
    assert time.perf_counter() - start < 60
    while type(x) is list:  # taken apart from outside: the interpreter's own way is deep
        x = x[0]


# hostile and odd things


class Hostile(type):
    def __getattribute__(cls, name):
        raise RuntimeError(f"class {name}")

    def __instancecheck__(cls, other):
        raise RuntimeError("isinstance")

    def __eq__(cls, other):
        raise RuntimeError("==")

    def __hash__(cls):
        raise RuntimeError("hash")


def hostile(base=object, **space):
    def fail(*arguments):
        raise RuntimeError("user code was called")

    names = ("__getattr__", "__getattribute__", "__len__", "__iter__", "__repr__", "__eq__", "__bool__", "__contains__")
    space = {**dict.fromkeys(names, fail), "__hash__": fail, **space}
    return Hostile("Evil", (base,), space)


def test_no_code_of_the_users_is_called():
    kind = hostile()
    evil = object.__new__(kind)
    object.__setattr__(evil, "kept", big())
    assert only({"x": evil}).name == "x.kept"


def test_a_class_that_hides_its_dict():
    def fail(self):
        raise RuntimeError("property")

    kind = type("Hidden", (), {"__dict__": property(fail), "__class__": property(fail)})
    thing = kind()
    object.__setattr__(thing, "kept", big())
    assert only({"x": thing}).holder == "x"


@pytest.mark.parametrize("base", [list, dict, tuple])
def test_containers_with_code_of_their_own(base):
    kind = hostile(base)
    thing = base.__new__(kind, [big()]) if base is tuple else base.__new__(kind)
    if base is list:
        list.append(thing, big())
    if base is dict:
        dict.__setitem__(thing, "k", big())
    assert only({"x": thing}).name == ('x["k"]' if base is dict else "x[0]")


def test_lists_that_hold_themselves():
    x = [big()]
    x.append(x)
    assert only({"x": x}).name == "x[0]"


def test_keys_that_are_no_names():
    space = {"x": {}}
    space["x"]['say "hi"\n'] = big()
    space["x"]["y" * 200] = big(1)
    assert only(space).name == "x['say \"hi\"\\n']"
    assert len(only(space, size=(SIZE + 1) * 4).name) < 50


def test_a_namespace_that_changes_meanwhile():
    space, stop = {"x": big()}, threading.Event()

    def change():
        i = 0
        while not stop.is_set():
            space[f"v{i % 1000}"] = [i]
            space.pop(f"v{(i + 500) % 1000}", None)
            i += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            assert only(space).name == "x"
    finally:
        stop.set()
        thread.join()


def test_an_object_whose_attributes_change_meanwhile():
    log = types.SimpleNamespace(**{f"v{i}": i for i in range(2000)}, batch=big())
    stop = threading.Event()

    def change():
        i = 0
        while not stop.is_set():
            setattr(log, f"z{i}", i)
            i += 1
            if i > 100:
                delattr(log, f"z{i - 101}")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(4):
            assert only({"log": log}).name == "log.batch"
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(SIZE)


def coo():
    dense = torch.zeros(100_000)
    dense[:SIZE] = 1
    return dense.to_sparse()


ODD = {
    "fake": (fake, 0),
    "meta": (lambda: torch.ones(SIZE, device="meta"), 0),
    "empty": (lambda: torch.zeros(SIZE, SIZE).to_sparse(), 0),
    "coo": (coo, 1),
    "csr": (lambda: torch.eye(SIZE).to_sparse_csr(), 1),
    "csc": (lambda: torch.eye(SIZE).to_sparse_csc(), 1),
    "bsr": (lambda: torch.eye(SIZE - 1).to_sparse_bsr((2, 2)), 0),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_odd_tensors(name):
    make, count = ODD[name]
    thing = make()
    assert len(look({"x": thing})) == count


@pytest.mark.filterwarnings("ignore")
def test_nested_and_quantized_tensors():
    nested = torch.nested.nested_tensor([torch.ones(SIZE - 1), torch.ones(1)])
    assert only({"x": nested}).name == "x"
    jagged = torch.nested.nested_tensor([torch.ones(SIZE), torch.ones(1)], layout=torch.jagged)
    assert only({"x": jagged}, size=(SIZE + 1) * 4).name == "x._values"
    quantized = torch.quantize_per_tensor(torch.ones(SIZE * 4 + 1), 1.0, 0, torch.qint8)
    assert only({"x": quantized}, size=SIZE * 4 + 1).name == "x"


def test_subclasses_that_are_made_of_tensors():
    calls = []

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            calls.append(function)
            return super().__torch_function__(function, types, arguments, options or {})

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), options=None):
            calls.append(function)
            raise NotImplementedError

    x = Wrapper(big())
    calls.clear()
    assert only({"x": x}).name == "x.inner"
    assert calls == []


def test_a_mode_of_the_users_is_not_asked():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            calls.append(function)
            return function(*arguments, **(options or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            calls.append(function)
            return function(*arguments, **(options or {}))

    x = torch.ones(SIZE, requires_grad=True)
    loss = x.exp().sum()
    sparse = torch.ones(4).to_sparse()
    with Functions(), Dispatch():
        calls.clear()
        found = look({"x": x, "loss": loss, "sparse": sparse})
        assert calls == []
    assert {one.name for one in found} == {"x", "loss"}


def test_copy_on_write_is_not_undone():
    x = big()
    lazy = torch._lazy_clone(x)
    look({"lazy": lazy, "x": x})
    assert torch._C._is_cow_tensor(lazy)


def test_no_warning_comes_of_looking(recwarn):
    x = torch.ones(SIZE, requires_grad=True)
    look({"x": x, "y": x * 2, "meta": torch.ones(2, device="meta")})
    assert list(recwarn) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="keeps a dict of its own before")
def test_a_frame_of_a_failed_function_gets_no_dict():
    def fail():
        x = big()
        raise ValueError(len(x))

    try:
        fail()
    except ValueError as problem:
        error = problem
    assert only({}, Root("e", error, "traceback")).name == "e: fail() x"
    frame = error.__traceback__.tb_next.tb_frame
    copies = [one for one in gc.get_referents(frame) if type(one) is dict and one is not frame.f_globals]
    assert all("x" not in one for one in copies if one is not vars(sys.modules["builtins"]))
    error.__traceback__ = None


def linked(count, kept):
    link = {"kept": kept}
    for _ in range(count):
        link = {"next": link}
    return link


@pytest.mark.parametrize("count", [1, 31, 32, 33, 200])
def test_few_and_many_at_once_are_found_alike(count):
    """Below some number of ids each is looked up by itself, above it all together."""
    kept = [big() for _ in range(count)]
    found = look({"rows": [{"x": one} for one in kept], "again": kept})
    assert sorted(one.name for one in found) == sorted(f"again[{i}]" for i in range(count))
    assert {also for one in found for also in one.other_names} == {f'rows[{i}]["x"]' for i in range(count)}


@pytest.mark.parametrize("part", ["gc.get_objects", "connect", "add_referrers", "name_from_roots"])
def test_a_walk_stops_wherever_its_time_ends(monkeypatch, part):
    """And gives no name that might be wrong: what is reached is told with less, and nothing as unreachable."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    space = {"chain": linked(3000, big())}

    def late(owner, name):
        real = getattr(owner, name)

        def call(*arguments, **options):
            now[0] = 100.0 if part != "gc.get_objects" else now[0]
            found = real(*arguments, **options)
            now[0] = 100.0
            return found

        monkeypatch.setattr(owner, name, call)

    owner = {"gc.get_objects": gc, "connect": Heap, "add_referrers": ReferrerGraph, "name_from_roots": ObjectNames}[
        part
    ]
    late(owner, part.rpartition(".")[2])
    found = search_holders(
        [Root("", space, "variable", "names")], torch, lambda name: name == "cpu", limit=10, threads=False
    )
    assert not found.complete
    assert [one for one in found.storages if one.memory.size == SIZE * 4] == []
    assert "garbage" not in {place for one in found.storages for place in one.places}


def test_a_chain_that_is_named_to_its_end():
    one = only({"chain": linked(100_000, big())})
    assert re.fullmatch(r'chain\.\.\.(\["next"\])+\["kept"\]', one.name)


def structured(kept):
    found = np.zeros(3, dtype=[("step", int), ("loss", object)])
    found[2]["loss"] = kept
    return found


def in_an_array(kept, shape, at):
    found = np.empty(shape, object)
    found[at] = kept
    return found


class Loud(np.ndarray):
    """Its own code says so."""

    def __array_finalize__(self, other):
        if LOUD:
            raise SystemExit

    def __iter__(self):
        raise SystemExit

    __getitem__ = __len__ = tolist = __iter__
    size = ndim = dtype = base = property(__iter__)


LOUD = []


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda kept: in_an_array(kept, 4, 2), "x[2]"),
        (lambda kept: in_an_array([kept], (2, 3), (1, 0)), "x[1, 0][0]"),
        (lambda kept: [in_an_array({"a": kept}, (), ())], 'x[0][()]["a"]'),
        (structured, 'x[2]["loss"]'),
        (lambda kept: in_an_array(in_an_array(Plain(kept), 2, 1), 3, 0), "x[0][1].kept"),
        (lambda kept: in_an_array(kept, 4, 2)[3:], "x.base[2]"),
        (lambda kept: in_an_array(kept, 4, 2).view(Loud), "x[2]"),
    ],
)
def test_numpys_arrays_of_objects(make, name):
    """Python's collector sees neither them nor what they hold."""
    space = {"x": make(types.SimpleNamespace(tensor=big()))}
    LOUD.append(1)
    try:
        assert only(space).name == f"{name}.tensor"
    finally:
        LOUD.clear()


SHARED = {
    "numpy": (lambda kept: kept.numpy(), "x"),
    "views of it": (lambda kept: [kept.numpy()[1:].reshape(4, -1)[1:]], "x[0]"),
    "in an array": (lambda kept: in_an_array(kept.numpy(), (2,), (1,)), "x[1]"),
    "a memoryview": (lambda kept: memoryview(kept.numpy()), "x"),
    "asarray": (lambda kept: {"a": np.asarray(kept)}, 'x["a"]'),
}


@pytest.mark.parametrize(("make", "name"), SHARED.values(), ids=SHARED)
def test_what_shares_a_tensors_memory_has_its_name(make, name):
    space = {"x": make(big())}
    one = only(space)
    assert (one.name, one.place) == (name, "variable")


def test_an_array_that_nobody_has_is_not_named():
    """It is alive, by a C object that the collector does not see."""
    hidden = iter(in_an_array(types.SimpleNamespace(tensor=big()), 2, 1))
    assert only({}).holder == NO_NAME
    del hidden


def local_class(kept):
    class Config:
        inner = type("Inner", (), {"kept": kept})

    return Config


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda kept: local_class(kept)(), "x.__class__.inner.kept"),
        (lambda kept: (1, local_class(kept)), "x[1].inner.kept"),
        (lambda kept: type("Sub", (local_class(kept),), {}), "x (base Config).inner.kept"),
        (lambda kept: type("Holder", (), {"Nested": type("Nested", (), {"kept": kept})}), "x.Nested.kept"),
        (lambda kept: types.MappingProxyType({"a": kept}), 'x["a"]'),
        (lambda kept: types.SimpleNamespace(a=kept), "x.a"),
        (lambda kept: staticmethod(lambda given=kept: given), "x (default given)"),
        (lambda kept: property(lambda self, given=kept: given), "x (default given)"),
    ],
)
def test_classes_without_a_name_and_thin_wrappers(make, name):
    assert only({"x": make(big())}).name == name


def test_of_many_instances_one_gives_its_class_a_name():
    made = local_class(big())
    space = {"many": [made() for _ in range(2000)]}
    del made
    assert re.fullmatch(r"many\[\d+\]\.__class__\.inner\.kept", only(space).name)


def test_a_parameter_of_a_module_that_was_replaced_is_called_by_its_group():
    optimizer = torch.optim.Adam([torch.nn.Parameter(big())])
    optimizer.param_groups[0]["params"][0].grad = big()
    optimizer.step()
    names = {one.name for one in look({"o": optimizer})}
    assert {'o.param_groups[0]["params"][0]', 'o.state[o.param_groups[0]["params"][0]]["exp_avg"]'} < names
    assert not any(name.startswith("o.state (key)") for name in names)


def test_a_member_of_an_enum():
    kind = enum.Enum("Kind", {"A": big()})
    assert only({"Kind": kind}).name == "Kind.A._value_"


def test_one_name_is_not_told_again_cut_elsewhere():
    nest = [big()]
    for _ in range(100):
        nest = [nest, nest]
    one = only({"x": nest})
    assert (one.name, one.other_names) == ("x...[0][0][0][0]", ())


def test_a_default_comes_before_the_tuple_that_nobody_has():
    loss = (torch.ones(4, requires_grad=True) * 2).sum()
    loss.grad_fn.register_hook(default(big()))  # C++ has the dict of hooks
    one = only({"loss": loss})
    assert (one.holder, one.name) == (NO_NAME, "<OrderedDict>[0] (default given)")
