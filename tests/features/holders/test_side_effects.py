"""A search runs no user code and changes no state."""

from __future__ import annotations

import gc
import sys
import threading
import types

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fakes.builds import SAVED_TENSORS_ARE_READABLE


class RaisingMeta(type):
    def __getattribute__(cls, name):
        raise RuntimeError(f"class {name}")

    def __instancecheck__(cls, other):
        raise RuntimeError("isinstance")

    def __eq__(cls, other):
        raise RuntimeError("==")

    def __hash__(cls):
        raise RuntimeError("hash")


def raising_class(base=object):
    def fail(*arguments):
        raise RuntimeError("user code was called")

    names = ("getattr", "getattribute", "len", "iter", "repr", "eq", "bool", "contains", "hash")
    return RaisingMeta("Raising", (base,), {f"__{name}__": fail for name in names})


def test_object_with_raising_methods(search):
    obj = object.__new__(raising_class())
    object.__setattr__(obj, "value", search.tensor())
    assert search.storage({"x": obj}).info.name == "x.value"


@pytest.mark.parametrize("base", [list, dict, tuple])
def test_container_with_raising_methods(search, base):
    cls = raising_class(base)
    container = base.__new__(cls, [search.tensor()]) if base is tuple else base.__new__(cls)
    if base is list:
        list.append(container, search.tensor())
    if base is dict:
        dict.__setitem__(container, "k", search.tensor())
    assert search.storage({"x": container}).info.name == ('x["k"]' if base is dict else "x[0]")


def test_class_that_overrides_dict_and_class(search):
    def fail(self):
        raise RuntimeError("property")

    cls = type("Overriding", (), {"__dict__": property(fail), "__class__": property(fail)})
    obj = cls()
    object.__setattr__(obj, "value", search.tensor())
    assert search.storage({"x": obj}).holder == "x"


@pytest.fixture
def busy_thread():
    """Return a function that starts a thread, which calls the function's argument with increasing numbers."""
    stop, threads = threading.Event(), []

    def start(change):
        def run():
            i = 0
            while not stop.is_set():
                change(i)
                i += 1

        threads.append(threading.Thread(target=run))
        threads[0].start()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield start
    sys.setswitchinterval(interval)
    stop.set()
    for thread in threads:
        thread.join()


def test_variables_that_change_during_search(search, busy_thread):
    variables = {"x": search.tensor()}

    def change(i):
        variables[f"v{i % 1000}"] = [i]
        variables.pop(f"v{(i + 500) % 1000}", None)

    busy_thread(change)
    for _ in range(3):
        assert search.storage(variables).info.name == "x"


def test_attributes_that_change_during_search(search, busy_thread):
    log = types.SimpleNamespace(**{f"v{i}": i for i in range(2000)}, batch=search.tensor())

    def change(i):
        setattr(log, f"z{i}", i)
        if i > 100:
            delattr(log, f"z{i - 100}")

    busy_thread(change)
    for _ in range(3):
        assert search.storage({"log": log}).info.name == "log.batch"


def test_garbage_collector_does_not_run_and_stays_enabled(search):
    before = gc.get_stats()
    search.storages({"x": search.tensor()})
    assert gc.isenabled()
    assert gc.get_stats()[2]["collections"] == before[2]["collections"]


def test_copy_on_write_tensors_are_not_copied(search):
    x = search.tensor()
    lazy = torch._lazy_clone(x)
    search.storages({"lazy": lazy, "x": x})
    assert torch._C._is_cow_tensor(lazy)


def test_no_warning_is_shown(search, recwarn):
    x = search.parameter()
    search.storages({"x": x, "y": x * 2, "meta": torch.ones(2, device="meta")})
    assert list(recwarn) == []


def test_subclass_without_storage_and_with_overrides(search):
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

    x = Wrapper(search.tensor())
    calls.clear()
    assert search.storage({"x": x}).info.name == "x.inner"
    assert calls == []


def test_active_modes_are_not_called(search):
    calls = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            calls.append(function)
            return function(*arguments, **(options or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            calls.append(function)
            return function(*arguments, **(options or {}))

    x = search.parameter()
    variables = {"x": x, "loss": x.exp().sum(), "sparse": torch.ones(4).to_sparse()}
    with Functions(), Dispatch():
        calls.clear()
        storages = search.storages(variables)
        assert calls == []
    assert {storage.info.name for storage in storages} == ({"x", "loss"} if SAVED_TENSORS_ARE_READABLE else {"x"})


def fake_tensor(count):
    with FakeTensorMode():
        return torch.ones(count)


def sparse_coo(count):
    dense = torch.zeros(100_000)
    dense[:count] = 1
    return dense.to_sparse()


def compressed(count, create, block_shape=()):
    values = torch.ones(count, *block_shape)
    return create(torch.arange(count + 1), torch.arange(count), values, (count, count))


LAYOUTS = {
    "fake": (fake_tensor, 0),
    "meta": (lambda count: torch.ones(count, device="meta"), 0),
    "empty": (lambda count: torch.sparse_coo_tensor(size=(count, count)), 0),
    "coo": (sparse_coo, 1),
    "csr": (lambda count: compressed(count, torch.sparse_csr_tensor), 1),
    "csc": (lambda count: compressed(count, torch.sparse_csc_tensor), 1),
    "bsr": (lambda count: compressed(count, torch.sparse_bsr_tensor, (1, 1)), 1),
    "bsc": (lambda count: compressed(count, torch.sparse_bsc_tensor, (1, 1)), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_of_other_layouts(search, layout):
    make, count = LAYOUTS[layout]
    assert len(search.storages({"x": make(search.elements)})) == count


@pytest.mark.filterwarnings("ignore")
def test_nested_and_quantized_tensors(search):
    count = search.elements
    nested = torch.nested.nested_tensor([torch.ones(count - 1), torch.ones(1)])
    assert search.storage({"x": nested}).info.name == "x"
    jagged = torch.nested.nested_tensor([torch.ones(count), torch.ones(1)], layout=torch.jagged)
    assert search.storage({"x": jagged}, extra=1).info.name == "x._values"
    quantized = torch.quantize_per_tensor(torch.ones(count * 4 + 1), 1.0, 0, torch.qint8)
    assert search.storage({"x": quantized}, nbytes=count * 4 + 1).info.name == "x"
