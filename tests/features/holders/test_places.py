"""Names are defined in variables, outputs, tracebacks or threads. Some objects have no name."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from ipygpumem.features.holders.reference_graph import SearchRoot, module_roots
from ipygpumem.features.holders.search import NO_NAME


class Node:
    def __init__(self, value):
        self.value = value
        self.cycle = self


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def error_with_local(value):
    def fail(x):
        raise ValueError

    try:
        fail(value)
    except ValueError as error:
        return error


def test_variables_precede_outputs_and_outputs_precede_tracebacks(search):
    x = search.tensor()
    error = error_with_local(x)
    history = {3: x}
    output, traceback = (
        SearchRoot("Out", history, "output", "items"),
        SearchRoot("last exception", error, "traceback", terminal=False),
    )
    storage = search.storage({"x": x}, output, traceback)
    assert (storage.info.name, storage.holder, storage.info.places) == ("x", "x", ("variable", "output", "traceback"))
    storage = search.storage({}, output, traceback)
    assert (storage.info.name, storage.holder) == ("Out[3]", "Out[3]")
    history.clear()
    del x
    storage = search.storage({}, traceback)
    assert (storage.holder, storage.info.places) == ("last exception: error_with_local() value", ("traceback",))
    assert storage.info.also == ("last exception: fail() x",)
    error.__traceback__ = None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps a dict with the frame anyway")
def test_frame_of_failed_function_gets_no_dict(search):
    def fail():
        x = search.tensor()
        raise ValueError(len(x))

    try:
        fail()
    except ValueError as problem:
        error = problem
    assert search.storage({}, SearchRoot("e", error, "traceback")).info.name == "e: fail() x"
    frame = error.__traceback__.tb_next.tb_frame
    dicts = [referent for referent in gc.get_referents(frame) if type(referent) is dict]
    assert all("x" not in namespace for namespace in dicts if namespace is not frame.f_globals)
    error.__traceback__ = None


class Worker:
    def __init__(self, tensor, name=None):
        self._ready, self._drop, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._values = [tensor]
        self.reference = weakref.ref(tensor)
        self._thread = threading.Thread(target=self._work, name=name)

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_):
        self._drop.set()
        self._stop.set()
        self._thread.join()

    def _work(self):
        batch = [self._values.pop()]
        self._ready.set()
        self._drop.wait()
        batch.clear()
        self._ready.set()
        self._stop.wait()

    def drop(self):
        self._ready.clear()
        self._drop.set()
        self._ready.wait()


def test_local_variable_of_thread(search):
    with Worker(search.tensor(), "loader"):
        storage = search.storage({}, threads=True)
    assert storage.info.name == "thread loader: Worker._work() batch[0]".replace("Worker.", _class_prefix())
    assert storage.holder == storage.info.name.removesuffix("[0]")
    assert storage.place == "thread"


def _class_prefix():
    return "Worker." if sys.version_info >= (3, 11) else ""  # Python 3.10 has no qualified names of code


def test_reading_thread_variables_keeps_no_tensor_alive(search):
    with Worker(search.tensor()) as worker:
        assert search.storage({}, threads=True).place == "thread"
        worker.drop()
        assert worker.reference() is None


def test_unreachable_cycle_is_detected_but_not_collected(search, no_collection):
    node = Node(search.tensor())
    reference = weakref.ref(node)
    del node
    storage = search.storage({})
    assert (storage.holder, storage.place, storage.info.places) == ("unreachable cycles", "garbage", ("garbage",))
    assert reference() is not None
    gc.collect()
    assert search.storages({}) == []


def test_cycle_with_unknown_referrer_is_alive(search):
    iterator = iter([Node(search.tensor())])  # in a local variable of the test, which is not a root
    storage = search.storage({})
    assert (storage.holder, storage.info.places) == (NO_NAME, ("elsewhere",))
    del iterator


def test_search_keeps_no_tensor_alive(search, no_collection):
    x = search.tensor()
    reference = weakref.ref(x)
    search.storages({"x": x}, threads=True)
    del x
    assert reference() is None, "a reference cycle in the search would keep the tensor until the next collection"


def test_user_modules_precede_libraries(monkeypatch):
    module = type(sys)("zz_own_module")
    module.__file__ = "/home/me/zz_own_module.py"
    monkeypatch.setitem(sys.modules, "zz_own_module", module)
    labels = [root.label for root in module_roots([])]
    assert labels.index("zz_own_module.") < labels.index("json.")
    assert labels.index("zz_own_module.") < labels.index("torch.")
    assert not any(label.startswith("ipygpumem.") for label in labels)


def test_last_exception_is_not_named_after_sys():
    (root,) = [root for root in module_roots([]) if root.label == "sys."]
    assert root.names("path")
    assert not root.names("last_value")
