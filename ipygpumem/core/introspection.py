"""Inspect objects and frames without side effects, control garbage collection, and recognize IPython's variables.

The functions do not run code of the inspected classes (``__getattr__``, properties, ``__instancecheck__``), and keep no
references to the inspected objects.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import operator
import os
import re
import sys
import sysconfig
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ipygpumem.core.interrupts import DeferredInterrupts

# Objects

mro = type.__dict__["__mro__"].__get__
"""Function that returns the method resolution order of a class without calling a method of its metaclass."""
type_dict = type.__dict__["__dict__"].__get__
"""Function that returns the ``__dict__`` of a class without calling a method of its metaclass."""
type_name = type.__dict__["__name__"].__get__
"""Function that returns the name of a class, even if its metaclass overrides ``__name__``."""
_module_dict: Any = vars(types.ModuleType)["__dict__"].__get__


def attempt(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception:
        return None


def is_instance(obj: Any, cls: type) -> bool:
    """Return ``isinstance(obj, cls)`` for the actual type, ignoring ``__class__`` and ``__instancecheck__``."""
    actual = type(obj)
    return actual is cls or any(base is cls for base in mro(actual))


def is_exactly(obj: Any, classes: tuple[type, ...]) -> bool:
    actual = type(obj)
    return any(actual is cls for cls in classes)


def instance_dict(obj: Any) -> dict[Any, Any] | None:
    """Return an object's ``__dict__``; None if the object has no ``__dict__`` or its class overrides the attribute."""
    if is_instance(obj, types.ModuleType):
        namespace: dict[Any, Any] = _module_dict(obj)
        return namespace
    for base in mro(type(obj)):
        descriptor = type_dict(base).get("__dict__")
        if descriptor is not None:
            if not is_exactly(descriptor, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                return None
            namespace = attempt(functools.partial(descriptor.__get__, obj))
            return namespace if is_instance(namespace, dict) else None
    return None


def slot_values(obj: Any, cls: type) -> Iterator[tuple[str, Any]]:
    for name, slot in list(type_dict(cls).items()):
        if type(slot) is types.MemberDescriptorType and type(name) is str:
            try:
                yield name, slot.__get__(obj)
            except Exception:  # noqa: S112 (an empty slot)
                continue


# Frames of running functions

_PACKAGE = f"{__name__.partition('.')[0]}."
_LAZY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_thread_dict = vars(threading.Thread)["__dict__"].__get__


def frame_locals(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the names and values of the local variables in a frame.

    Variables of enclosing functions are included, except on Python 3.12. The list is empty for the frame of a module,
    and if the variables cannot be read.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # in a class body, and in code executed with a separate dict, ``f_locals`` is the dict itself and not a copy
        namespace = frame.f_locals
        return list(namespace.items()) if type(namespace) is dict and namespace is not frame.f_globals else []
    if sys.version_info >= (3, 13):
        return [] if _is_cleared(frame) else list(frame.f_locals.items())  # a view, not a copy (PEP 667)
    # ``f_locals`` would update the dict that ``locals()`` returned in this function, and keep the values alive
    return _locals_by_name(frame) if sys.version_info >= (3, 12) else _locals_in_slots(frame)


def _is_cleared(frame: FrameType) -> bool:
    """Return whether a frame belongs to a finished generator. Reading such a frame's locals crashes (gh-125723)."""
    referents = gc.get_referents(frame) if frame.f_code.co_flags & _LAZY else ()
    return bool(referents) and all(is_exactly(referent, (types.FunctionType, types.CodeType)) for referent in referents)


def _locals_by_name(frame: FrameType) -> list[tuple[str, Any]]:
    # without variables of enclosing functions: if the frame has been cleared, reading them would access freed memory
    import ctypes

    get = ctypes.pythonapi.PyFrame_GetVarString
    get.restype, get.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_char_p)
    variables = []
    for name in dict.fromkeys((*frame.f_code.co_varnames, *frame.f_code.co_cellvars)):
        with contextlib.suppress(NameError):  # unbound
            variables.append((name, get(frame, name.encode())))
    return variables


def _locals_in_slots(frame: FrameType) -> list[tuple[str, Any]]:
    if sys.implementation.name != "cpython" or hasattr(sys, "getobjects"):
        return []  # the memory layout of objects differs
    code = frame.f_code
    names: Sequence[str] = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    if sys.version_info >= (3, 11):
        names = tuple(dict.fromkeys(names))  # an argument and its cell have the same slot
    structure, getters = _frame_structure(max(len(names), 1).bit_length())
    memory = structure.from_address(id(frame))
    variables = []
    for name, get in zip(names, getters, strict=False):
        with contextlib.suppress(ValueError):  # unbound
            value = get(memory)
            is_cell = name in code.co_cellvars or name in code.co_freevars
            variables.append((name, value.cell_contents if is_cell and type(value) is types.CellType else value))
    return variables


@functools.cache
def _frame_structure(bits: int) -> tuple[Any, list[Any]]:
    """Return a ctypes structure for frames with up to ``2**bits`` slots, together with a getter for each slot.

    Each getter follows all pointers in a single C call. If it made several calls, another thread could run in between,
    and the function whose frame is read could return.
    """
    import ctypes

    slots = [(f"slot{i}", ctypes.py_object) for i in range(1 << bits)]
    words = ctypes.c_size_t
    if sys.version_info >= (3, 11):  # the slots follow the nine words of the interpreter frame's header
        inner = type("InterpreterFrame", (ctypes.Structure,), {"_fields_": [("header", words * 9), *slots]})
        fields: list[Any] = [("header", words * 3), ("inner", ctypes.POINTER(inner))]
    else:
        fields = [("header", words * (types.FrameType.__basicsize__ // ctypes.sizeof(words) - 1)), *slots]
    prefix = "inner.contents." if sys.version_info >= (3, 11) else ""
    structure = type("Frame", (ctypes.Structure,), {"_fields_": fields})
    return structure, [operator.attrgetter(f"{prefix}{name}") for name, _ in slots]


def running_frames() -> list[tuple[str, FrameType]]:
    """Return a (thread name, frame) pair for each running function, innermost first within each thread.

    In each thread, the innermost frames that belong to this package are excluded. Otherwise, the list would contain the
    caller's frame, which refers to the list. This reference cycle would keep the inspected objects alive.
    """
    names = {_thread_dict(thread).get("_ident"): thread_name(thread) for thread in threading.enumerate()}
    innermost = sys._current_frames()  # noqa: SLF001 (there is no public API)
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
    name = _thread_dict(thread).get("_name")
    return name if type(name) is str else ""


def is_own_frame(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)


_LIBRARY_FOLDERS = tuple(
    {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(name))}
)


@functools.lru_cache(maxsize=4)
def _installation_folders(paths: tuple[Any, ...], user_folders: tuple[str, ...]) -> tuple[str, ...]:
    folders = []
    for path in paths:
        if type(path) is str and path and path not in user_folders:
            with contextlib.suppress(OSError):
                if any(entry.name.endswith(".dist-info") for entry in Path(path).iterdir()):
                    folders.append(f"{path.rstrip(os.sep)}{os.sep}")
    return tuple(folders)


def frame_label(file: str, line: int, function: str) -> str:
    """Example: ``train.py:12 step``."""
    return f"{Path(file).name}:{line} {function}".rstrip()


def is_library_file(file: str) -> bool:
    in_library = file.startswith(_LIBRARY_FOLDERS) or "site-packages" in file or "dist-packages" in file
    return in_library or _is_in_installation_folder(file)


@functools.lru_cache(maxsize=512)  # for other files only, because the files of all modules would occupy 0.3 MiB
def _is_in_installation_folder(file: str) -> bool:
    main_file = vars(sys.modules["__main__"]).get("__file__") or ""
    # packages may also be installed next to the user's own files
    user_folders = attempt(lambda: (str(Path.cwd()), str(Path(main_file).parent))) or ()
    return file.startswith(_installation_folders(tuple(sys.path), user_folders))


def user_frame(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """Return the innermost frame in the user's code, or the innermost frame if all frames are in libraries.

    ``frames`` contains (file, line, function) tuples, innermost first. The result is None if ``frames`` is empty.
    """
    return next((frame for frame in frames if not is_library_file(frame[0])), frames[0] if frames else None)


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Disable the garbage collector during a block that creates many objects, which it would traverse repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_garbage(generation: int = 2) -> int:
    """Collect garbage with deferred interrupts: Python would ignore a `KeyboardInterrupt` raised in a finalizer."""
    with DeferredInterrupts():
        return gc.collect(generation)


def release_free_memory() -> None:
    """Return the unused memory of glibc's heap to the operating system. With other C libraries, do nothing."""
    import ctypes  # on first use, because the shell commands need only few modules

    if sys.platform.startswith("linux") and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


# the name depends on the version of Python
_FILTER_NOTIFICATIONS = {name: value for name, value in vars(warnings).items() if name.startswith("_filters_mutated")}


@contextlib.contextmanager
def preserve_shown_warnings() -> Iterator[None]:
    """Preserve the record of shown warnings, which Python clears whenever the warning filters change."""
    for name in _FILTER_NOTIFICATIONS:
        setattr(warnings, name, lambda: None)
    try:
        yield
    finally:
        for name, function in _FILTER_NOTIFICATIONS.items():
            setattr(warnings, name, function)


# Names of variables that IPython assigns

LATEST_OUTPUTS = ("_", "__", "___")
_OUTPUT = re.compile(r"_([1-9][0-9]{0,8}|0)")
_IPYTHON_NAME = re.compile(
    rf"{_OUTPUT.pattern}|_i[0-9]+|_{{1,3}}|_i{{1,3}}|In|Out|_oh|_ih|_dh|get_ipython|exit|quit|_exit_code"
)


def output_number(name: str) -> int | None:
    match = _OUTPUT.fullmatch(name)
    return None if match is None else int(match[1])


def is_ipython_name(name: str) -> bool:
    return _IPYTHON_NAME.fullmatch(name) is not None
