"""References from objects to other objects, and the classes and modules that can contain state of a step.

The references are those that `containers` does not handle, such as references of closures, caches, views and weak
containers. No code of metaclasses is run.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import queue
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import sharedctypes
from typing import Any

import numpy as np

from ipygpumem.core.introspection import attempt, is_instance, is_library_file, mro, type_dict

_REFERENTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    memoryview: lambda value: [value.obj],
    weakref.ref: lambda value: [weakref.ref.__call__(value)],
    weakref.ProxyType: lambda value: [value.__init__.__self__],
    weakref.CallableProxyType: lambda value: [value.__init__.__self__],
    weakref.WeakValueDictionary: lambda value: list(value.values()),
    weakref.WeakSet: list,
    contextvars.ContextVar: lambda value: [value.get(None)],
    threading.local: lambda value: [value.__dict__],
    type({}.keys()): lambda value: [value.mapping],
    type({}.values()): lambda value: [value.mapping],
    type({}.items()): lambda value: [value.mapping],
    types.MappingProxyType: lambda value: list(value.values()),
    sharedctypes.SynchronizedBase: lambda value: [np.frombuffer(value.get_obj(), "u1")],
    functools._lru_cache_wrapper: lambda value: [value.__wrapped__, *cached_values(value)],
}


_READERS = {id(kind): read for kind, read in _REFERENTS.items()}
"""Functions in `_REFERENTS` by the ID of the class, because hashing a class can run code of its metaclass."""


def is_reference(value: Any) -> bool:
    """Return whether `referents` can return the objects to which a value refers.

    Examples are instances of ``weakref.ref``, ``memoryview`` and ``contextvars.ContextVar``.
    """
    return any(id(base) in _READERS for base in mro(type(value)))


def referents(reference: Any) -> Iterable[Any]:
    """Return the objects to which a value refers, or nothing if they cannot be read. `is_reference` must be true."""
    read = next(_READERS[id(base)] for base in mro(type(reference)) if id(base) in _READERS)
    return attempt(lambda: read(reference)) or ()


def cell_contents(cell: types.CellType) -> tuple[Any, ...]:
    """Return the value of a closure cell as a tuple of one element, or an empty tuple if the cell is empty."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def base_of_view(tensor: Any) -> tuple[Any, ...]:
    """Return the base of a view as a tuple of one element, or an empty tuple if there is no base or a sparse one."""
    base = attempt(lambda: tensor._base)
    return () if base is None or str(base.layout) != "torch.strided" else (base,)


def sparse_components(tensor: Any) -> tuple[Any, ...]:
    """Return the index and value tensors of a sparse tensor, or an empty tuple for other tensors."""
    layout = str(attempt(lambda: tensor.layout))
    if not layout.startswith("torch.sparse"):
        return ()
    rows = ("crow", "col") if layout in {"torch.sparse_csr", "torch.sparse_bsr"} else ("ccol", "row")
    names = ("_indices", "_values") if layout == "torch.sparse_coo" else (*(f"{row}_indices" for row in rows), "values")
    return tuple(getattr(tensor.detach(), name)() for name in names)


def queued_items(items: Any) -> list[Any]:
    """Return the items of a ``queue.Queue``, or an empty list for other objects."""
    return list(items.queue) if issubclass(type(items), queue.Queue) else []


HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of tensors that contain a dict of hooks, or None."""


def tensor_hooks(tensor: Any) -> list[Any]:
    """Return the dicts that contain the hooks of a tensor, or an empty list if it has no hooks."""
    hooks = [attempt(functools.partial(getattr, tensor, name)) for name in HOOKS]
    return [hook for hook in hooks if hook is not None]


def global_containers() -> list[Any]:
    """Return dicts of libraries that a step can change by calling functions: global hooks and Accelerate's state."""
    values = [
        (name, value)
        for module in ("torch.nn.modules.module", "torch.optim.optimizer", "accelerate.state")
        for name, value in vars(sys.modules.get(module, types)).items()
    ]
    hooks = [value for name, value in values if name.startswith("_global_") and isinstance(value, dict)]
    states = [type_dict(value).get("_shared_state") for _, value in values if isinstance(value, type)]
    return [*hooks, *(state for state in states if isinstance(state, dict))]


