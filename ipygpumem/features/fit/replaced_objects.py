"""Find tensors that a step has replaced and that exist only because the state of the step is saved.

As in Python's garbage collector, the references between the replaced objects are subtracted from their reference
counts: an object is in use if references remain, or if an object in use refers to it.

`graph_storages` returns the storages that an autograd graph keeps.
"""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any

from ipygpumem.core.introspection import attempt, is_instance
from ipygpumem.features.fit.references import base_of_view

_CONTAINERS = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    types.CellType,
    types.MethodType,
    functools.partial,
)


def unused_tensors(
    torch: Any, replaced: list[Any], holders: Iterable[Any], instances: set[int], *, weak: bool
) -> list[Any]:
    """Return the replaced tensors to which only the saved state and other unused objects refer.

    Args:
        torch: The module torch.
        replaced: Values that the step has replaced. This function empties the list.
        holders: Containers of the saved state, which refer to objects of the step.
        instances: IDs of the objects whose attributes can be tensors of the step.
        weak: Whether objects with weak references are considered in use, because the program can still access them.
    """
    objects: dict[int, Any] = {}
    reference = _add_unused_object(objects)
    while replaced:
        key = id(replaced[-1])
        if key in objects or not gc.is_tracked(replaced[-1]):
            replaced.pop()
        else:
            objects[key] = replaced.pop()
            replaced += _referents(torch, objects[key], instances, native=True)
    references = collections.Counter(map(id, gc.get_referents(*holders)))
    references.update(id(value) for key in objects for value in _referents(torch, objects[key], instances))
    outside_references = {key: sys.getrefcount(objects[key]) - references[key] for key in objects}
    unused_count = outside_references[reference]  # depends on the version of Python
    tensors = [key for key in objects if is_instance(objects[key], torch.Tensor)]
    views = collections.Counter(id(base) for key in tensors for base in base_of_view(objects[key]))
    for key in tensors:
        native = _native_references(objects[key])
        outside_references[key] += max(native - views[key], 0)  # such as references from an autograd graph
        outside_references[key] -= int(native > 0 and _counts_native_references(torch))
    pending = [
        key
        for key in objects
        if outside_references[key] > unused_count or (weak and weakref.getweakrefcount(objects[key]))
    ]
    used_ids = set(pending)
    while pending:
        value = objects[pending.pop()]
        referent_ids = set(map(id, _referents(torch, value, instances, native=True)))
        pending += referent_ids & objects.keys() - used_ids
        used_ids |= referent_ids
    return [objects[key] for key in tensors if key not in used_ids]


def graph_storages(graph: Any) -> dict[int, int]:
    """Return the size in bytes of each storage that an autograd graph has saved for the backward pass.

    The keys are the addresses of the storage objects (``_cdata``). ``graph`` is the ``grad_fn`` of the output. The
    result is empty if the installed version of PyTorch does not expose saved tensors.
    """
    sizes: dict[int, int] = {}
    nodes, pending = set(), [graph]
    while pending:
        node = pending.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        pending += [next_node for next_node, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                values = attempt(functools.partial(getattr, node, name))
                for value in values if isinstance(values, tuple) else (values,):
                    tensor = getattr(value, "data", None)  # None if the backward pass has freed it
                    storage = None if tensor is None else attempt(tensor.untyped_storage)
                    if storage is not None:
                        sizes[storage._cdata] = storage.nbytes()
    return sizes


def _add_unused_object(objects: dict[int, Any]) -> int:
    value = _UnusedObject()
    objects[id(value)] = value
    return id(value)


class _UnusedObject:
    """Class of an object that is not in use. Its reference count is compared with those of other objects."""


def _referents(torch: Any, value: Any, instances: set[int], *, native: bool = False) -> list[Any]:
    """Return the objects to which a tensor, function, container or one of ``instances`` refers.

    For other values, the result is empty. If ``native`` is true, the base of a view is included, to which only C++ code
    refers.
    """
    if is_instance(value, torch.Tensor):
        return [*gc.get_referents(value), *(base_of_view(value) if native else ())]
    if type(value) is types.FunctionType:  # not its global variables
        return [part for part in (value.__closure__, value.__defaults__, value.__kwdefaults__) if part is not None]
    followed = issubclass(type(value), _CONTAINERS) or id(value) in instances
    return gc.get_referents(value) if followed else []


def _native_references(tensor: Any) -> int:
    """Return the number of references to a tensor from PyTorch's C++ code, or 1 if it is unknown."""
    count: int | None = attempt(lambda: tensor._use_count() - 1)
    return 1 if count is None else count


@functools.cache
def _counts_native_references(torch: Any) -> bool:
    """Return whether the reference count of a tensor's Python object includes references from C++ code."""
    tensor = torch.empty(1)
    before = sys.getrefcount(tensor)
    view = tensor[:0]
    return sys.getrefcount(tensor) > before and view is not None
