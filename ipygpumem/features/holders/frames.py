"""The locals of frames, read without a trace: ``frame.f_locals`` would leave a dict that keeps them alive."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.frame_slots import by_slot, readable

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["is_own", "locals_of", "running", "thread_name"]

_PACKAGE = f"{__name__.partition('.')[0]}."

_of_thread = vars(threading.Thread)["__dict__"].__get__
_LAZY = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ALONE = 3
"""References to a frame's dict of locals that nobody else has: the frame's, ours, and the one of the question."""


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values of a function's locals, closures included. A module's are its namespace: none here."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        # a class body, or code run with a dict of its own: this is that dict, and no copy
        own = frame.f_locals
        return list(own.items()) if type(own) is dict and own is not frame.f_globals else []
    if sys.version_info >= (3, 13):
        if _emptied(frame):
            return []
        return list(frame.f_locals.items())  # a view, not a copy (PEP 667)
    if sys.version_info >= (3, 12):
        return _by_name(frame)
    return by_slot(frame) if readable() else _by_copy(frame)


def _emptied(frame: FrameType) -> bool:
    """Whether this is the frame of a generator that is gone: Python 3.13 crashes on its locals (CPython #125723)."""
    held = gc.get_referents(frame) if frame.f_code.co_flags & _LAZY else ()
    return bool(held) and all(type(one) in {types.FunctionType, types.CodeType} for one in held)


def _by_name(frame: FrameType) -> list[tuple[str, Any]]:
    """Python 3.12 has a C function for one variable, and it leaves nothing.

    Not for closures: of a frame that was cleared it would read what is no more. Their cells are the function's as well.
    """
    code = frame.f_code
    get = ctypes.pythonapi.PyFrame_GetVarString
    get.restype, get.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_char_p)
    found = []
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars)):
        try:
            found.append((name, get(frame, name.encode())))
        except NameError:  # not bound, or no more
            continue
    return found


def _by_copy(frame: FrameType) -> list[tuple[str, Any]]:
    """Where all else fails: a copy in a dict that the frame keeps; if nobody else has that dict it is emptied again."""
    copy = frame.f_locals
    found = list(copy.items())
    if sys.getrefcount(copy) == _ALONE:
        copy.clear()
    return found


def running() -> list[tuple[str, FrameType]]:
    """Every frame of every thread but our own, as (thread's name, frame), the innermost first within its thread.

    Our own are left out here, and not by the caller: a list of frames that one of them has among its locals would keep
    itself alive, and all that we look at.
    """
    names = {_of_thread(thread).get("_ident"): thread_name(thread) for thread in threading.enumerate()}
    innermost = sys._current_frames()
    found = []
    for ident in list(innermost):
        frame: FrameType | None = innermost.pop(ident)
        name = names.get(ident) or f"thread {ident}"
        while frame is not None and is_own(frame):
            frame = frame.f_back
        while frame is not None:
            found.append((name, frame))
            frame = frame.f_back
    return found


def thread_name(thread: threading.Thread) -> str:
    """A thread's name as Python has it: a subclass may answer with code of its own. Empty where it is no text."""
    name = _of_thread(thread).get("_name")
    return name if type(name) is str else ""


def is_own(frame: FrameType) -> bool:
    """Whether this is code of this package."""
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)
