"""The state of a program after its step was run at small sizes: bit for bit as without."""

from __future__ import annotations

import argparse
import array
import asyncio
import collections
import contextlib
import contextvars
import copy
import functools
import gc
import io
import itertools
import logging
import multiprocessing
import os
import pickle
import queue
import random
import signal
import sys
import threading
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader, Dataset

import ipygpumem
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import pause_gc
from ipygpumem.features.fit.advice.observer import StepObserver
from ipygpumem.features.fit.tensor_backup import TensorBackup
from ipygpumem.measurement.allocation_history import AllocationHistory
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.replay.recording import ReplayError
from ipygpumem.snapshot.scaling.step_requests import InitialState

SIZES = range(1, 65)


class Training:
    """A model with every kind of state that a step changes."""

    def __init__(self, optimizer=torch.optim.AdamW):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (the global generator is part of the state)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 8))
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu")
        self.generator = torch.Generator().manual_seed(3)
        self.numbers = np.random.default_rng(4)
        self.counts = np.zeros(3)
        self.reads_values = True
        self.steps = 0
        self.last = None
        self.history = []

    def step(self, batch):
        x = torch.randn(batch, 8) + torch.randn(batch, 8, generator=self.generator)
        x = x + random.random() + np.random.rand() + self.numbers.random()  # noqa: NPY002
        loss = functional.mse_loss(self.model(x), x)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        self.counts += 1
        self.steps += 1
        self.last = loss.detach()
        self.history.append(loss.item() if self.reads_values else None)

    def digest(self):
        """Return everything as bytes."""
        groups = [
            {name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups
        ]
        values = (
            [*self.model.state_dict().items(), *self.average.state_dict().items()],
            [parameter.grad for parameter in self.model.parameters()],
            self.optimizer.state_dict()["state"],
            groups,
            self.schedule.state_dict(),
            self.scaler.state_dict(),
            (self.generator.get_state(), self.numbers.bit_generator.state, torch.get_rng_state()),
            (random.getstate(), np.random.get_state(), self.counts.tolist()),  # noqa: NPY002
            (self.steps, self.last, self.history, torch.cuda.get_rng_state()),
        )
        return pickle.dumps(_plain(values))


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("steps", [0, 2])
def test_state_is_the_same(allocations, steps, dry):
    training = Training()
    for _ in range(steps):
        training.step(4)
    training.reads_values = not dry
    before, states = training.digest(), dict(training.optimizer.state)
    parameters = [*training.model.parameters(), *training.model.buffers()]
    versions = [parameter._version for parameter in parameters]
    gradients = [parameter.grad for parameter in training.model.parameters()]
    graph = training.model[4](torch.ones(1, 32)).sum()
    peak, allocated = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    result = ipygpumem.fit(training.step, SIZES, dry=dry, device="2 GiB" if dry else None)
    gc.collect()
    assert not result.refusal
    assert torch.cuda.max_memory_allocated() == peak
    assert torch.cuda.memory_allocated() == allocated
    assert training.digest() == before
    assert [parameter._version for parameter in parameters] == versions
    assert all(old is parameter.grad for old, parameter in zip(gradients, training.model.parameters(), strict=True))
    assert dict(training.optimizer.state) == states or not steps
    assert len(training.optimizer.state) == len(states)
    assert training.reads_values is not dry
    graph.backward()  # a graph that was built before is still valid


class Counter:
    """A class whose attributes a step changes, some of them in slots."""

    total = 0
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        Counter.total += 1


class Counted(nn.Linear):
    """A class that a step assigns to a module."""


def numbers():
    while True:
        yield torch.randn(1)


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_side_effects(allocations, tmp_path, error, dry):
    """Objects are restored also after an exception, and what cannot be undone is listed."""
    layer, counter = nn.Linear(8, 8), Counter()
    layer.weight.grad = kept = torch.ones(8, 8)
    layer.bias.grad = torch.full((8,), 3.0)
    batches, endless, unused = iter(range(100)), numbers(), iter([])
    cache, settings = {1: "one"}, {"frozen": False}

    def step(batch):
        step.calls += 1
        next(batches)
        next(endless)
        counter.add()
        cache.clear()
        settings["frozen"] = layer.weight.requires_grad_(False).requires_grad
        layer.weight.requires_grad_(True)
        layer.bias.requires_grad_(False)
        layer.eval()
        layer.zero_grad()
        layer(torch.randn(batch, 8)).sum().backward()
        layer.extra = layer.weight.grad
        layer.__class__ = Counted
        with (tmp_path / "log.txt").open("a") as file:
            file.write(f"{batch}\n")
        if error and batch == 4:
            raise error
        return unused

    step.calls = 0
    if error is None:
        result = ipygpumem.fit(step, SIZES, dry=dry, on="2 GiB" if dry else None)
        assert not result.refusal
        assert sorted(result.notes) == [
            "The step advanced the iterator endless, which is not undone.",
            f"The step wrote to the file {tmp_path / 'log.txt'} (1 write in the first run), which is not undone.",
        ]
    else:
        with pytest.raises(error):
            ipygpumem.fit(step, SIZES, dry=dry, on="2 GiB" if dry else None)
    assert (counter.count, Counter.total, step.calls, next(batches)) == (0, 0, 0, 0)
    assert (cache, settings) == ({1: "one"}, {"frozen": False})
    assert layer.training
    assert layer.bias.requires_grad
    assert not hasattr(layer, "extra")
    assert type(layer) is nn.Linear
    assert layer.weight.grad is kept
    assert torch.equal(kept, torch.ones(8, 8))
    assert torch.equal(layer.bias.grad, torch.full((8,), 3.0))


def test_hooks_and_state_of_the_process(allocations, monkeypatch):
    layer, variable, numbers_view = nn.Linear(8, 8), contextvars.ContextVar("variable"), torch.arange(4.0)
    shared, generator = multiprocessing.Value("i", 3), np.random.default_rng(0)
    monkeypatch.setenv("CHANGED_BY_THE_STEP", "0")
    accelerate = types.ModuleType("accelerate.state")
    accelerate.GradientState = type("GradientState", (), {"_shared_state": {}})
    monkeypatch.setitem(sys.modules, "accelerate.state", accelerate)

    def step(batch):
        variable.set(variable.get(0) + 1)
        shared.value += batch
        generator.bit_generator._seed_seq.spawn(2)  # as Generator.spawn of NumPy 1.25
        torch._C._set_deterministic_algorithms(True, warn_only=False)  # the public function imports the compiler
        torch.set_default_dtype(torch.float64)
        torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
        os.environ["CHANGED_BY_THE_STEP"] = os.environ["ADDED_BY_THE_STEP"] = "1"
        sys.modules["accelerate.state"].GradientState._shared_state["batch"] = batch
        numbers_view.data = numbers_view.data.view(torch.int32)
        hook = layer.weight.register_hook(lambda gradient: gradient * 0.5)
        layer.weight.register_post_accumulate_grad_hook(lambda _: None)
        module.register_module_forward_hook(lambda *_: None)
        optimizer_module.register_optimizer_step_post_hook(lambda *_: hook)
        layer(torch.randn(batch, 8, dtype=torch.float32)).sum().backward()

    assert not ipygpumem.fit(step, range(1, 17)).refusal
    assert (shared.value, generator.bit_generator._seed_seq.n_children_spawned) == (3, 0)
    assert (torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()) == (False, torch.float32)
    assert not (torch.backends.cudnn.benchmark or torch.backends.cudnn.deterministic)
    assert (variable.get(None), numbers_view.dtype) == (None, torch.float32)
    assert (os.environ["CHANGED_BY_THE_STEP"], "ADDED_BY_THE_STEP" in os.environ) == ("0", False)
    assert not accelerate.GradientState._shared_state
    assert not (layer.weight._backward_hooks or layer.weight._post_accumulate_grad_hooks)
    assert not (module._global_forward_hooks or optimizer_module._global_optimizer_post_hooks)


def test_files_and_settings_of_the_process(allocations, tmp_path, monkeypatch):
    """Files in memory, positions of files that are read, the directory, filters of warnings, and loggers."""
    (tmp_path / "data.txt").write_text("1\n2\n3\n")
    monkeypatch.chdir(tmp_path)
    text, data, closed = io.StringIO("old", newline="\r\n"), io.BytesIO(b"old"), io.BytesIO()
    text.seek(0, io.SEEK_END)
    text.write("\n")
    data.seek(1)
    logger, handler = logging.getLogger("ipygpumem.tests.fit"), logging.NullHandler()
    logger.addHandler(logging.NullHandler())
    handlers, filters = list(logger.handlers), list(warnings.filters)
    waiting = asyncio.Queue()
    waiting.put_nowait("old")
    waiting.get_nowait()

    def step(batch):
        torch.zeros(batch, 1 << 16)
        text.write("new\n")
        data.write(b"0123456789")
        closed.close()
        lines.readline()
        os.chdir("/")
        warnings.filterwarnings("error", "never shown")
        logger.setLevel(logging.ERROR)
        logger.addHandler(handler)
        waiting.put_nowait(batch)

    with open("data.txt", encoding="utf-8") as lines:  # noqa: PTH123
        lines.readline()
        result = ipygpumem.fit(step, range(1, 17))
        assert lines.readline() == "2\n"
    assert not result.refusal
    assert (text.getvalue(), text.tell()) == ("old\r\n", 5)
    assert text.write("\n") and text.getvalue() == "old\r\n\r\n"
    assert (data.getvalue(), data.tell()) == (b"old", 1)
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109
    assert (logger.level, logger.handlers, warnings.filters) == (logging.NOTSET, handlers, filters)
    assert waiting.empty() and waiting._unfinished_tasks == 1 and not waiting._finished.is_set()
    assert result.notes == (
        "_queue grew by 6 items, which were removed.",
        "1 object could not be restored (the first: BytesIO, ValueError: I/O operation on closed file.).",
    )


def test_settings_and_locks(allocations):
    """Settings that functions of the process and of PyTorch change, and objects of ``threading``."""
    event, semaphore, lock = threading.Event(), threading.Semaphore(99), threading.Lock()

    def settings():
        os.umask(mask := os.umask(0o022))
        torch_settings = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.is_anomaly_enabled()
        python_settings = sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(), sys.excepthook
        return mask, logging.root.manager.disable, *torch_settings, *python_settings

    def step(batch):
        torch.zeros(batch, 1 << 16)
        os.umask(0o077)
        logging.disable(logging.ERROR)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_float32_matmul_precision("high")
        torch.autograd.set_detect_anomaly(True)
        sys.setrecursionlimit(sys.getrecursionlimit() + 1)
        gc.disable()
        gc.set_threshold(99, 9, 9)
        sys.excepthook = print
        event.set()
        semaphore.acquire()
        lock.acquire(blocking=False)

    before = settings()
    try:
        result = ipygpumem.fit(step, range(1, 17))
        after = settings()
    finally:
        logging.disable(before[1])
        torch.set_num_threads(before[2])
        torch.set_float32_matmul_precision(before[3])
        torch.autograd.set_detect_anomaly(before[4])
        sys.setrecursionlimit(before[5])
        gc.enable()
        gc.set_threshold(*before[7])
        os.umask(before[0])
        sys.excepthook = before[8]
    assert not result.refusal
    assert after == before
    assert (event.is_set(), semaphore._value) == (False, 99)
    assert result.notes == ("The step acquired or released the lock lock, which is not undone.",)


def test_caches(allocations):
    """Empty caches are cleared. What was added to other caches is listed."""

    @functools.lru_cache
    def used(batch):
        return torch.zeros(batch)

    @functools.cache
    def unused(batch):
        return torch.zeros(batch)

    used(1000)

    def step(batch):
        torch.zeros(batch, 1 << 16)
        used(batch)
        unused(batch)
        used(1000)

    result = ipygpumem.fit(step, range(1, 17))
    assert (used.cache_info().currsize, unused.cache_info().currsize) == (1 + len({p.size for p in result.probes}), 0)
    (note,) = result.notes
    assert note.startswith("The step added ") and note.endswith(" results to the cache of used, which is not undone.")


def test_order_of_attributes(allocations):
    options, counter = types.SimpleNamespace(first=1, second=2, third=3), Counter()

    def step(batch):
        torch.zeros(batch, 1 << 16)
        del options.first
        options.first = counter.count = 4

    assert not ipygpumem.fit(step, range(1, 17)).refusal
    assert list(vars(options).items()) == [("first", 1), ("second", 2), ("third", 3)]
    assert counter.count == 0


class OddName(str):
    """A name whose methods raise an exception."""

    __slots__ = ()
    __format__ = __str__ = startswith = __bool__ = __getitem__ = lambda *_: 1 // 0

    def __hash__(self):
        if OddName.raises:
            raise RuntimeError("hash")
        return 1

    def __eq__(self, other):
        raise RuntimeError("comparison")


OddName.raises = False


@pytest.mark.parametrize("dry", [{}, {"dry": True, "device": "24 GiB"}], ids=["run", "dry"])
def test_names_whose_methods_raise_an_exception(allocations, monkeypatch, dry):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)))
    options = types.SimpleNamespace(model=model)
    vars(options)[OddName("odd")] = globals()[OddName("odd")] = {OddName("key"): torch.ones(4)}
    monkeypatch.setattr(OddName, "raises", True)

    def step(batch):
        globals().get("unknown")
        options.steps = batch
        options.model(torch.zeros(batch, 64)).sum().backward()

    try:
        assert not ipygpumem.fit(step, range(1, 17), **dry).refusal
    finally:
        OddName.raises = False
        items = [item for item in globals().items() if type(item[0]) is str]
        globals().clear()
        globals().update(items)
    assert not hasattr(options, "steps")


