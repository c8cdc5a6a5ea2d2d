"""Computation of the memory usage of an optimizer's update on fake parameters, so that the update itself is not run.

While a step is recorded, a hook replaces updates of optimizers of ``torch.optim`` with the same allocations if they can
be computed. The state that a first update would create is allocated beforehand, because every later step has it.
"""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import attempt

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class ComputedUpdate:
    """Allocations and frees of an optimizer's update, computed on fake parameters.

    Attributes:
        state: Device and size in bytes of each tensor of the optimizer's state that does not exist yet.
        events: Allocations and frees of temporary tensors in one update, in order: tuples of the number of the
            allocation, its device, and its size in bytes, or None for a free.
    """

    state: tuple[tuple[str, int], ...]
    events: tuple[tuple[int, str, int | None], ...]

    def total(self, device: str) -> int:
        """Return the size of the missing state on a device plus the peak size of the temporary tensors, in bytes."""
        live: dict[int, int] = {}
        highest = 0
        for number, place, nbytes in self.events:
            if place == device:
                live[number] = nbytes or 0
                highest = max(highest, sum(live.values())) if nbytes else highest
        return highest + sum(nbytes for place, nbytes in self.state if place == device)


class OptimizerUpdateReplacer:
    """Context manager that replaces updates of optimizers with their allocations and frees, if these can be computed.

    Args:
        torch: The module torch.
        allowed: Function that returns whether there is enough memory for a computed update. It is called before the
            state is allocated. If it returns False, this update and all later updates are skipped.

    Attributes:
        run: Names of the optimizer classes whose updates could not be computed and were run.
        skipped: Whether an update was skipped because ``allowed`` returned False.
        computed: The computed updates by optimizer ID; None for an update that cannot be computed.
    """

    def __init__(self, torch: Any, allowed: Callable[[ComputedUpdate], bool]) -> None:
        self._torch = torch
        self._allowed = allowed
        self._handle: Any = None
        self._state: dict[int, list[Any]] = {}
        self._existing_ids: dict[int, set[int]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._thread = threading.get_ident()
        self.run: set[str] = set()
        self.skipped = False
        self.computed: dict[int, ComputedUpdate | None] = {}

    def __enter__(self) -> Self:
        self._handle = import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(self._replace)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._state.clear()
        self._optimizers.clear()
        self.computed.clear()

    def prepare(self, optimizer: Any) -> ComputedUpdate | None:
        """Return the update of an optimizer, or None if it cannot be computed.

        The first call for an optimizer computes the update and, if ``allowed`` returns True, allocates the state that
        does not exist yet.
        """
        if id(optimizer) not in self.computed:
            key = id(optimizer)
            self._existing_ids[key] = state_ids(optimizer)
            self._optimizers[key] = weakref.ref(optimizer, lambda _: self._forget(key))  # the step may have created it
            update = attempt(lambda: computed_update(self._torch, optimizer)) if _is_known(optimizer) else None
            self.computed[id(optimizer)] = update
            if update is not None and self._allowed(update):
                self._state[id(optimizer)] = [self._allocate(*item) for item in update.state]
            elif update is not None:
                self.skipped = True
        return self.computed[id(optimizer)]

    def states(self) -> dict[int, tuple[list[Any], list[Any]]]:
        """Return, by optimizer ID, two lists: the tensors of its state, and those that its first update creates."""
        existing = [(key, optimizer) for key, get in self._optimizers.items() if (optimizer := get()) is not None]
        return {
            key: optimizer_state(optimizer, self._existing_ids[key], self._state.get(key, ()))
            for key, optimizer in existing
        }

    def _forget(self, key: int) -> None:
        for values in (self._optimizers, self._existing_ids, self._state, self.computed):
            values.pop(key, None)

    def _allocate(self, device: str, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=device)

    def _replace(self, optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread and id(optimizer) not in self.computed:
            return None  # another thread trains another model
        update = self.prepare(optimizer)
        if update is None:
            self.run.add(type(optimizer).__name__)
            return None
        target, *remaining_arguments = arguments
        options = dict(options)
        closure = options.pop("closure", None) or (remaining_arguments.pop(0) if remaining_arguments else None)

        def replacement() -> Any:
            loss = None if closure is None else closure()
            self._replay(update)
            return loss

        # passed as a closure, so that its allocations are attributed to the update
        return (_without_parameters(target), replacement, *remaining_arguments), options

    def _replay(self, update: ComputedUpdate) -> None:
        live: dict[int, Any] = {}
        for number, device, nbytes in () if self.skipped else update.events:
            if nbytes is None:
                live.pop(number, None)
            else:
                live[number] = self._allocate(device, nbytes)


def state_ids(optimizer: Any) -> set[int]:
    """Return the IDs of the tensors that an optimizer's state currently contains."""
    return set(map(id, optimizer_state(optimizer, set())[0]))


def optimizer_state(optimizer: Any, old_ids: set[int], allocated: Iterable[Any] = ()) -> tuple[list[Any], list[Any]]:
    """Return the tensors of an optimizer's state and of ``allocated``, and those whose IDs are not in ``old_ids``."""
    tensors = [*_tensors(sys.modules["torch"], list(optimizer.state.values())), *allocated]
    return tensors, [tensor for tensor in tensors if id(tensor) not in old_ids]


def _is_known(optimizer: Any) -> bool:
    return (type(optimizer).step.__module__ or "").startswith("torch.optim.")


def _without_parameters(optimizer: Any) -> Any:
    """Return an optimizer of the same class that has no parameters, so that its update changes nothing."""
    copy = object.__new__(type(optimizer))
    copy.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    copy.param_groups, copy.state = [], collections.defaultdict(dict)
    return copy


def computed_update(torch: Any, optimizer: Any, **options: Any) -> ComputedUpdate:
    """Run the update of an optimizer twice on fake parameters, and return its allocations and the missing state.

    The first run creates the missing state; the allocations are those of the second run. The parameters that have
    gradients are updated or, if none has a gradient, all parameters that require gradients. ``options`` replace options
    of the optimizer. If they are given, the first run creates all state.
    """
    fake = import_module("torch._subclasses.fake_tensor")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    updated = {id(parameter) for parameter in parameters if parameter.grad is not None}
    updated = updated or {id(parameter) for parameter in parameters if parameter.requires_grad}
    constants = _constants(optimizer)
    mode = fake.FakeTensorMode(allow_non_fake_inputs=False)
    trace_mode = _storage_trace_mode(torch)
    modes = import_module("torch.utils._python_dispatch")
    with DeferredInterrupts(), modes._disable_current_modes(), mode:  # an interrupt could terminate the process
        copy = _without_parameters(optimizer)
        copies = {id(parameter): _like(torch, parameter).requires_grad_() for parameter in parameters}
        copy.param_groups = [
            {
                **group,
                "params": [copies[id(parameter)] for parameter in group["params"]],
                **selected_foreach(group),
                **options,
            }
            for group in optimizer.param_groups
        ]
        for parameter, state in () if options else optimizer.state.items():
            if id(parameter) in copies:
                copy.state[copies[id(parameter)]] = {
                    name: _like(torch, value, constants.get(id(value))) if torch.is_tensor(value) else value
                    for name, value in state.items()
                }
        existing = {id(value) for state in copy.state.values() for value in state.values()}
        step = type(optimizer).step
        step = step.__wrapped__ if getattr(step, "hooked", False) else step
        start = 0
        for _ in range(2):
            for parameter in parameters:
                if id(parameter) in updated:
                    copies[id(parameter)].grad = _like(torch, parameter)
            start = len(trace_mode.storage_trace.events)
            with trace_mode:
                step(copy)
        new_tensors = [value for state in copy.state.values() for value in state.values() if torch.is_tensor(value)]
        state = [(str(value.device), _nbytes(value)) for value in new_tensors if id(value) not in existing]
        kept_storages = {value.untyped_storage()._cdata for value in new_tensors}
        events = tuple(trace_mode.storage_trace.events_without(kept_storages, start))
    return ComputedUpdate(tuple(state), events)


def _constants(optimizer: Any) -> dict[int, Any]:
    """Return the values of the optimizer's scalar tensors in host memory, such as the number of steps, by tensor ID."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return {
        id(value): value.item()
        for value in values
        if hasattr(value, "item") and value.device.type == "cpu" and not value.dim()
    }


def _like(torch: Any, tensor: Any, constant: Any = None) -> Any:
    if constant is not None:
        return torch.tensor(constant, dtype=tensor.dtype)  # a fake tensor stores the value of a constant
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _nbytes(tensor: Any) -> int:
    return int(tensor.untyped_storage().nbytes())


def selected_foreach(group: dict[str, Any]) -> dict[str, Any]:
    """Return a dict with the value of ``foreach`` that PyTorch selects if it selects one, otherwise an empty dict."""
    if group.get("foreach", True) is not None or group.get("fused"):
        return {}
    select: Any = getattr(import_module("torch.optim.optimizer"), "_default_to_fused_or_foreach", None)
    differentiable = group.get("differentiable", False)
    selection = attempt(lambda: select(group["params"], differentiable, use_fused=False))
    return {} if selection is None else {"foreach": selection[1]}


def _storage_trace_mode(torch: Any) -> Any:
    class StorageTraceMode(import_module("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.storage_trace = _StorageTrace()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inputs = {leaf.untyped_storage()._cdata for leaf in _tensors(torch, (args, kwargs))}
            result = function(*args, **(kwargs or {}))
            for leaf in _tensors(torch, result):
                if leaf.untyped_storage()._cdata not in inputs:
                    self.storage_trace.add(leaf.untyped_storage(), str(leaf.device))
            return result

    return StorageTraceMode()


class _StorageTrace:
    """The creation and deletion of storages in a `StorageTraceMode`, in the order in which they happen."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, int | None]] = []
        self._live: dict[int, tuple[int, Any]] = {}
        self._numbers = itertools.count()

    def add(self, storage: Any, device: str) -> None:
        key = storage._cdata
        if key not in self._live and storage.nbytes():
            number = next(self._numbers)

            def freed(_: Any) -> None:
                self._live.pop(key, None)
                self.events.append((number, device, None))

            self._live[key] = number, weakref.ref(storage, freed)
            self.events.append((number, device, storage.nbytes()))

    def events_without(self, kept_storages: set[int], start: int) -> list[tuple[int, str, int | None]]:
        """Return the events from index ``start`` on, except those of storages in ``kept_storages``."""
        numbers = {number for key, (number, _) in self._live.items() if key in kept_storages}
        return [event for event in self.events[start:] if event[0] not in numbers]


def _tensors(torch: Any, values: Any) -> list[Any]:
    if torch.is_tensor(values):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    return [leaf for value in values for leaf in _tensors(torch, value)] if isinstance(values, (list, tuple)) else []
