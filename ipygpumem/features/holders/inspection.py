"""Read objects, arrays and frames without side effects.

No code of a class runs: no ``__getattr__``, no property, no ``__instancecheck__``. No reference to a value is
left behind.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.sources.storages import mro, type_dict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = [
    "array_base",
    "array_items",
    "frame_locals",
    "has_objects",
    "instance_dict",
    "is_array",
    "is_exactly",
    "is_instance",
    "is_own_frame",
    "running_frames",
    "slot_values",
    "thread_name",
    "type_name",
]

type_name = type.__dict__["__name__"].__get__
"""The name of a class, even if its metaclass overrides ``__name__``."""
_module_dict: Any = vars(types.ModuleType)["__dict__"].__get__
_MAX_ARRAY_SIZE = 1_000_000
"""Elements of an array of objects: each becomes a temporary Python reference when it is read."""
_dtype, _size, _ndim, _base = (vars(np.ndarray)[name].__get__ for name in ("dtype", "size", "ndim", "base"))


def is_instance(obj: Any, cls: type) -> bool:
    """Like ``isinstance``, but by the actual type: ``__class__`` and ``__instancecheck__`` are ignored."""
    actual = type(obj)
    return actual is cls or any(base is cls for base in mro(actual))


def is_exactly(obj: Any, classes: tuple[type, ...]) -> bool:
    """Whether an object's type is one of these classes. Comparing by identity does not call the metaclass."""
    actual = type(obj)
    return any(actual is cls for cls in classes)


def instance_dict(obj: Any) -> dict[Any, Any] | None:
    """An object's own ``__dict__``; None if it has none or its class overrides it."""
    if is_instance(obj, types.ModuleType):
        namespace: dict[Any, Any] = _module_dict(obj)
        return namespace
    for base in mro(type(obj)):
        descriptor = type_dict(base).get("__dict__")
        if descriptor is not None:
            if not is_exactly(descriptor, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                return None
            try:
                namespace = descriptor.__get__(obj)
            except Exception:
                return None
            return namespace if is_instance(namespace, dict) else None
    return None


def slot_values(obj: Any, cls: type) -> Iterator[tuple[str, Any]]:
    """Names and values of the filled slots that one of an object's classes defines."""
    for name, slot in list(type_dict(cls).items()):
        if type(slot) is types.MemberDescriptorType and type(name) is str:
            try:
                yield name, slot.__get__(obj)
            except Exception:  # noqa: S112 (an empty slot)
                continue


# NumPy arrays


def is_array(cls: type) -> bool:
    """Whether a class is ``numpy.ndarray`` or derived from it."""
    return any(base is np.ndarray for base in mro(cls))


def has_objects(obj: Any) -> bool:
    """Whether this is an array whose elements are Python objects."""
    return is_array(type(obj)) and bool(_dtype(obj).hasobject)


def array_base(array: Any) -> Any:
    """The object whose memory an array uses; None if it has its own."""
    return _base(array)


def array_items(array: Any) -> Iterator[tuple[str, Any]]:
    """Index and value of each object in an array: ``[0, 3]``, or ``[0]["name"]`` for a field."""
    if _size(array) > _MAX_ARRAY_SIZE:
        return
    fields = _dtype(array).names
    for position, value in _flatten(np.ndarray.tolist(array), _ndim(array), ()):
        index = f"[{', '.join(map(str, position))}]" if position else "[()]"
        if fields is None:
            yield index, value
        else:
            yield from ((f'{index}["{field}"]', part) for field, part in zip(fields, value, strict=False))


def _flatten(values: Any, depth: int, position: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    if not depth:
        yield position, values
        return
    for i, value in enumerate(values):
        yield from _flatten(value, depth - 1, (*position, i))


# Frames

_PACKAGE = f"{__name__.partition('.')[0]}."
_LAZY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_thread_dict = vars(threading.Thread)["__dict__"].__get__
_UNSHARED_REFERENCES = 3
"""References to a frame's ``f_locals`` that nothing else uses: the frame's, ours, the argument of ``getrefcount``."""


def frame_locals(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values of a function's local variables, closures included; empty for a module's frame."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # a class body, or code executed in a dict of its own: ``f_locals`` is that dict and not a copy
        namespace = frame.f_locals
        return list(namespace.items()) if type(namespace) is dict and namespace is not frame.f_globals else []
    if sys.version_info >= (3, 13):
        return [] if _is_cleared(frame) else list(frame.f_locals.items())  # a view, not a copy (PEP 667)
    copy = frame.f_locals
    variables = list(copy.items())
    # the copy stays with the frame: it is emptied, unless it is what ``locals()`` returned or belongs to a debugger
    if sys.getrefcount(copy) == _UNSHARED_REFERENCES and frame.f_trace is None:
        copy.clear()
    return variables


def _is_cleared(frame: FrameType) -> bool:
    """Whether this is the frame of a finished generator: Python 3.13 crashes on its locals (CPython #125723)."""
    referents = gc.get_referents(frame) if frame.f_code.co_flags & _LAZY else ()
    return bool(referents) and all(type(referent) in {types.FunctionType, types.CodeType} for referent in referents)


def running_frames() -> list[tuple[str, FrameType]]:
    """Thread name and frame of all running code except this package's own, innermost first within each thread.

    Own frames are left out here rather than by the caller: a list with the frame that refers to it would be a cycle,
    and keep everything alive that a search looks at.
    """
    names = {_thread_dict(thread).get("_ident"): thread_name(thread) for thread in threading.enumerate()}
    innermost = sys._current_frames()
    frames = []
    for thread_id in list(innermost):
        frame: FrameType | None = innermost.pop(thread_id)
        name = names.get(thread_id) or f"thread {thread_id}"
        while frame is not None and is_own_frame(frame):
            frame = frame.f_back
        while frame is not None:
            frames.append((name, frame))
            frame = frame.f_back
    return frames


def thread_name(thread: threading.Thread) -> str:
    """A thread's name, even if a subclass overrides the property; empty if it is not a string."""
    name = _thread_dict(thread).get("_name")
    return name if type(name) is str else ""


def is_own_frame(frame: FrameType) -> bool:
    """Whether a frame belongs to this package."""
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
