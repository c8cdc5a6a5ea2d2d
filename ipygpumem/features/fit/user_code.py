"""Functions that decide which classes and modules can contain state of a step, without running code of metaclasses."""

from __future__ import annotations

import queue
import random
import sys
import threading
import types
from typing import Any

from ipygpumem.core.introspection import is_instance, is_library_file, mro, type_dict

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
    """Return whether a class is defined in the user's code."""
    name = module_name(kind)
    file = getattr(sys.modules.get(name), "__file__", None)
    is_user_file = type(file) is str and not is_library_file(file) and not name.startswith("ipygpumem.")
    return name == "__main__" or is_user_file


def defines(kind: type, name: str) -> bool:
    """Return whether a class or one of its bases defines an attribute, without calling methods of its metaclass."""
    return any(name in type_dict(base) for base in mro(kind))


def module_name(kind: type) -> str:
    """Return the name of the module in which a class is defined."""
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
    """Return whether a value is a random number generator."""
    name = f"{module_name(type(value))}.{type(value).__name__}"
    return (
        is_instance(value, torch.Generator)
        or (issubclass(type(value), random.Random) and not issubclass(type(value), random.SystemRandom))
        or name in {"numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"}
    )


def is_iterator(kind: type) -> bool:
    """Return whether the instances of a class are queues, locks, or iterators that the user's code does not define."""
    has_next = defines(kind, "__next__") and not any(map(is_user_class, mro(kind)))
    return has_next or issubclass(kind, (queue.Queue, queue.SimpleQueue, *LOCKS))
