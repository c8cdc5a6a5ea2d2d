"""Log of the storages of fake tensors: the order of their creation and deletion, and the call stacks."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ipygpumem.core.introspection import attempt
from ipygpumem.snapshot.scaling.simulated_recording import SimulatedAllocation

_PACKAGE = str(Path(__file__).parents[2])
_ATOMIC = {bool, int, float, str, type(None)}
_MAX_FRAMES = 200
_GRAD_SCALER = str(Path("torch", "amp", "grad_scaler.py"))
_OPTIMIZERS = str(Path("torch", "optim"))


class StorageLog:
    """The allocations and frees of the storages of fake tensors.

    Attributes:
        before: Allocations that are older than the last call to `start`.
        requests: Allocations and frees since the last call to `start`: tuples of an allocation and whether it is freed.
        first_uses: By ID of each permanent allocation that was used since the last call to `start`, the number of
            allocations, except permanent ones, between this call and the first use.
    """

    def __init__(self) -> None:
        self.before: list[SimulatedAllocation] = []
        self.requests: list[tuple[SimulatedAllocation, bool]] = []
        self.first_uses: dict[int, int] = {}
        self._live: dict[int, tuple[SimulatedAllocation, Any]] = {}
        self._permanent: list[SimulatedAllocation] = []

    def start(self) -> None:
        """Clear `requests`, and set `before` to the allocations that currently exist."""
        self.before = [*self._permanent, *(allocation for allocation, _ in self._live.values())]
        self.requests, self.first_uses = [], {}

    def add(self, storage: Any, allocation: SimulatedAllocation, *, older: bool = False) -> None:
        """Log the allocation of a storage, in `before` if ``older`` is true, and its free when it is deleted."""
        key = storage._cdata

        def freed(_: Any) -> None:
            self._live.pop(key, None)
            self.requests.append((allocation, True))

        self._live[key] = allocation, weakref.ref(storage, freed)
        if older:
            self.before.append(allocation)
        else:
            self.requests.append((allocation, False))

    def add_permanent(self, allocation: SimulatedAllocation) -> None:
        """Add an allocation that is never freed, such as the workspace of a library."""
        self._permanent.append(allocation)
        self.requests.append((allocation, False))

    def use_permanent(self, allocation: SimulatedAllocation) -> None:
        """Log the first use of a permanent allocation."""
        if id(allocation) not in self.first_uses:
            created = [item for item, freed in self.requests if not freed and item not in self._permanent]
            self.first_uses[id(allocation)] = len(created)

    def get(self, storage: Any) -> SimulatedAllocation | None:
        entry = self._live.get(storage._cdata)
        return None if entry is None else entry[0]

    def is_replaced(self, tensor: Any, copy: Any) -> bool:
        """Return whether the step has replaced the data of a tensor. ``copy`` is its fake copy or None."""
        storage = attempt(tensor.untyped_storage)
        if storage is None or self.get(storage) is None:
            return False
        return copy is None or copy.untyped_storage()._cdata != storage._cdata

    def remaining(self, known_storages: Iterable[Any]) -> int:
        """Return the number of logged storages that still exist and are not in ``known_storages``."""
        keys = {storage._cdata for storage in known_storages}
        return sum(key not in keys for key in self._live)


def meta_view(torch: Any, tensor: Any) -> Any:
    """Return a tensor on the meta device with the storage, shape and strides of a fake tensor."""
    view = torch.empty(0, dtype=tensor.dtype, device="meta")
    return view.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def map_tensors(torch: Any, function: Callable[[Any], Any], values: Any) -> Any:
    """Return nested containers whose tensors are replaced by the results of ``function``. Faster than ``tree_map``."""
    kind = type(values)
    if kind is tuple or kind is list:
        return kind([map_tensors(torch, function, value) for value in values])
    if kind is dict:
        return {key: map_tensors(torch, function, value) for key, value in values.items()}
    if kind in _ATOMIC:
        return values
    return function(values) if isinstance(values, torch.Tensor) else torch.utils._pytree.tree_map(function, values)


class CallStackRecorder:
    """Captures call stacks in the format of PyTorch's memory snapshots. Equal stacks are the same list."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._stacks: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    @staticmethod
    def in_grad_scaler() -> bool:
        """Return whether a `GradScaler` is checking the gradients for infinite values."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "_maybe_opt_step" and code.co_filename.endswith(_GRAD_SCALER):
                return True
            frame = frame.f_back
        return False

    def capture(self) -> tuple[list[dict[str, Any]], Any, bool]:
        """Capture the call stack.

        Returns:
            A tuple of the call stack without frames of this package, the innermost module whose ``forward`` is running,
            or None, and whether an optimizer's update is running.
        """
        frames: list[dict[str, Any]] = []
        module, optimizer = None, False
        frame: Any = sys._getframe(1)
        while frame is not None and len(frames) < _MAX_FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith(_PACKAGE):
                # code objects of different files can be equal, such as those of functions in two cells
                key = code.co_filename, frame.f_lineno, code.co_name
                entry = self._frames.get(key)
                if entry is None:
                    entry = dict(zip(("filename", "line", "name"), key, strict=True))
                    self._frames[key] = entry
                frames.append(entry)
                optimizer |= code.co_name == "step" and _OPTIMIZERS in code.co_filename
                if module is None and code.co_name == "_call_impl":
                    module = frame.f_locals.get("self")
            frame = frame.f_back
        return self._stacks.setdefault(tuple(map(id, frames)), frames), module, optimizer
