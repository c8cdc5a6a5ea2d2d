"""Steps that replace tensors instead of changing them: the predicted memory, and the state afterwards."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import ipygpumem
from ipygpumem.features.fit.tensor_backup import TensorBackup, _layout, _StorageBackup

SIZES = range(1, 65)


class Moments:
    """State of a parameter."""

    def __init__(self, first, second):
        self.first, self.second = first, second


class Program:
    """A model, tensors that the step replaces (``tensors()``), and others that refer to the same storages."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(3)])
        self.parameters = [*self.model.parameters()]
        self.kept = []
        self.state = {}

    def step(self, batch):
        self.model(torch.randn(batch, 128)).sum().backward()
        with torch.no_grad():
            self.update()
        self.model.zero_grad()

    def tensors(self):
        return [*self.model.parameters(), *self.state.values(), *self.kept]


class Data(Program):
    """New data of parameters, of which one is also used by a view."""

    def __init__(self):
        super().__init__()
        self.kept = [self.parameters[0].detach()[:10]]

    def update(self):
        for parameter in self.parameters:
            parameter.data = parameter.data - 1e-3 * parameter.grad
            parameter.grad = None


class Attributes(Program):
    """New objects with tensors. Those of one parameter are also in another object."""

    def __init__(self):
        super().__init__()
        zeros = torch.zeros_like
        self.state = {key: Moments(zeros(item), zeros(item)) for key, item in enumerate(self.parameters)}
        self.kept = [self.state[0].first]

    def tensors(self):
        moments = [item for state in self.state.values() for item in (state.first, state.second)]
        return [*self.model.parameters(), *moments, *self.kept]

    def update(self):
        for key, parameter in enumerate(self.parameters):
            old = self.state[key]
            self.state[key] = Moments(0.9 * old.first + parameter.grad, 0.9 * old.second + parameter.grad**2)
            parameter.sub_(self.state[key].first / (self.state[key].second.sqrt() + 1))


class Views(Program):
    """Averages that are views of a flat tensor before the first update. A graph refers to one of them."""

    def __init__(self):
        super().__init__()
        sizes = [item.numel() for item in self.parameters]
        self.state = dict(enumerate(torch.cat([item.detach().flatten() for item in self.parameters]).split(sizes)))
        self.state["used"] = torch.ones(128, 128)
        self.loss = (self.parameters[0] * self.state["used"]).sum()

    def update(self):
        for key, parameter in enumerate(self.parameters):
            self.state[key] = 0.9 * self.state[key] + 0.1 * parameter.flatten()
        self.state["used"] = self.state["used"] * 0.9
        (gradient,) = torch.autograd.grad(self.loss, self.parameters[0], retain_graph=True)
        assert gradient.sum() == 128 * 128


class Parameters(Program):
    """New parameters, of which an attribute refers to the gradient of the last one."""

    def __init__(self):
        super().__init__()
        for parameter in self.parameters:
            parameter.grad = torch.ones_like(parameter)
        self.parameters.clear()

    def step(self, batch):
        self.model(torch.randn(batch, 128)).sum().backward()
        for layer in self.model:
            layer.last = layer.weight.grad
            layer.weight = nn.Parameter(layer.weight.detach() - 1e-3 * layer.weight.grad)


def returning(value):
    return lambda: value


class Functions(Program):
    """Functions that refer to replaced tensors."""

    def __init__(self):
        super().__init__()
        self.update()

    def tensors(self):
        return [*self.model.parameters(), *(function() for function in self.state.values())]

    def update(self):
        for key, parameter in enumerate(self.parameters):
            value = 0.1 * parameter.detach()
            self.state[key] = (lambda value=value: value) if key % 2 else returning(value)


@pytest.mark.parametrize("kind", [Data, Attributes, Views, Parameters, Functions])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_replaced_tensors(allocations, kind, error):
    """They do not count, as in other steps of the program, and are restored, also if a later run is interrupted."""
    program = kind()
    before = _digest(program)
    kept = [_bytes(tensor) for tensor in program.kept]
    sizes = []

    def step(batch):
        assert [_bytes(tensor) for tensor in program.kept] == kept
        sizes.append(batch)
        program.step(batch)
        if error and batch == 4:
            raise error

    if error:
        with pytest.raises(error):
            ipygpumem.fit(step, SIZES)
    else:
        result = ipygpumem.fit(step, SIZES)
        assert not result.refusal
    assert _digest(program) == before
    if error is None:
        assert result.predict(16) == pytest.approx(_peak(program, 16), rel=0.02)


@pytest.mark.parametrize("kind", [Data, Attributes])
def test_replaced_tensors_without_data(allocations, kind):
    program = kind()
    program.kept.clear()
    before = _digest(program)
    result = ipygpumem.fit(program.step, SIZES, dry=True, device="2 GiB")
    assert _digest(program) == before
    assert result.error == 0
    workspaces = (2 * 8320 << 10) + (1 << 20)  # of cuBLAS, in the forward and the backward pass
    assert result.predict(16) - workspaces == pytest.approx(_peak(program, 16), rel=0.02)