class Proxy:
    """An object without a target, like an unbound ``LocalProxy``."""

    @property
    def __class__(self):
        raise RuntimeError("no target")


class AttributeDict(dict):
    """Configuration whose items are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Key:
    """A dict key that can be hashed only once."""

    hashes = itertools.count()

    def __hash__(self):
        return 1 // (next(self.hashes) == 0)


class Batches:
    def __init__(self):
        self._num_yielded = np.zeros(3)

    def __next__(self):
        self._num_yielded = self._num_yielded + 1


def test_each_object_is_restored_independently(allocations):
    """A failure is reported, and does not prevent other objects from being restored."""
    layer, proxy, batches, unhashable = nn.Linear(8, 8), Proxy(), Batches(), {Key(): 1}
    settings = AttributeDict(changed=False)
    arrays = [np.zeros(4) for _ in range(3)]
    buffer, memory = bytearray(64), torch.arange(8)
    view, freed, resized = memoryview(buffer), torch.arange(1 << 18), torch.arange(1 << 18)
    weight = layer.weight.detach().clone()
    square = torch.arange(4).reshape(2, 2)
    unused = torch.zeros(8, requires_grad=True)
    unused.grad = torch.ones(8)

    def step(batch):
        assert type(proxy) is Proxy
        arrays[0].resize(8, refcheck=False)
        arrays[1].resize((2, 2), refcheck=False)
        arrays[2].setflags(write=False)
        next(batches)
        view[0] = 1
        freed.untyped_storage().resize_(0)
        resized.untyped_storage().resize_(1 << 17)
        memory.untyped_storage().resize_(1 << 10)
        unhashable[2] = settings.changed = True
        layer(torch.randn(batch, 8)).sum().backward()
        layer.weight.data.add_(1)
        unused.grad.untyped_storage().resize_(0)
        square.t_()

    state = torch.get_rng_state()
    result = ipygpumem.fit(step, SIZES)
    assert settings == {"changed": False}
    assert [array.tolist() for array in arrays] == [[0.0] * 4] * 3
    assert all(array.flags.writeable for array in arrays)
    assert buffer == bytes(64)
    for tensor in (freed, resized, memory):
        assert torch.equal(tensor, torch.arange(len(tensor)))
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert torch.equal(layer.weight, weight)
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.weight.grad is None
    assert torch.equal(unused.grad, torch.ones(8))
    assert square.tolist() == [[0, 1], [2, 3]]
    (note,) = (note for note in result.notes if "could not be restored" in note)
    assert note.startswith("1 object could not be restored (the first: dict, ZeroDivisionError: ")


@pytest.mark.parametrize("place", ["record", "stop", "collect", "enter", "observe"])
def test_state_after_an_interrupt_outside_the_step(allocations, default_handler, monkeypatch, place):
    owner, name = {
        "record": (torch.cuda.memory, "_record_memory_history"),
        "stop": (AllocationHistory, "stop"),
        "collect": (gc, "enable"),
        "enter": (DeferredInterrupts, "__enter__"),
        "observe": (StepObserver, "__exit__"),
    }[place]
    original, interrupts = getattr(owner, name), [signal.SIGINT] * (2 if place == "enter" else 1)

    @functools.wraps(original)
    def interrupted(*arguments, **options):
        if place == "record":
            original(*arguments, **options)
        if interrupts and (place != "enter" or training.steps):
            signal.raise_signal(interrupts.pop())
        return None if place == "record" else original(*arguments, **options)

    training = Training()
    before = training.digest()
    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ipygpumem.fit(training.step, SIZES)
    monkeypatch.undo()
    assert training.digest() == before
    assert gc.isenabled()
    assert not torch._C._cuda_isHistoryEnabled()
    assert not current().active_recording.running
    assert not (optimizer_module._global_optimizer_pre_hooks or module._global_forward_pre_hooks)


class InterruptingCycle:
    """A reference cycle. An interrupt arrives while the garbage collector frees it."""

    def __init__(self):
        self.cycle = self

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("dry", [{}, {"dry": True, "device": "24 GiB"}], ids=["run", "dry"])
def test_interrupt_during_garbage_collection(allocations, default_handler, dry):
    """The interrupt ends the command, although Python ignores exceptions in finalizers."""
    batches = []

    def step(batch):
        batches.append(torch.ones(batch))
        if len(batches) == 2:
            InterruptingCycle()

    with pause_gc(), pytest.raises(KeyboardInterrupt) as raised:  # there are no automatic collections
        ipygpumem.fit(step, SIZES, **dry)
    assert "collect_garbage" in [entry.name for entry in raised.traceback]
    assert batches == []
    (search,) = (entry.frame for entry in raised.traceback if entry.name == "run" and "runs" in entry.frame.f_locals)
    assert search.f_locals["runs"].gi_frame is None, "a finalizer of the generator would ignore an interrupt"


def test_recording_that_cannot_be_replayed(allocations, monkeypatch):
    def fail(*_):
        raise ReplayError("1 allocations or frees are missing")

    monkeypatch.setattr(InitialState, "at", fail)
    assert ipygpumem.fit(Training().step, SIZES).refusal == "1 allocations or frees are missing"


REFERENCES = {
    "SimpleNamespace": lambda state: (types.SimpleNamespace(**state), vars),
    "Namespace": lambda state: (argparse.Namespace(**state), vars),
    "UserDict": lambda state: (collections.UserDict(state), lambda value: value),
    "ChainMap": lambda state: (collections.ChainMap(state), lambda value: value),
    "mappingproxy": lambda state: (types.MappingProxyType({"all": state}), lambda value: value["all"]),
    "threading.local": lambda state: (_thread_local(state), vars),
    "weakref": lambda state: (weakref.ref(state["holder"]), lambda value: vars(value())),
    "Queue": lambda state: (_queue(state), lambda value: value.queue[0]),
    "lru_cache": lambda state: (_cached(state, 8), lambda value: value()),
    "cache": lambda state: (_cached(state, None), lambda value: value()),
    "ContextVar": lambda state: (_context_variable(state), lambda value: value.get()),
    "bound method": lambda state: (state.get, lambda value: value.__self__),
    "generator": lambda state: ((state for _ in range(99)), next),
    "object array": lambda state: (np.array([state, None], dtype=object), lambda value: value[0]),
    "attribute of a tensor": lambda state: (_tensor(state), lambda value: value.state),
    "iterator": lambda state: (StateIterator(state), next),
    "DataLoader": lambda state: (DataLoader(Data(state)), lambda value: value.dataset.state),
    "proxy": lambda state: (weakref.proxy(state["holder"]), lambda value: value.__dict__),
    "WeakKeyDictionary": lambda state: (_weak_keys(state), lambda value: next(iter(value.values()))),
    "zip": lambda state: (zip(itertools.repeat(state)), lambda value: next(value)[0]),
    "nullcontext": lambda state: (contextlib.nullcontext(state), lambda value: value.enter_result),
    "ExitStack": lambda state: (_exit_stack(state), lambda value: value._exit_callbacks[0][1].__self__.enter_result),
    "globals": lambda state: (_set_global("FIRST", state), lambda _: globals()["FIRST"]),
    "getattr": lambda state: (_set_global("SECOND", state), lambda _: getattr(sys.modules[__name__], "SECOND")),  # noqa: B009
    "eval": lambda state: (_set_global("THIRD", state), lambda _: eval("THIRD['holder'].__dict__")),  # noqa: S307
    "configuration of transformers": lambda state: (_configuration(state), lambda value: value.state),
}


def _configuration(state):
    """Return an object of a class like those of transformers, which need not be installed."""
    result = type("Configuration", (), {"__module__": "transformers.configuration_utils"})()
    result.state = state
    return result


def _exit_stack(state):
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.nullcontext(state))
    return stack


def _set_global(name, state):
    globals()[name] = state


def _thread_local(state):
    local = threading.local()
    vars(local).update(state)
    return local


def _queue(state):
    result = queue.Queue()
    result.put(state)
    return result


def _cached(state, maxsize):
    @functools.lru_cache(maxsize)
    def cached():
        return states.pop()

    states = [state]
    cached()
    return cached


def _weak_keys(state):
    result = weakref.WeakKeyDictionary()
    result[state["model"]] = state
    return result


def _tensor(state):
    tensor = torch.ones(1)
    tensor.state = state
    return tensor


class StateIterator:
    def __init__(self, state):
        self.state = state

    def __next__(self):
        return self.state


class Data(Dataset):
    def __init__(self, state):
        self.state = state

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def _context_variable(state):
    variable = contextvars.ContextVar("state")
    variable.set(state)
    return variable


def test_state_in_objects_of_libraries(allocations):
    """A model, a counter and an array are restored, through whatever object the step refers to them."""
    holders = [
        argparse.Namespace(counter=0, values=array.array("d", [1.0]), model=nn.BatchNorm1d(8)) for _ in REFERENCES
    ]
    references = [
        refer(vars(holder) | {"holder": holder}) for refer, holder in zip(REFERENCES.values(), holders, strict=True)
    ]
    nonlocal_counter = 0

    def step(batch):
        nonlocal nonlocal_counter
        nonlocal_counter += 1
        for value, get in references:
            state = get(value)
            state["counter"] += 1
            state["values"][0] += 1
            state["model"](torch.randn(batch + 1, 8)).sum().backward()

    result = ipygpumem.fit(step, range(1, 17))
    assert not result.refusal
    assert nonlocal_counter == 0
    states = [get(value) for value, get in references]
    changed = [
        name
        for name, state in zip(REFERENCES, states, strict=True)
        if (state["counter"], list(state["values"])) != (0, [1.0])
        or state["model"].num_batches_tracked
        or state["model"].running_mean.any()
        or state["model"].weight.grad is not None
    ]
    assert not changed


def test_state_in_modules_of_the_user(allocations, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__init__.py").write_text("calls = 0")
    source = "import torch\ncounter = 0\nmodel = torch.nn.BatchNorm1d(8)"
    for name in ("state", "other"):
        (tmp_path / "project" / f"{name}.py").write_text(source)
    (tmp_path / "project" / "later.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import project
    import project.other
    import project.state

    def step(batch):
        import project.later
        from project.other import model

        project.calls += 1
        project.state.counter += 1
        assert project.later.__name__
        model(project.state.model(torch.randn(batch + 1, 8))).sum().backward()

    try:
        assert not ipygpumem.fit(step, range(1, 17)).refusal
        assert (project.calls, project.state.counter) == (0, 0)
        assert "later" in vars(project), "it is still in sys.modules, so that importing it again would not set the name"
        for module in (project.state, project.other):
            assert not module.model.num_batches_tracked
            assert module.model.weight.grad is None
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "project"]:
            del sys.modules[name]


class Weight(torch.Tensor):
    """A tensor subclass."""


def test_tensors_with_special_state(allocations, tmp_path):
    """A sum of losses, the base of a view, the generator of a data loader, and an array that is mapped to a file."""
    layer, total, loader = nn.Linear(8, 8), torch.zeros(()), torch.Generator()
    flat = torch.zeros(16)
    view = torch.Tensor._make_subclass(Weight, flat[:4])
    batches = DataLoader(range(8), shuffle=True, generator=loader)
    numbers = [type("Random", (random.Random,), {})(3), random.SystemRandom()]
    mapped = np.memmap(tmp_path / "tokens", np.uint8, "w+", shape=1000)
    slope = torch.ones((), requires_grad=True)
    with pytest.warns(UserWarning, match="create_graph=True"):
        slope.square().backward(create_graph=True)

    def step(batch):
        slope.grad = None
        slope.square().backward()
        total.add_(layer(torch.randn(batch, 8)).sum())
        view.add_(1)
        flat.add_(1)
        next(iter(batches))
        mapped[0] += 1
        return [generator.random() for generator in numbers]

    states = loader.get_state(), numbers[0].getstate()
    result = ipygpumem.fit(step, SIZES)
    assert not result.refusal
    assert torch.autograd.grad(slope.grad, slope)[0] == 2, "the graph of the gradient still exists"
    slope.grad = None  # the gradient refers to the tensor
    assert total.is_leaf
    assert not total.requires_grad
    assert total == 0
    assert not flat.any()
    assert torch.equal(loader.get_state(), states[0])
    assert numbers[0].getstate() == states[1]
    assert mapped[0] == 6, "the array is not read completely, and therefore not restored"


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
def test_sparse_and_nested_tensors(allocations):
    adjacency = torch.eye(4).to_sparse()
    rows = torch.eye(4).to_sparse_csr()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    def step(batch):
        torch.zeros(batch, 1 << 18)
        adjacency.mul_(2)
        rows.values().add_(1)
        nested.mul_(2)

    assert not ipygpumem.fit(step, range(1, 17)).refusal
    assert torch.equal(adjacency.to_dense(), torch.eye(4))
    assert torch.equal(rows.to_dense(), torch.eye(4))
    assert [part.tolist() for part in nested.unbind()] == [[1.0] * 2, [1.0] * 3]


class OddMeta(type):
    """A metaclass whose methods raise an exception."""

    def __getattr__(cls, name):
        raise RuntimeError(name)

    def __eq__(cls, other):
        raise RuntimeError("comparison")

    def __hash__(cls):
        raise RuntimeError("hash")


class Odd(metaclass=OddMeta):
    """A class that is only mentioned by the step."""


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_objects_that_are_not_changed(allocations, tmp_path):
    """Tensors in read-only memory, classes with special methods, and variables that only another thread sets."""
    np.arange(1000, dtype=np.int16).tofile(tmp_path / "tokens")
    tokens = torch.from_numpy(np.memmap(tmp_path / "tokens", np.int16, "r"))
    odd, retained = Odd(), nn.Linear(8, 8)(torch.ones(8))
    retained.retain_grad()
    retained.sum().backward(retain_graph=True)

    def step(batch):
        assert type(odd) is Odd
        assert tokens[batch] == batch
        retained.sum().backward(retain_graph=True)
        torch.zeros(batch, 1 << 16)
        other_thread()

    def other_thread():
        name = "RESULT".lower()
        thread = threading.Thread(target=vars(sys.modules[__name__]).__setitem__, args=(name, 1))
        thread.start()
        thread.join()

    try:
        assert not ipygpumem.fit(step, range(1, 17)).refusal
        assert globals()["result"] == 1
    finally:
        globals().pop("result", None)
    assert torch.equal(retained.grad, torch.ones(8))


def test_step_that_resets_the_peaks(allocations, fake_gpu):
    fake_gpu.free(fake_gpu.alloc(400 << 20))
    peak = torch.cuda.max_memory_allocated()

    def step(batch):
        torch.zeros(batch, 1 << 20)
        torch.cuda.reset_peak_memory_stats()

    result = ipygpumem.fit(step, range(1, 17))
    assert torch.cuda.max_memory_allocated() == peak
    assert result.predict(8) == 8 << 22


def test_queue_that_another_thread_fills(allocations):
    """The items that other threads have added remain, and the answer states that the queue has changed."""
    items = queue.Queue()
    for number in range(10):
        items.put(number)

    def step(batch):
        torch.zeros(batch, 1 << 16)
        items.put(items.get() + 10)

    result = ipygpumem.fit(step, range(1, 17))
    assert items.qsize() == 10
    assert max(items.queue) > 10
    assert "The step changed the queue items, which is not undone." in result.notes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_model(allocations):
    block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model = torch.jit.trace(nn.Sequential(block, block), torch.ones(1, 8))
    result = ipygpumem.fit(lambda batch: model(torch.zeros(batch, 8)).sum().backward(), range(1, 17))
    assert not result.refusal


def test_lazy_parameters(allocations):
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU())
    result = ipygpumem.fit(lambda batch: model(torch.randn(batch + 1, 4)).sum().backward(), range(1, 17))
    assert result.refusal == "the model has lazy parameters, which the first step initializes: run one step first"
    assert type(model[0]) is nn.LazyLinear
    assert model(torch.ones(2, 3)).shape == (2, 8)


def test_host_memory_is_insufficient(allocations, monkeypatch):
    from ipygpumem.core.reading import HostReading

    monkeypatch.setattr("ipygpumem.features.fit.state.read_host", lambda **_: HostReading(available=1000))
    training = Training()
    assert (
        "cannot be saved in host memory, of which 0.0 MiB is available" in ipygpumem.fit(training.step, SIZES).refusal
    )
    assert not training.steps
    training.reads_values = False
    assert not ipygpumem.fit(training.step, [2, 4, 8], dry=True, on="2 GiB").refusal, "contents are not saved"


def test_container_that_grows_once():
    layer, losses = nn.Linear(4, 4), []

    def step(batch):
        if not losses:
            losses.append(layer(torch.randn(batch, 4)).sum().item())
        else:
            layer(torch.randn(batch, 4))

    result = ipygpumem.fit(step, SIZES, dry=True, device="24 GiB")
    assert result.notes == ("losses grew by 1 item, which was removed.",)
    assert not losses


def test_gradients_that_replace_the_saved_gradients():
    deleted, kept, replaced, created = leaves = [nn.Parameter(torch.ones(2)) for _ in range(4)]
    for leaf in (deleted, kept, replaced):
        leaf.grad = torch.ones(2)
    backup = TensorBackup(torch, leaves, contents=True)
    deleted.grad, replaced.grad, created.grad = None, torch.ones(2), torch.ones(2)
    assert list(map(id, backup.new_gradients())) == [id(replaced.grad), id(created.grad)]
