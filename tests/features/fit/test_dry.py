"""Estimates of steps that are run without data."""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import pickle
import re
import signal
import types
import unittest.mock

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import ipygpumem
from ipygpumem import OptionError
from ipygpumem.features.fit import optimizer_updates
from ipygpumem.features.fit.dry import cuda_kernels, fake_device, operation_cache
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.dry.storage_log import StorageLog
from ipygpumem.features.fit.step_code import function_step
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.snapshot.queries.groups import group_rows

MIB = 1 << 20
WORKSPACES = 2 * 8320 * 1024 + MIB
"""cuBLAS workspaces of the forward pass and the backward pass on a small GPU."""

HOST = torch.zeros(2)
VALUES = {"sparse": torch.eye(2).to_sparse()}
TABLE = nn.Parameter(torch.ones(4, 4))


def dry(step, sizes=(2, 4, 64), device="24 GiB", **options):
    return ipygpumem.fit(step, sizes, dry=True, device=device, **options)


class Perceptron:
    def __init__(self, optimizer=torch.optim.SGD, **options):
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1, **options)

    def step(self, batch):
        x = torch.randn(batch, 64)
        loss = functional.mse_loss(self.model(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Convolutions(Perceptron):
    def __init__(self):
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.model = nn.Sequential(*layers, nn.ConvTranspose2d(8, 3, 2, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=True)

    def step(self, batch):
        self.optimizer.zero_grad()
        self.model(torch.randn(batch, 3, 16, 16)).square().mean().backward()
        self.optimizer.step()


class Checkpointed(Perceptron):
    def step(self, batch):
        x = torch.randn(batch, 64)
        for _ in range(3):
            x = checkpoint(self.model, x, use_reentrant=False)
        x.sum().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("training", "workspaces"),
    [
        (lambda: Perceptron(momentum=0.9, foreach=True), WORKSPACES),
        (lambda: Perceptron(torch.optim.AdamW, foreach=True), WORKSPACES),
        (Convolutions, 0),
        (lambda: Checkpointed(foreach=True), WORKSPACES),
    ],
)
def test_same_memory_as_in_a_run(allocations, training, workspaces):
    """The estimate is the memory that the step uses, plus the workspaces of libraries for a GPU."""
    step = training().step
    result = dry(step)
    assert not result.refusal
    assert result.estimated
    assert result.error < 1e-4
    for _ in range(2):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        step(50)
    scalars = 32 * 512  # scalars, such as the number of steps of a parameter, are in host memory
    assert -scalars <= result.predict(50) - workspaces - torch.cuda.max_memory_allocated() <= 0


def saved(step):
    """Return the bytes of the tensors that exist at the peak and were allocated in the forward pass, for a batch of 64.

    They are returned in units of 1 MiB, the size of a tensor of bytes of the shape (64, 256, 64).
    """
    code = function_step(step, range(1, 65))
    runner = DryRunner(code, "24 GiB")
    with runner.updates(StepObjects(torch, code.roots()), None):
        _, run = (runner.run((64,)).step(0) for _ in range(2))  # the first run also creates workspaces
    runner.close()
    groups = group_rows(run.snapshot, run.timeline, run.rows[run.live_at_own_peak()], "context")
    return next(group.bytes for group in groups if group.label == "forward pass") / MIB


def test_kernels_of_a_gpu():
    """Attention, dropout and recurrent networks save the tensors that their kernels for a GPU save."""
    layer, mask = nn.Linear(64, 64, bias=False), torch.ones(256, 256, dtype=torch.bool).tril()

    def dropout(batch):
        functional.dropout(layer(torch.ones(batch, 256, 64)), 0.1).sum().backward()

    # input and output of the layer, a mask of bool, and the result
    assert saved(dropout) == pytest.approx(4 + 4 + 1 + 4, rel=0.01)

    def inference(batch):
        x = functional.dropout(torch.ones(batch, 256, 64), 0.1, training=False)
        functional.interpolate(x[:, None], scale_factor=0.5, mode="bilinear")

    assert saved(inference) == pytest.approx(4 + 1, rel=0.01)

    def attention(batch):
        q = layer(torch.ones(1, batch, 256, 64))
        functional.scaled_dot_product_attention(q, q, q, mask, 0.1).sum().backward()

    # input and output of the layer, and the result, but not the weights of attention, which would need 16 MiB
    assert saved(attention) == pytest.approx(4 + 4 + 4 + 0.25, abs=0.25)
    lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True)

    def recurrent(batch):
        lstm(torch.ones(batch, 256, 64))[0].sum().backward()

    # input, output, and the reserved space of cuDNN: four gates and two states of each layer, and an input
    assert saved(recurrent) == pytest.approx(4 * (1 + 1 + 2 * 6 + 1), rel=0.05)
    heads = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)

    def module(batch):
        x = torch.ones(batch, 256, 64)
        heads(x, x, x, need_weights=False)[0].sum().backward()

    assert saved(module) < 48, "the weights of attention would need 64 MiB"


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN, functools.partial(nn.RNN, nonlinearity="relu")])
def test_recurrent_networks_on_a_gpu(monkeypatch, make):
    """PyTorch would access the storages of the parameters, unless the operation of cuDNN is called directly."""
    model = make(64, 64, batch_first=True, num_layers=2)

    def step(batch, half=False):
        torch.set_autocast_enabled("cuda", half)
        output, _ = model(torch.ones(32 * batch, 8, 64))
        torch.set_autocast_enabled("cuda", False)
        output.sum().backward()

    expected = dry(step).predict(64)
    monkeypatch.setattr(fake_device, "cuda_kernels", cuda_kernels.recurrent_on_gpu)
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    assert dry(step).predict(64) == expected
    half = dry(functools.partial(step, half=True))
    assert 0.3 * expected < half.predict(64) < 0.8 * expected
    # the parameters of a network on a GPU are in one storage, which cuDNN uses without copying the parameters
    sizes = [parameter.numel() for parameter in model.parameters()]
    storage = torch.empty(sum(sizes))
    for parameter, part in zip(model.parameters(), storage.split(sizes), strict=True):
        parameter.data = part.view_as(parameter)
    assert dry(step).predict(64) == pytest.approx(expected - 4 * sum(sizes), abs=10_000)


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 8)])
def test_workspaces_of_convolutions(kernel, groups):
    """Convolutions on tensor cores convert the input, the output and the weights to channels_last."""
    layer = nn.Conv2d(8, 16, kernel, padding=kernel // 2, bias=False, groups=groups)

    def step(batch):
        layer(torch.ones(batch, 8, 64, 64))

    phases = {group.label: group.bytes for group in dry(step).breakdown(64, by="phase")}
    workspace = (64 * (8 + 16) * 64 * 64 + 9 * 8 * 16) * 4 if (kernel, groups) == (3, 1) else 0
    assert phases.get("library workspaces", 0) == workspace


@pytest.mark.parametrize("benchmark", [False, True])
def test_search_for_the_algorithms_of_convolutions(monkeypatch, benchmark):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    layers = {"convolution": nn.Conv2d(8, 8, 1), "product": nn.Linear(64, 64)}
    notes = {name: dry(lambda n, layer=layer: layer(torch.ones(n, 8, 64, 64))).notes for name, layer in layers.items()}
    assert not notes["product"]
    assert len(notes["convolution"]) == benchmark
    assert all("With torch.backends.cudnn.benchmark, cuDNN can use larger" in note for note in notes["convolution"])


def test_autocast():
    """On a machine without a GPU, autocast for CUDA has the effect that it has on a GPU."""
    first, norm = nn.Linear(64, 64, bias=False), nn.LayerNorm(64)

    def step(batch):
        with torch.autocast("cuda", torch.bfloat16):
            x = first(torch.ones(batch * 256, 64, device="cuda"))
            assert x.dtype == torch.bfloat16
            x = norm(x)
            assert x.dtype == torch.float32
            assert first(x).softmax(-1).dtype == torch.float32
            x = x.to("cuda").sum()
        x.backward()

    # input of the first layer, input and result of the norm, input and result of the layer, input and result of softmax
    assert saved(step) == pytest.approx(2 + 4 + 4 + 2 + 2 + 4 + 4, rel=0.01)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(first(torch.ones(2, 64))).dtype == torch.bfloat16, "the effect ends with the estimate"


@pytest.mark.parametrize(("operation", "copied"), [("sum", 0), ("cumsum", 1), ("cumprod", 1)])
def test_operations_with_a_data_type_set_by_autocast(operation, copied):
    """The kernels of cumulative operations convert their input to a temporary copy of their result's size."""
    x = torch.ones(1, 64 * 1024, dtype=torch.bfloat16)

    def step(batch):
        y = x.expand(batch, -1).clone()
        with torch.autocast("cuda", torch.bfloat16):
            return getattr(y, operation)(-1)

    result = dry(step, range(64, 257))
    size = 256 * 64 * 1024
    expected = 2 * size + (4 * size * (1 + copied) if operation.startswith("cum") else 0)
    assert result.predict(256) - result.predict(64) == pytest.approx(expected * 3 / 4, rel=0.01)


def test_autocast_contexts_that_were_created_before(monkeypatch):
    """They have the same effect as those that the step creates, unless PyTorch has disabled them without a GPU."""
    layer = nn.Linear(64, 64, bias=False)
    with pytest.warns(UserWarning, match="Disabling autocast"):
        context = torch.autocast("cuda", torch.bfloat16)

    def step(batch):
        with context:
            x = layer(torch.ones(batch * 256, 64))
            types.add(x.dtype)
            x.sum().backward()

    types = set()
    reason = dry(step).refusal
    assert "(with context:) enters a disabled autocast context that was created outside the step" in reason
    assert reason.endswith("because there is no GPU: create the context in the step")
    monkeypatch.setattr(context, "_enabled", True)
    assert saved(step) == pytest.approx(4 + 2 + 2, rel=0.01)
    assert (types, context.device) == ({torch.bfloat16}, "cuda")


def test_breakdown():
    training = Perceptron(torch.optim.AdamW)
    result = dry(training.step)
    phases = {group.label: group.bytes for group in result.breakdown(8, by="phase")}
    weights = sum(parameter.nbytes for parameter in training.model.parameters())
    assert phases["parameters"] == phases["gradients"] == phases["optimizer update"] == weights
    assert phases["optimizer state"] == 2 * weights
    assert phases["library workspaces"] == WORKSPACES
    modules = {group.label: group.bytes for group in result.breakdown(8, by="module")}
    assert modules["0 (Linear)"] >= 4 * (64 * 128 + 128) * 4
    assert modules["(cuBLAS)"] == WORKSPACES
    text = str(result)
    assert "GPU with 24 GiB, 23.3 GiB for PyTorch, estimated\n  computed" in text
    assert "by phase: library workspaces 17.2 MiB" in text
    assert "by module: (cuBLAS) 17.2 MiB" in text
    lines = {group.label: group.bytes for group in result.breakdown(8)}
    assert lines["parameters"] == weights
    assert not [label for label in lines if "no Python frames" in label]
    copy = pickle.loads(pickle.dumps(result))
    assert (copy, copy.predict(50), copy.breakdown(8)) == (result, result.predict(50), result.breakdown(8))
    with pytest.raises(OptionError, match=r"call advice\(\) before you save the result"):
        copy.advice()
    with pytest.raises(OptionError, match="the breakdown by 'color' is not available: choose from line, module, phase"):
        result.breakdown(8, by="color")


def test_equal_functions_in_different_files():
    """Python considers equal code objects of different files equal, such as those of functions in two cells."""
    functions = []
    for file in ("first.py", "second.py"):
        variables = {}
        exec(compile("def scaled(x): return 2 * x", file, "exec"), variables)  # noqa: S102
        functions.append(variables["scaled"])
    first, second = functions
    assert first.__code__ == second.__code__

    def step(batch):
        return first(torch.ones(batch, 1024)), second(torch.ones(batch, 1024))

    labels = [group.label for group in dry(step).breakdown(64)]
    assert {label.split(":")[0] for label in labels if "scaled" in label} == {"first.py", "second.py"}


def test_larger_than_this_machine():
    """Without data, a model can be larger than memory."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(4)))

    def step(batch):
        model(torch.ones(batch, 1 << 16, device="meta")).sum().backward()

    result = dry(step, range(1, 65), device="80 GiB")
    assert result.largest is None
    assert "none: 1 does not fit (reserved 144.1 GiB)" in str(result)
    advice = result.advice(64)
    assert not advice.notes
    assert [change.name for change in advice] == ["bf16 parameters"]
    assert advice.changes[0].allocated == pytest.approx(advice.current.allocated / 2, rel=0.01)
    norm = nn.LayerNorm(64, device="meta")
    assert not dry(lambda batch: norm(torch.ones(batch, 64)).sum().backward()).advice(64).notes, "save_on_cpu"
    assert dry(step, device="150 GiB").largest == 64


def number(batch):
    return float(torch.ones(batch).sum())


def item_condition(batch):
    return min(torch.ones(batch).sum().item(), 3)


def item_factor(batch):
    return torch.ones(batch).sum().item() * torch.ones(batch)


def item_argument(batch):
    return torch.ones(batch) * torch.ones(batch).sum().item()


def item_size(batch):
    return torch.zeros(torch.ones(batch).argmax().item())


def item_in_tensor(batch):
    return torch.tensor(torch.ones(batch).sum().item())


def item_in_function(batch):
    return np.isnan(torch.ones(batch).sum().item())


def loader(batch):
    return next(iter(DataLoader(range(8), batch_size=batch, shuffle=True)))


def nonzero(batch):
    return torch.ones(batch).nonzero()


def boolean_index(batch):
    x = torch.ones(batch)
    return x[x > 0]


def condition(batch):
    return 1 if torch.ones(batch).sum() > 3 else 0


def array(batch):
    return torch.ones(batch).numpy()


def shared_array(batch):
    HOST.numpy()[:] = batch


def storage(batch):
    HOST.untyped_storage().fill_(batch)


def resized_storage(batch):
    torch.ones(batch)
    HOST.untyped_storage().resize_(0)


def set_storage(batch):
    torch.ones(batch).set_(HOST.untyped_storage())


def sparse(batch):
    VALUES["sparse"] = VALUES["sparse"] * 2


def to_sparse(batch):
    VALUES["new"] = torch.ones(batch).to_sparse()


def sparse_gradient(batch):
    functional.embedding(torch.zeros(batch, dtype=torch.int64), TABLE, sparse=True).sum().backward()


def swap(batch):
    torch.utils.swap_tensors(HOST, torch.ones(batch))


def pickled(batch):
    pickle.dumps(torch.ones(batch))


def synchronize(batch):
    torch.ones(batch).sum()
    torch.cuda.synchronize()


def test_values_that_are_only_stored(capsys):
    """Values that a step prints, adds up and appends to lists do not affect its memory usage."""
    training, losses, history = Perceptron(torch.optim.AdamW), [], {"total": 0.0}

    def step(batch):
        training.step(batch)
        loss = torch.ones(batch).mean()
        value = loss.item()
        assert isinstance(value, float) and isinstance(loss.long().item(), int)
        losses.append(-abs(value))
        history["total"] += 2 * value / batch
        history["mean"] = np.mean([value, value])
        print(f"loss {value:.3f} {loss.argmax().item():3d} {value}")

    plain, result = dry(training.step), dry(step)
    assert not result.refusal
    assert result.predict(64) - plain.predict(64) in range(0, 2049, 512)
    assert (losses, history) == ([], {"total": 0.0})
    assert set(capsys.readouterr().out.splitlines()) == {"loss ? ? ?"}
    assert torch.ones(2).sum().item() == 2


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (
            number,
            r"test_dry.py:\d+ number \(.*\) needs the value .* \(for example for float\(\) or .*\): use item\(\)",
        ),
        *(
            (step, r"test_dry.py:\d+ item_\w+ \(.*\) needs the value that .* has no data: remove")
            for step in (item_condition, item_factor, item_argument)
        ),
        (
            item_size,
            r"test_dry.py:\d+ item_size \(.*\) failed \(zeros\(\): argument 'size'.*, possibly because item\(\)",
        ),
        (item_in_tensor, r"test_dry.py:\d+ item_in_tensor \(.*\) failed \(Could not infer dtype of Unknown.*possibly"),
        (item_in_function, r"test_dry.py:\d+ item_in_function \(.*\) failed \(ufunc 'isnan' not supported"),
        (loader, r"test_dry.py:\d+ loader \(.*\) needs .*: create the batch in the step without a data loader"),
        (condition, r"test_dry.py:\d+ condition \(.*\) needs the value of a tensor"),
        (nonzero, r"test_dry.py:\d+ nonzero \(.*\) needs the positions of nonzero values"),
        (boolean_index, r"test_dry.py:\d+ boolean_index \(.*\) needs the positions of nonzero values"),
        *((step, r"test_dry.py:\d+ \w+ \(.*\) needs the data of a tensor") for step in (array, pickled)),
        (shared_array, r"test_dry.py:\d+ shared_array \(.*\) needs the data of a tensor"),
        (
            swap,
            r"test_dry.py:\d+ swap \(.*\) swaps tensors: remove this code from the step, or run without --dry",
        ),
        (storage, r"test_dry.py:\d+ storage \(.*\) accesses the storage of a tensor: remove this code"),
        *((step, r"test_dry.py:\d+ \w+ \(.*\) uses a sparse tensor") for step in (sparse, to_sparse, sparse_gradient)),
        (set_storage, r"test_dry.py:\d+ set_storage \(.*\) accesses the storage of a tensor \(Attempted to set"),
        (resized_storage, r"test_dry.py:\d+ resized_storage \(.*\) accesses the storage of a tensor: remove this code"),
        (synchronize, r"test_dry.py:\d+ synchronize \(.*\) needs a GPU"),
    ],
)
def test_refusals(step, reason):
    result = dry(step)
    assert re.search(reason, result.refusal), result.refusal
    assert "\n" not in result.refusal
    assert not result.notes, "no tensor of the step remains"
    assert HOST.tolist() == [0, 0]
    assert (VALUES["sparse"].sum(), len(VALUES), TABLE.grad) == (2, 1, None)


def test_checkpoints_are_not_overwritten(tmp_path, capfd):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"weights of the program")

    def step(batch):
        torch.save(torch.ones(batch), path)

    assert "saves tensors that have no data: remove this code from the step, or run without --dry" in dry(step).refusal
    assert path.read_bytes() == b"weights of the program"
    torch.save(torch.ones(1), path)
    with pytest.raises(RuntimeError, match="reduction dim"):
        dry(lambda batch: torch.ones(batch, 3) @ torch.ones(4, 4))
    assert "failed while attempting" not in capfd.readouterr().err


def test_modules_with_unusual_methods():
    """A class of the program overrides methods by which the names of modules could be found."""

    def refuse(*_):
        raise RuntimeError

    overridden = dict.fromkeys(("children", "named_modules", "get_submodule", "__len__"), refuse)
    layer = type("Odd", (nn.Linear,), overridden)(8, 8)
    model = nn.Sequential(layer)
    result = dry(lambda batch: model(torch.ones(batch, 8)).sum().backward())
    assert "* (Odd)" in {group.label for group in result.breakdown(4, by="module")}


def test_interrupt_while_functions_are_replaced(monkeypatch):
    check, replace = torch.serialization._check_save_filelike, unittest.mock._patch.__enter__

    def interrupted(patch):
        replacement = replace(patch)
        signal.raise_signal(signal.SIGINT)
        return replacement

    monkeypatch.setattr(unittest.mock._patch, "__enter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dry(number)
    assert torch.serialization._check_save_filelike is check


def test_interrupts_while_pytorch_calls_python(monkeypatch):
    """An exception in code that PyTorch calls in a destructor would terminate the process."""
    get, handler = StorageLog.get, signal.getsignal(signal.SIGINT)

    def interrupted(log, storage):
        signal.raise_signal(signal.SIGINT)
        return get(log, storage)

    interrupted = types.FunctionType(
        interrupted.__code__.replace(co_filename=StorageLog.get.__code__.co_filename),
        globals(),
        closure=interrupted.__closure__,
    )
    monkeypatch.setattr(StorageLog, "get", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        dry(number)
    assert caught.traceback[-1].name == "deliver"
    monkeypatch.undo()

    def step(batch):
        torch.ones(batch)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        dry(step)
    assert "step" in [entry.name for entry in caught.traceback]
    assert signal.getsignal(signal.SIGINT) is handler


def test_interrupts_while_an_update_is_computed(monkeypatch):
    like = optimizer_updates._like

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return like(*arguments)

    monkeypatch.setattr(optimizer_updates, "_like", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        optimizer_updates.computed_update(torch, torch.optim.SGD(nn.Linear(1, 1).parameters()))
    assert caught.traceback[-1].name == "deliver"


def test_caches_that_the_step_fills():
    """Tensors without data must not remain in caches, such as those of masks."""

    @functools.lru_cache
    def mask(size):
        return torch.ones(size, size).tril()

    layer = nn.Linear(8, 8)
    result = dry(lambda batch: (layer(torch.ones(batch, 8)) @ mask(8)).sum().backward())
    assert not result.refusal
    assert not result.notes
    assert type(mask(8)) is torch.Tensor


def test_other_threads_are_not_affected():
    """Another thread trains a model while a step is estimated."""
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters())

    def train():
        before = layer.weight.detach().clone()
        layer(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        assert torch.autocast("cuda", enabled=False).device == "cuda"
        assert type(layer.weight.grad) is torch.Tensor
        assert not torch.equal(layer.weight, before)

    def step(batch):
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            executor.submit(train).result()
        torch.ones(batch)

    assert not dry(step).refusal


@pytest.mark.parametrize("steps", [0, 1])
def test_state_of_a_model_without_data(steps):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        model(torch.randn(batch, 8)).sum().backward()
        optimizer.step()

    def state():
        tensors = [*model.parameters(), *model.buffers()]
        tensors += [tensor.grad for tensor in model.parameters() if tensor.grad is not None]
        tensors += [value for values in optimizer.state.values() for value in values.values()]
        return [(id(tensor), type(tensor), tensor._version, tensor.untyped_storage()._cdata) for tensor in tensors]

    for _ in range(steps):
        model(torch.randn(4, 8, device="meta")).sum().backward()
        optimizer.step()
    before = state()
    result = dry(step)
    assert not result.refusal
    assert not result.notes
    assert state() == before


def test_tensors_that_remain():
    cache, layer = [], nn.Linear(4, 4)

    class Loader:
        """An object that is not searched, because it belongs to a library."""

        __module__ = "torch.utils.data"

        def load(self, batch):
            cache.append(torch.ones(batch))
            layer(torch.ones(batch, 4)).sum().backward()

    loader = Loader()

    def step(batch):
        loader.load(batch)

    (note,) = dry(step).notes
    assert note == "Objects that are not part of the step's state refer to 5 fake tensors without data."
    assert layer.weight.grad is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": None}, "PyTorch finds no GPU: pass the memory of the GPU, such as --on '24 GiB'"),
        ({"device": "cuda:0"}, "PyTorch finds no GPU 'cuda:0': pass the memory"),
        ({"device": "600 MiB"}, "'600 MiB' is not more than the 690.0 MiB that CUDA itself uses: pass"),
        ({"device": "much"}, "much"),
        ({"on": "24 GiB"}, "device='24 GiB' requires dry=True, and cannot be combined with the argument on"),
        ({"dry": False}, "device='24 GiB' requires dry=True"),
    ],
)
def test_invalid_devices(options, message):
    with pytest.raises(OptionError, match=message):
        ipygpumem.fit(number, **{"device": "24 GiB", "dry": True, **options})


def test_gpu_of_this_machine(fake_gpu):
    training = Perceptron()
    result = dry(training.step, device=None)
    assert str(result).startswith("step: batch 2 to 64, cuda:0 NVIDIA H200, 139.")
    assert next(g.bytes for g in result.breakdown(4, by="phase") if g.label == "library workspaces") == 65 * MIB
    with pytest.raises(OptionError, match="PyTorch finds no GPU 'cuda:7'"):
        dry(training.step, device="cuda:7")


def test_results_of_repeated_operations_are_cached(monkeypatch, capsys):
    """Cached results have the same shapes, storages and memory usage as those that PyTorch computes."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(100, 32), *layers, nn.Linear(32, 100))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(batch):
        tokens = torch.randint(0, 100, (batch, 16))
        logits = model(tokens)
        functional.cross_entropy(logits.view(-1, 100), tokens.view(-1)).backward()
        roots = torch._foreach_sqrt([parameter.grad.abs() for parameter in model.parameters()])
        views = logits.transpose(0, 1), logits[1:], logits.t() if logits.dim() == 2 else logits.mT
        strided = torch.ones(4, 8).abs(), torch.ones(8, 4).t().abs()
        for item in (*roots, *views, *strided):
            print(item.shape, item.stride(), item.storage_offset(), item.dtype)  # fit would restore a list
        assert all(item.untyped_storage()._cdata == logits.untyped_storage()._cdata for item in views)
        assert roots[0].untyped_storage()._cdata != roots[1].untyped_storage()._cdata
        optimizer.step()
        optimizer.zero_grad()

    def results():
        fit = dry(step, range(2, 9))
        content = [(probe.allocated, probe.reserved) for probe in fit.probes]
        return fit.refusal, content, fit.predict(64), fit.reserved(64), fit.breakdown(64), capsys.readouterr().out

    calls = []
    original = FakeTensorMode.__torch_dispatch__

    def counted(*args, **kwargs):
        calls.append(args[1])
        return original(*args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "__torch_dispatch__", counted)
    cached, count = results(), len(calls)
    calls.clear()
    monkeypatch.setattr(operation_cache, "_is_cacheable", lambda *_: False)
    assert cached == results()
    assert "torch.float32" in cached[-1]
    assert 2 * count < len(calls)


def test_operations_that_are_not_cached(capsys):
    """The results of operations with the values of tensors, and errors, are the same if an operation is repeated."""

    def step(batch):
        count = torch.tensor(0.0)
        for _ in range(3):
            count += 1
            print(count.item())  # fit would restore a list
        parts = torch.zeros(batch, 4).split(2, dim=1)
        assert parts[0].untyped_storage()._cdata == parts[1].untyped_storage()._cdata
        complex_values = torch.fft.fft(torch.zeros(batch, 4))
        assert torch.view_as_real(complex_values).shape == (batch, 4, 2) and complex_values.conj().is_conj()
        for _ in range(2):
            with pytest.raises(RuntimeError):
                torch._foreach_add([torch.zeros(2)], [torch.zeros(2), torch.zeros(2)])
            with pytest.raises(RuntimeError):
                torch.zeros(batch, 3) @ torch.zeros(batch + 4, 3)

    assert not dry(step).refusal
    values = capsys.readouterr().out.split()
    assert values == ["1.0", "2.0", "3.0"] * (len(values) // 3) != []


def test_changes_are_predicted_from_few_runs(monkeypatch):
    """The step without changes has run twice at the smallest size. With changes, this is not repeated."""
    perceptron, sizes, original = Perceptron(), [], DryRunner.run

    def counted(runner, size, **options):
        sizes.append(*size)
        return original(runner, size, **options)

    monkeypatch.setattr(DryRunner, "run", counted)
    fit = dry(perceptron.step, range(1, 65))
    assert sizes[:4] == [2, 2, 4, 2]
    sizes.clear()
    fit.advice()
    assert sizes[:4] == [2, 2, 4, 8]
    assert sizes == sizes[:4] * (len(sizes) // 4)
