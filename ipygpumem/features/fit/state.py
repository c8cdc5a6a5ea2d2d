"""Save and restore the state that a step changes: tensors, gradients, objects, names and random numbers.

Everything is restored in place. Objects keep their identity, and version counters their value, so that an
autograd graph that was built before the step remains valid. The contents of tensors are saved in host memory.
"""

from __future__ import annotations

import collections
import functools
import queue
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.introspection import attempt
from ipygpumem.core.units import many, size
from ipygpumem.features.fit.containers import (
    added_items,
    attributes,
    items_of,
    restore_array,
    restore_attributes,
    restore_cell,
    restore_items,
    restore_names,
    writable_arrays,
)
from ipygpumem.features.fit.random_numbers import random_state
from ipygpumem.features.fit.references import cached_values, cell_contents
from ipygpumem.features.fit.side_effects import position
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.sources.host import read_host

_HOST_SHARE = 0.5
"""Share of the available host memory that the saved contents may use."""


@dataclass(slots=True)
class _Gradient:
    """The gradient of a leaf tensor. ``value`` is a copy in host memory, or None if there is no gradient.

    Only a weak reference is kept: a gradient that the step deletes must be freed, as it would be without the saved
    state.
    """

    leaf: Any
    reference: Any
    value: Any
    version: int | None
    layout: tuple[Any, ...] = ()
    nbytes: int = 0