def cached_values(cached_function: Any) -> list[Any]:
    """Return the results in the cache of a function decorated with ``functools.lru_cache``.

    The list also contains other objects, such as arguments.
    """
    values = gc.get_referents(cached_function)
    if cached_function.cache_parameters()["maxsize"] is None:
        return [item for value in values if type(value) is dict for item in value.values()]
    return [value for value in values if type(value) is not dict or not any(map(_is_link, value.values()))]


def _is_link(value: Any) -> bool:
    return type(value).__name__ == "_lru_list_elem"


_PACKAGES = ("accelerate", "lightning", "peft", "pytorch_lightning", "torch", "torch_geometric", "transformers")
"""Libraries whose objects are searched even if their classes have no ``state_dict``."""
_STANDARD = {
    "argparse.Namespace",
    "asyncio.locks.Event",
    "asyncio.queues.LifoQueue",
    "asyncio.queues.PriorityQueue",
    "asyncio.queues.Queue",
    "collections.ChainMap",
    "collections.UserDict",
    "collections.UserList",
    "contextlib.AsyncExitStack",
    "contextlib.ExitStack",
    "contextlib.nullcontext",
    "threading.BoundedSemaphore",
    "threading.Event",
    "threading.Semaphore",
    "types.SimpleNamespace",
    "weakref.WeakKeyDictionary",
}
"""Classes of the standard library whose instances contain the user's objects as attributes."""
LOCKS = (type(threading.Lock()), type(threading.RLock()))
DATA = "torch.utils.data"
"""Package whose objects are searched, but not restored, because iterators of data loaders can own processes."""
_LOGGERS = ("lightning.fabric.loggers", "lightning.pytorch.loggers", "pytorch_lightning.loggers")
_TORCH = ("torch._", "torch.distributed", "torch.profiler", "torch.utils.tensorboard")
_EXCLUDED = (DATA, *_LOGGERS, *_TORCH, "transformers.integrations")
_MODULE = type.__dict__["__module__"].__get__


def is_user_module(module: Any) -> bool:
    """Return whether an object is a Python module that belongs neither to Python nor to an installed package."""
    if not is_instance(module, types.ModuleType):
        return False
    variables = vars(module)
    file = variables.get("__file__") or next(iter(variables.get("__path__", ())), None)
    return type(file) is str and not is_library_file(file) and variables.get("__package__") != "ipygpumem"


def is_user_class(kind: type) -> bool:
    name = module_name(kind)
    file = getattr(sys.modules.get(name), "__file__", None)
    is_user_file = type(file) is str and not is_library_file(file) and not name.startswith("ipygpumem.")
    return name == "__main__" or is_user_file


def defines(kind: type, name: str) -> bool:
    """Return whether a class or one of its bases defines an attribute, without calling methods of its metaclass."""
    return any(name in type_dict(base) for base in mro(kind))


def module_name(kind: type) -> str:
    return str(_MODULE(kind))


def is_followed(torch: Any, kind: type) -> bool:
    """Return whether the attributes of instances of a class can contain state of a step."""
    module = module_name(kind)
    if any(base is torch.nn.Module for base in mro(kind)):
        return True
    if module.startswith(_EXCLUDED):
        return False
    if f"{module}.{kind.__qualname__}" in _STANDARD:
        return True
    contains_state = module.partition(".")[0] in _PACKAGES or defines(kind, "state_dict")
    return contains_state or any(is_user_class(base) for base in mro(kind))


def is_generator(torch: Any, value: Any) -> bool:
    """Return whether a value is a random number generator of PyTorch, NumPy or Python whose state can be saved."""
    name = f"{module_name(type(value))}.{type(value).__name__}"
    return (
        is_instance(value, torch.Generator)
        or (issubclass(type(value), random.Random) and not issubclass(type(value), random.SystemRandom))
        or name in {"numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"}
    )


def is_iterator(kind: type) -> bool:
    """Return whether the instances of a class are queues, locks, or iterators of classes outside the user's code."""
    has_next = defines(kind, "__next__") and not any(map(is_user_class, mro(kind)))
    return has_next or issubclass(kind, (queue.Queue, queue.SimpleQueue, *LOCKS))