def _digest(program):
    """Return the identity and the state of the tensors, and which of them share a storage."""
    tensors = program.tensors()
    storages = [tensor.untyped_storage() for tensor in tensors]
    addresses = [storage._cdata for storage in storages]
    sharing = [(addresses.index(storage._cdata), storage.nbytes()) for storage in storages]
    state = [(id(item), item._version, item.storage_offset(), item.stride(), item.requires_grad) for item in tensors]
    return state, sharing, [(_bytes(item), _bytes(item.grad)) for item in tensors]


def _bytes(tensor):
    with torch.utils._python_dispatch._disable_current_modes():
        return None if tensor is None else tensor.detach().clone().numpy().tobytes()  # numpy() would fix the size


def _peak(program, size):
    """Return the peak of a later step. Restored tensors are not counted by the fake GPU until they are replaced."""
    for _ in range(3):
        program.step(size)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    program.step(size)
    return torch.cuda.max_memory_allocated()


def test_weak_reference_to_a_replaced_tensor(allocations):
    """A tensor to which code outside the saved state has a weak reference keeps its data."""
    values = {"a": torch.ones(1 << 10)}
    references = [weakref.ref(values["a"])]

    def step(batch):
        values["a"] = torch.zeros(batch, 1 << 10)
        assert references[0]().sum() == 1 << 10

    assert not ipygpumem.fit(step, range(1, 17)).refusal
    assert values["a"] is references[0]()


def test_inference_tensors(allocations):
    """Replaced inference tensors are inference tensors afterwards."""
    with torch.inference_mode():
        values = {"a": torch.arange(1024.0)}
    first = id(values["a"])  # another reference would prevent the tensor from being freed

    def step(batch):
        with torch.inference_mode():
            values["a"] = torch.cat([values["a"][:1], torch.ones(batch)])

    assert not ipygpumem.fit(step, SIZES).refusal
    assert id(values["a"]) == first
    assert values["a"].is_inference()
    assert torch.equal(values["a"].reshape(-1).clone(), torch.arange(1024.0))  # reshape fails if the tensor is damaged


@pytest.mark.skipif(not hasattr(torch._C._autograd.SavedTensor, "data"), reason="the graph's tensors are not available")
def test_graph_of_a_replaced_tensor(allocations):
    """The graph must exist after the analysis, so that its memory cannot be freed: it is stated."""
    model, values = nn.Linear(256, 256), {}

    def step(batch):
        values["out"] = model(torch.ones(batch, 256)).exp()

    step(4096)
    result = ipygpumem.fit(step, SIZES)
    (note,) = [note for note in result.notes if "autograd graph" in note]
    assert "(8.0 MiB)" in note  # input and result
    values["out"].sum().backward()
    assert model.weight.grad is not None
    model.zero_grad()
    step(16)
    torch.cuda.reset_peak_memory_stats()
    step(16)
    assert result.predict(16) - (8 << 20) == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.02)


def test_too_little_memory_to_restore(allocations, monkeypatch):
    """If another process uses the freed memory, the tensors are restored in host memory."""
    values = {"a": torch.arange(1 << 20, dtype=torch.float32)}
    first = id(values["a"])

    class Storages:
        """The class of storages, on a GPU without free memory."""

        def __call__(self, nbytes, **options):
            if options:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return torch.UntypedStorage(nbytes)

    class Torch:
        def __getattr__(self, name):
            return Storages() if name == "UntypedStorage" else getattr(torch, name)

    monkeypatch.setattr(
        _StorageBackup, "_torch", property(lambda self: Torch(), lambda self, value: None), raising=False
    )

    def step(batch):
        values["a"] = values["a"] + batch

    (note,) = ipygpumem.fit(step, SIZES).notes
    assert note.startswith(
        "The GPU had too little free memory to restore 1 storage (4.0 MiB): their tensors are in host"
    )
    assert id(values["a"]) == first
    assert torch.equal(values["a"], torch.arange(1 << 20, dtype=torch.float32))


def test_reference_cycles(allocations):
    """Memory that is freed with reference cycles is not predicted, and stated."""
    model = nn.Linear(256, 256)

    def step(batch):
        values = [model(torch.ones(batch * 256, 256)).sum()]
        values.append(values)

    (note,) = ipygpumem.fit(step, SIZES).notes
    assert note.startswith("The step leaves reference cycles with tensors (")


def test_storage_at_the_same_address():
    """A new storage can have the address of the one that the step has freed."""
    tensor = torch.ones(4)
    saved = TensorBackup(torch, [tensor], contents=True)
    saved.save_contents()
    tensor.data = tensor + 1
    saved._tensors[id(tensor)].layout = _layout(tensor)
    assert not saved.restore()
    assert torch.equal(tensor, torch.ones(4))