class SavedState:
    """The state of all objects that a step can change. Call `restore` once.

    Args:
        torch: The module torch.
        roots: Objects at which the search for the state starts, by name.
        namespaces: Global variables, and the names of those to save.
        contents: Whether to save the contents of tensors. Otherwise, they must not be changed.

    Raises:
        OptionError: Host memory is insufficient, there are too many objects, or the model has lazy parameters.
    """

    def __init__(
        self,
        torch: Any,
        roots: Mapping[str, Any],
        namespaces: Iterable[tuple[dict[str, Any], Iterable[str]]] = (),
        *,
        contents: bool = True,
    ) -> None:
        self._torch = torch
        self._saves_contents = contents
        self.objects = objects = StepObjects(torch, roots)
        for variables, names in namespaces:
            objects.add_namespace(variables, names)
        if any(map(torch.nn.parameter.is_lazy, objects.tensors)):
            raise OptionError("the model has lazy parameters, which the first step initializes: run one step first")
        with _without_modes(torch):
            self._aliases = [
                (tensor, tensor.data, _version(tensor), tensor.requires_grad, tensor.grad_fn is not None)
                for tensor in objects.tensors
                if not tensor.is_meta and type(tensor).__name__ != "FakeTensor"  # as in exported graphs
            ]
            self._sizes = [_nbytes(alias) for _, alias, *_ in self._aliases]
            arrays = list(writable_arrays(objects.arrays))
            if contents:
                self._check_host_memory(sum(array.nbytes for array in arrays))
            self._contents = list(self._saved_contents()) if contents else []
            self._gradients = list(self._saved_gradients())
            self._random = random_state(torch, objects.generators)
        self._arrays = [(array, array.copy()) for array in arrays]
        self._items = [(name, container, items_of(container)) for name, container in objects.containers]
        self._attributes = [(instance, attributes(instance), type(instance)) for instance in objects.instances]
        self._variables = [
            (variables, dict(variables), objects.names[id(variables)]) for variables in objects.namespaces
        ]
        self._cells = [(cell, cell_contents(cell)) for cell in objects.cells]
        self._positions = [(name, iterator, position(iterator)) for name, iterator in objects.iterators]
        self._grad_enabled = torch.is_grad_enabled()

    def restore(self) -> list[str]:
        """Restore the state and return sentences about containers that grew and about what could not be restored."""
        notes = [
            f"The step advanced {_described(name, iterator)}, which is not undone."
            for name, iterator, saved_position in self._positions
            if position(iterator) != saved_position
        ]
        for name, container, items in self._items:
            added = added_items(container, items)
            if added > 0 and name and type(container) in {list, collections.deque}:
                notes.append(f"{name} grew by {many(added, 'item')}, which were removed.")
        torch = self._torch
        torch.set_grad_enabled(self._grad_enabled)
        torch.clear_autocast_cache()  # contains copies of parameters
        notes += _restore_each(lambda restore: restore(), [(restore,) for restore in self._random])
        notes += _restore_each(restore_names, self._variables)
        notes += _restore_each(restore_cell, self._cells)
        notes += _restore_each(restore_attributes, self._attributes)
        notes += _restore_each(restore_items, [(container, items) for _, container, items in self._items])
        notes += _restore_each(restore_array, self._arrays)
        if not self._saves_contents:
            notes += self._notes_without_contents()
        with _without_modes(torch), torch.no_grad():
            notes += _restore_each(_restore_alias, self._aliases)
            notes += _restore_each(self._restore_contents, self._contents)
            notes += _restore_each(self._restore_gradient, [(gradient,) for gradient in self._gradients])
            notes += _restore_each(self._set_version, [(tensor, version) for tensor, _, version, *_ in self._aliases])
        return notes

    def _notes_without_contents(self) -> list[str]:
        for function in self.objects.caches:
            if any(map(_contains_fake_tensor, cached_values(function))):
                function.cache_clear()
        resized = sum(
            _nbytes(alias) != nbytes for (_, alias, *_), nbytes in zip(self._aliases, self._sizes, strict=True)
        )
        return [f"The step resized {many(resized, 'storage')}, which is not undone."] if resized else []

    def _check_host_memory(self, needed: int) -> None:
        """Check whether ``needed`` bytes and copies of the tensors fit into host memory."""
        needed += sum({_key(alias): _nbytes(alias) for _, alias, *_ in self._aliases}.values())
        available = read_host(available=True).available
        if available is not None and needed > _HOST_SHARE * available:
            raise OptionError(
                f"the tensors and arrays of the step ({size(needed)}) cannot be saved in host memory, of which "
                f"{size(available)} is available: at least {size(2 * needed)} is required"
            )

    def _saved_contents(self) -> Iterator[tuple[Any, int, Any]]:
        """Yield tuples of a tensor, the size of its storage and a copy. A shared storage is saved once."""
        seen = set()
        for _, alias, *_ in self._aliases:
            key = _key(alias)
            if key in seen or _is_sparse(alias):  # the components of a sparse tensor are saved
                continue
            contents = self._bytes(alias)
            if contents is not alias:
                seen.add(key)
            yield alias, _nbytes(alias), contents.to("cpu", copy=True)

    def _restore_contents(self, tensor: Any, nbytes: int, saved: Any) -> None:
        _restore_size(tensor, nbytes)
        contents = self._bytes(tensor)
        # memory that the step has not changed may be read-only, such as that of a file
        if contents is tensor or contents.device.type != "cpu" or not self._torch.equal(contents, saved):
            contents.copy_(saved)

    def _bytes(self, tensor: Any) -> Any:
        torch = self._torch
        if type(tensor) in {torch.Tensor, torch.nn.Parameter} and tensor.layout is torch.strided:
            return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        return tensor  # a tensor subclass, whose storages only its methods can copy

    def _saved_gradients(self) -> Iterator[_Gradient]:
        for leaf in self._leaves():
            gradient = leaf.grad
            if gradient is None:
                yield _Gradient(leaf, None, None, 0)
                continue
            if not self._saves_contents:
                yield _Gradient(leaf, functools.partial(_identity, gradient), None, _version(gradient))
                continue
            value = gradient.detach().to("cpu", copy=True)
            reference = functools.partial(_identity, gradient) if gradient._is_view() else weakref.ref(gradient)
            layout = (gradient.size(), gradient.stride()) if gradient.layout is self._torch.strided else ()
            yield _Gradient(leaf, reference, value, _version(gradient), layout, _nbytes(gradient))

    def _leaves(self) -> Iterator[Any]:
        for tensor in self.objects.tensors:
            if tensor.retains_grad or (tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None)):
                yield tensor

    def _restore_gradient(self, saved: _Gradient) -> None:
        if saved.reference is None:
            saved.leaf.grad = None
            return
        gradient = saved.reference()
        if gradient is None:  # nothing refers to the old gradient, so a new tensor with the same contents is equivalent
            device = saved.leaf.device
            if saved.layout:
                gradient = self._torch.empty_strided(*saved.layout, dtype=saved.value.dtype, device=device)
                gradient.copy_(saved.value)
            else:
                gradient = saved.value.to(device, copy=True)
        else:
            if saved.value is not None:
                _restore_size(gradient, saved.nbytes)
                gradient.data.copy_(saved.value)
            self._set_version(gradient, saved.version)
        saved.leaf.grad = gradient

    def _set_version(self, tensor: Any, version: int | None) -> None:
        if _version(tensor) == version:
            return
        set_version: Any = getattr(self._torch._C._autograd, "_unsafe_set_version_counter", None)
        try:
            set_version((tensor,), (version,))
        except TypeError:  # before PyTorch 2.5
            attempt(lambda: set_version(tensor, version))


