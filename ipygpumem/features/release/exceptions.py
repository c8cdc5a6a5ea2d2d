"""The last exception, in all the places where Python and IPython keep it for post-mortem debugging.

Its frames, with all their local variables, stay alive through later cells: in Python's ``sys.last_*``, in IPython's
traceback handlers and debugger, and in the result of the last cell.
"""

from __future__ import annotations

import builtins
import gc
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interpreter import frame_locals, is_exactly, is_instance, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forget_exception", "last_exception_refers_to"]

_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
_HANDLERS = ("InteractiveTB", "SyntaxTB")
_HANDLER_ATTRIBUTES = ("tb", "etype", "evalue", "value", "pdb", "last_syntax_error")
# read through the getters of the base class, because an exception's own class may override the attributes
_GETTERS = [vars(BaseException)[name].__get__ for name in ("__cause__", "__context__", "__traceback__")]
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11


def _last_exceptions(shell: Any) -> list[Any]:
    """The exceptions and tracebacks that are kept."""
    handlers = [vars(getattr(shell, name)) for name in _HANDLERS if getattr(shell, name, None) is not None]
    result = getattr(shell, "last_execution_result", None)
    objects = [
        *(getattr(sys, name, None) for name in _LAST[1:]),
        *(attributes.get(name) for attributes in handlers for name in ("tb", "evalue", "value")),
        getattr(result, "error_in_exec", None),
        getattr(result, "error_before_exec", None),
    ]
    return [obj for obj in objects if obj is not None]


def forget_exception(shell: Any) -> list[str]:
    """Remove the last exception from all these places, and return a description of it, if there was one."""
    exceptions = _last_exceptions(shell)
    names = sorted({type_name(type(obj)) for obj in exceptions if is_instance(obj, BaseException)})
    has_exception = bool(exceptions)
    del exceptions
    for name in _LAST:
        if hasattr(sys, name):
            delattr(sys, name)
    for handler in (getattr(shell, name, None) for name in _HANDLERS):
        for name in _HANDLER_ATTRIBUTES:
            if handler is not None and vars(handler).get(name) is not None:
                setattr(handler, name, None)
    result = getattr(shell, "last_execution_result", None)
    if result is not None and not result.success:
        shell.last_execution_result = None
    return [f"the traceback of {' and '.join(names) or 'the last exception'}"] if has_exception else []


def last_exception_refers_to(shell: Any, obj: Any) -> bool:
    """Whether the last exception has an object: in a local variable of its frames, an argument or an attribute."""
    for owner in _exceptions_and_frames(shell):
        if type(owner) is FrameType:
            values = [value for _, value in frame_locals(owner)]
        else:
            values = gc.get_referents(owner)
            containers = [value for value in values if is_exactly(value, (dict, tuple))]
            values += gc.get_referents(*containers)
        if any(value is obj for value in values):
            return True
    return False


def _exceptions_and_frames(shell: Any) -> Iterator[BaseException | FrameType]:
    """The last exception, its causes and the members of its groups, and the frames of their tracebacks."""
    pending, seen_ids = _last_exceptions(shell), set()
    while pending:
        obj = pending.pop()
        if id(obj) in seen_ids:
            continue
        seen_ids.add(id(obj))
        if is_instance(obj, BaseException):
            yield obj
            linked = [get(obj) for get in _GETTERS]
            if _GROUP is not None and is_instance(obj, _GROUP):
                linked += vars(_GROUP)["exceptions"].__get__(obj)
            pending += [link for link in linked if link is not None]
        elif type(obj) is TracebackType:
            yield obj.tb_frame
            if obj.tb_next is not None:
                pending.append(obj.tb_next)
