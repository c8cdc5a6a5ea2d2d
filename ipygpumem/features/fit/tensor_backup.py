"""Save tensors, their gradients and the contents of their storages in host memory, and restore them.

Storages and gradients are referenced weakly. If the step replaces them, they are freed as they would be without the
backup, so that runs need no more memory than other steps of the program.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ipygpumem.core.errors import first_line
from ipygpumem.core.introspection import attempt
from ipygpumem.core.units import MIB, many, size
from ipygpumem.features.fit.references import HOOKS
from ipygpumem.features.fit.replaced_objects import graph_storages


class _StorageBackup:
    """A backup of a storage. If the step has freed the storage, a new storage replaces it."""

    def __init__(self, torch: Any, storage: Any, *, weak: bool) -> None:
        self._torch, self.device, self.nbytes = torch, storage.device, storage.nbytes()
        self.is_moved = False
        self._reference = weakref.ref(storage)
        self._storage = None if weak and self._is_replaceable(storage) else storage
        self.contents: Any = None

    @staticmethod
    def _is_replaceable(storage: Any) -> bool:
        """Return whether a storage is neither pinned nor shared with a file, an array or another process."""
        if not storage.resizable():
            return False
        return storage.device.type != "cpu" or not (storage.is_shared() or attempt(storage.is_pinned))

    def current(self) -> Any:
        """Return the storage or, if it was freed, a new storage, in host memory if the GPU memory is exhausted."""
        if self._storage is None:
            untyped = self._torch.UntypedStorage
            self._storage = self._reference()
            if self._storage is None:
                try:
                    self._storage = untyped(self.nbytes, device=self.device)
                except RuntimeError:  # such as an out-of-memory error
                    self.device, self.is_moved = self._torch.device("cpu"), True
                    self._storage = untyped(self.nbytes)
        return self._storage

    def save_contents(self, storage: Any) -> None:
        self.contents = self._bytes(storage).to("cpu", copy=True)

    def restore_contents(self) -> None:
        storage = self.current()
        if storage.nbytes() != self.nbytes:  # a copy to a smaller storage would overwrite other memory
            storage.resize_(self.nbytes)
        contents = self._bytes(storage)
        # memory that the step has not changed may be read-only, such as that of a file
        if self.device.type != "cpu" or not self._torch.equal(contents, self.contents):
            contents.copy_(self.contents)

    def _bytes(self, storage: Any) -> Any:
        return self._torch.empty(0, dtype=self._torch.uint8, device=self.device).set_(storage)


@dataclass(slots=True)
class _TensorState:
    """The saved state of a tensor. For a gradient that is referenced weakly, ``strong`` is None.

    ``storage`` is None if only methods of the tensor can copy its contents, as for sparse tensors. If so, ``alias`` is
    another tensor with the same memory, or None if ``strong`` is None, and ``contents`` is a copy in host memory, or
    None for a sparse tensor whose components are saved.
    """

    strong: Any
    weak: Any
    layout: tuple[Any, ...]
    device: Any
    is_inference: bool
    version: int | None
    requires_grad: bool
    has_graph: bool
    hooks: tuple[Any, ...]
    storage: _StorageBackup | None
    alias: Any = None
    contents: Any = None

    def tensor(self) -> Any:
        return self.weak() if self.strong is None else self.strong


class TensorBackup:
    """A backup of tensors and of their gradients.

    Args:
        torch: The module torch.
        tensors: The tensors to save.
        contents: Whether `save_contents` will be called. If false, the contents of the tensors must not change.
    """

    def __init__(self, torch: Any, tensors: Iterable[Any], *, contents: bool) -> None:
        self._torch = torch
        self._saves_contents = contents
        self._storages: dict[int, _StorageBackup] = {}
        self._freed: set[int] = set()
        self._graphs: dict[int, int] = {}
        real_tensors = [tensor for tensor in tensors if type(tensor).__name__ != "FakeTensor"]
        self._tensors = {id(tensor): self._saved(tensor, strong=True) for tensor in real_tensors}
        self._gradients = [(leaf, self._saved_gradient(leaf.grad)) for leaf in real_tensors if _has_gradient(leaf)]

    def _saved_gradient(self, gradient: Any) -> _TensorState | None:
        # a new tensor would not have the autograd graph of a gradient that was computed with ``create_graph=True``
        has_graph = gradient is not None and gradient.grad_fn is not None
        return None if gradient is None else self._saved(gradient, strong=has_graph or not self._saves_contents)

    def _saved(self, tensor: Any, *, strong: bool) -> _TensorState:
        storage = None
        if self._is_plain(tensor):
            value = tensor.untyped_storage()
            storage = self._storages.get(value._cdata)
            if storage is None:
                storage = self._storages[value._cdata] = _StorageBackup(self._torch, value, weak=self._saves_contents)
        return _TensorState(
            tensor if strong else None,
            None if strong else weakref.ref(tensor),
            _layout(tensor),
            tensor.device,
            tensor.is_inference(),
            _version(tensor),
            tensor.requires_grad,
            tensor.grad_fn is not None,
            _hooks(tensor),
            storage,
            alias=tensor.data if strong and storage is None else None,
        )

    def _is_plain(self, tensor: Any) -> bool:
        torch = self._torch
        is_subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        special = tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
        return not is_subclass and tensor.layout is torch.strided and not tensor.is_nested and not special

    def _all(self) -> list[_TensorState]:
        return [*self._tensors.values(), *(state for _, state in self._gradients if state is not None)]

    @property
    def nbytes(self) -> int:
        """Total size of the contents to save, in bytes."""
        total = sum(storage.nbytes for storage in self._storages.values() if storage.device.type != "meta")
        return int(total + sum(_nbytes(state.tensor()) for state in self._all() if state.storage is None))

    def save_contents(self) -> None:
        """Copy the contents of the tensors and gradients to host memory."""
        for state in self._all():
            tensor = state.tensor()
            if state.storage is None:
                # the components of a sparse tensor are saved
                if state.alias is None or not _is_sparse(tensor):
                    state.contents = tensor.detach().to("cpu", copy=True)
            elif state.storage.contents is None and not tensor.is_meta:
                state.storage.save_contents(tensor.untyped_storage())

    def new_gradients(self) -> list[Any]:
        """Return the current gradients, except those that were saved."""
        pairs = [(leaf.grad, state and state.tensor()) for leaf, state in self._gradients]
        return [gradient for gradient, saved in pairs if gradient is not None and gradient is not saved]

    def holders(self) -> list[Any]:
        return [*self._tensors.values(), *self._gradients]

    def free(self, tensors: Iterable[Any]) -> bool:
        """Free the saved tensors among ``tensors``, which must be otherwise unused. Return whether there are any."""
        freed_states = [self._tensors[id(tensor)] for tensor in tensors if id(tensor) in self._tensors]
        for state in freed_states:
            tensor = state.tensor()
            if tensor.grad_fn is not None and id(state) not in self._freed:
                self._graphs |= graph_storages(tensor.grad_fn)
            self._freed.add(id(state))
            if state.storage is not None:  # sparse tensors consist of other tensors, which are freed
                with self._torch.inference_mode(state.is_inference), self._torch.no_grad():
                    tensor.data = self._torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                    tensor.grad = None
        return bool(freed_states)

    def resized(self) -> int:
        """Return the number of storages whose size has changed."""
        return sum(storage.current().nbytes() != storage.nbytes for storage in self._storages.values())

    def restore(self) -> list[str]:
        """Restore the tensors and gradients. Return sentences about problems."""
        restored: dict[int, Any] = {}

        def restore_tensor(tensor: Any, state: _TensorState) -> None:
            with self._torch.inference_mode(state.is_inference), self._torch.no_grad():
                restored[id(state)] = self._restored(tensor, state)

        def restore_gradient(leaf: Any, state: _TensorState | None) -> None:
            leaf.grad = None if state is None else restored.get(id(state))

        notes = restore_each(restore_tensor, [(state.tensor(), state) for state in self._all()])
        if self._saves_contents:
            storages = [(storage,) for storage in self._storages.values() if storage.contents is not None]
            notes += restore_each(lambda storage: storage.restore_contents(), storages)
        notes += restore_each(restore_gradient, self._gradients)
        versions = [(restored[id(state)], state.version) for state in self._all() if id(state) in restored]
        notes += restore_each(self._set_version, versions)
        if sizes := [storage.nbytes for storage in self._storages.values() if storage.is_moved]:
            notes.append(
                f"The GPU had too little free memory to restore {many(len(sizes), 'storage')} ({size(sum(sizes))}): "
                "their tensors are in host memory. Free GPU memory, and move these tensors to the GPU."
            )
        used_storages = {state.layout[0] for state in self._all() if id(state) not in self._freed}
        graphs = sum(nbytes for address, nbytes in self._graphs.items() if address not in used_storages)
        if graphs >= MIB:
            notes.append(
                "Tensors that the step replaces have an autograd graph from an earlier run, whose saved tensors "
                f"({size(graphs)}) remained in memory: the predictions are too high by their size. Delete or detach "
                "these tensors, and run fit again."
            )
        return notes

    def _restored(self, tensor: Any, state: _TensorState) -> Any:
        """Restore a tensor, except for the contents of its storage, and return it."""
        if tensor is None:  # nothing refers to the old gradient, so a new tensor with the same contents is equivalent
            return self._alias(state)
        if tensor.grad_fn is not None and not state.has_graph:
            tensor.detach_()
        is_replaced = _layout(tensor) != state.layout or tensor.is_inference() != state.is_inference
        if state.storage is not None and tensor.untyped_storage() is not state.storage.current():
            is_replaced = True  # by a storage at the same address
        if is_replaced or (_is_sparse(tensor) and state.alias is not None):
            tensor.data = self._alias(state)
        if tensor.requires_grad != state.requires_grad and tensor.is_leaf:
            tensor.requires_grad_(state.requires_grad)
        for name, hooks, current in zip(HOOKS, state.hooks, _hooks(tensor), strict=True):
            if hooks is None and current is not None:
                setattr(tensor, name, None)  # existing dicts are restored like other containers
        if state.contents is not None:
            tensor.data.copy_(state.contents)
        return tensor

    def _alias(self, state: _TensorState) -> Any:
        if state.storage is None:
            return state.contents.to(state.device, copy=True) if state.alias is None else state.alias
        _, dtype, offset, stride, shape = state.layout
        storage = state.storage.current()
        return self._torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)

    def _set_version(self, tensor: Any, version: int | None) -> None:
        if _version(tensor) == version:
            return
        set_version: Any = getattr(self._torch._C._autograd, "_unsafe_set_version_counter", None)
        try:
            set_version((tensor,), (version,))
        except TypeError:  # before PyTorch 2.5
            attempt(lambda: set_version(tensor, version))


def restore_each(restore: Callable[..., Any], objects: Iterable[tuple[Any, ...]]) -> list[str]:
    """Call ``restore`` with each tuple of arguments. Return a list that contains a sentence if calls failed."""
    reasons = []
    for arguments in objects:
        try:
            restore(*arguments)
        except Exception as error:  # the other objects must be restored
            reasons.append(f"{type(arguments[0]).__name__}, {type(error).__name__}: {first_line(error)}")
    count = many(len(reasons), "object")
    return [f"{count} could not be restored (the first: {reasons[0]})."] if reasons else []


def _has_gradient(tensor: Any) -> bool:
    """Return whether a tensor has a gradient or can accumulate one in a backward pass."""
    return tensor.retains_grad or (tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None))


def _hooks(tensor: Any) -> tuple[Any, ...]:
    return tuple(attempt(functools.partial(getattr, tensor, name)) for name in HOOKS)


def _layout(tensor: Any) -> tuple[Any, ...]:
    parts = (lambda: tensor.untyped_storage()._cdata, lambda: tensor.dtype, tensor.storage_offset)
    return tuple(map(attempt, (*parts, tensor.stride, tensor.size)))


def _version(tensor: Any) -> int | None:
    version: int | None = attempt(lambda: tensor._version)  # inference tensors have none
    return version


def _is_sparse(tensor: Any) -> bool:
    return str(attempt(lambda: tensor.layout)).startswith("torch.sparse")


def _nbytes(tensor: Any) -> int:
    storage = attempt(tensor.untyped_storage)
    if storage is None:
        return 0 if _is_sparse(tensor) else tensor.numel() * tensor.element_size()
    return int(storage.nbytes())