def _identity(value: Any) -> Any:
    return value


def _contains_fake_tensor(value: Any) -> bool:
    items = value if type(value) in {tuple, list} else [value]
    return any(type(item).__name__ == "FakeTensor" for item in items)


def _without_modes(torch: Any) -> Any:
    """Return a context manager that disables the program's dispatch modes."""
    disable = getattr(sys.modules.get("torch.utils._python_dispatch"), "_disable_current_modes", None)
    return torch.no_grad() if disable is None else disable()


def _described(name: str, iterator: Any) -> str:
    kind = "queue" if issubclass(type(iterator), queue.Queue | queue.SimpleQueue) else "iterator"
    return f"the {kind} {name}" if name else f"{'a' if kind == 'queue' else 'an'} {kind}"


def _restore_each(restore: Callable[..., Any], objects: Iterable[tuple[Any, ...]]) -> list[str]:
    """Call a function with each tuple of arguments. Return a sentence if objects could not be restored."""
    reasons = []
    for arguments in objects:
        try:
            restore(*arguments)
        except Exception as error:  # the other objects must be restored
            reasons.append(f"{type(arguments[0]).__name__}, {type(error).__name__}: {first_line(error)}")
    count = many(len(reasons), "object")
    return [f"{count} could not be restored (the first: {reasons[0]})."] if reasons else []


def _restore_alias(tensor: Any, alias: Any, _: int | None, requires_grad: bool, has_graph: bool) -> None:
    if tensor.grad_fn is not None and not has_graph:
        tensor.detach_()
    layout, saved_layout = (
        (attempt(item.data_ptr), attempt(item.size), attempt(item.stride), item.dtype) for item in (tensor, alias)
    )
    if layout != saved_layout or _is_sparse(tensor):
        tensor.data = alias
    if tensor.requires_grad != requires_grad and tensor.is_leaf:
        tensor.requires_grad_(requires_grad)


def _restore_size(tensor: Any, nbytes: int) -> None:
    """Restore the size of a storage, because a copy to a smaller storage would overwrite other memory."""
    if _nbytes(tensor) != nbytes:
        tensor.untyped_storage().resize_(nbytes)


def _version(tensor: Any) -> int | None:
    version: int | None = attempt(lambda: tensor._version)  # inference tensors have none
    return version


def _key(tensor: Any) -> tuple[Any, ...]:
    storage = attempt(tensor.untyped_storage)
    return (id(tensor),) if storage is None else (tensor.device, storage.data_ptr(), storage.nbytes())


def _is_sparse(tensor: Any) -> bool:
    return str(attempt(lambda: tensor.layout)).startswith("torch.sparse")


def _nbytes(tensor: Any) -> int:
    storage = attempt(tensor.untyped_storage)
    if storage is None:
        return 0 if _is_sparse(tensor) else tensor.numel() * tensor.element_size()
    return int(storage.nbytes())
