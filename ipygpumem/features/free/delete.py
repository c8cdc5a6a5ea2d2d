"""Delete variables, outputs and the last exception of a notebook, and all references to them in IPython.

For post-mortem debugging, the frames of the last exception stay alive, together with their local variables. References
to these frames are in ``sys.last_*``, in IPython's traceback handlers and debugger, and in the result of the last cell.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import LATEST_OUTPUTS, frame_locals, is_exactly, is_instance, output_number, type_name
from ipygpumem.core.units import many
from ipygpumem.features.holders.reference_graph import is_output

_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
_HANDLERS = ("InteractiveTB", "SyntaxTB")
_HANDLER_ATTRIBUTES = ("tb", "etype", "evalue", "value", "pdb", "last_syntax_error")
# the getters of the base class, because subclasses may override the attributes
_GETTERS = [vars(BaseException)[name].__get__ for name in ("__cause__", "__context__", "__traceback__")]
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11
_SHARED_TYPES = (type(None), bool, int, float, complex, str, bytes)


def delete_outputs(shell: Any) -> list[str]:
    """Delete ``Out``, ``_``, ``__``, ``___`` and variables such as ``_3``. Return descriptions of deleted objects."""
    history = _history(shell)
    count = len(history)
    for number in list(history):
        _delete_output(shell, number)
    for name in LATEST_OUTPUTS:
        if vars(shell.displayhook).get(name) is not None:
            _delete_latest(shell, name)
    hidden_names = shell.user_ns_hidden  # also contains outputs that are no longer in the history
    for name in [name for name in hidden_names if output_number(name) is not None]:
        del hidden_names[name]
    hidden_names.update((name, "") for name in LATEST_OUTPUTS if name in hidden_names)
    result = getattr(shell, "last_execution_result", None)
    if result is not None and result.result is not None:
        shell.last_execution_result = None
    return [many(count, "output")] if count else []


def _history(shell: Any) -> dict[int, Any]:
    history: Any = shell.user_ns.get("_oh")
    return history if is_instance(history, dict) else {}


def _delete_output(shell: Any, number: int) -> None:
    value = _history(shell).pop(number)
    for namespace in (shell.user_ns, shell.user_ns_hidden):
        if namespace.get(f"_{number}") is value:
            del namespace[f"_{number}"]


def _delete_latest(shell: Any, name: str) -> None:
    output = vars(shell.displayhook)[name]
    for namespace in (shell.user_ns, shell.user_ns_hidden):
        if name in namespace and namespace[name] is output:
            namespace[name] = ""
    setattr(shell.displayhook, name, "")


def check_names(shell: Any, names: Iterable[str]) -> None:
    for name in names:
        if not name.isidentifier():
            raise OptionError(f"{name!r} is not a variable name; to delete an item or attribute, use `del`")
        if name not in shell.user_ns:
            raise OptionError(f"name {name!r} is not defined; nothing was deleted")
        if name.startswith("__") and name.endswith("__") and name.strip("_"):
            raise OptionError(f"{name!r} is reserved by Python and cannot be deleted")
        if is_output(shell, name):
            raise OptionError(f"{name!r} is reserved by IPython; to delete outputs, use --out")


def delete_variables(shell: Any, names: Iterable[str]) -> list[str]:
    """Delete variables, references to their values in outputs, and the last exception if it refers to a value.

    Returns descriptions of the deleted objects.
    """
    # first, so that nothing is deleted if this fails
    references = [(name, *_find_references(shell, shell.user_ns[name])) for name in names]
    freed_items = []
    for name, outputs, latest_outputs, is_result, is_in_exception in references:
        shell.user_ns.pop(name, None)
        shell.user_ns_hidden.pop(name, None)
        numbers = [number for number in outputs if number in _history(shell)]
        for number in numbers:
            _delete_output(shell, number)
        for latest in latest_outputs:
            _delete_latest(shell, latest)
        if is_result:
            shell.last_execution_result = None
        freed_items.append(f"{name}{''.join(f', Out[{number}]' for number in numbers)}")
        if is_in_exception:
            freed_items += delete_exception(shell)
    return freed_items


def _find_references(shell: Any, value: Any) -> tuple[list[int], list[str], bool, bool]:
    """Return the references to a value from outputs and from the last exception.

    The result is a tuple of the keys of ``Out``, the names of variables such as ``_``, whether the value is the last
    result, and whether the last exception refers to the value.
    """
    if is_exactly(value, _SHARED_TYPES):  # objects such as True and None are shared by unrelated code
        return [], [], False, False
    return (
        [number for number, output in _history(shell).items() if output is value],
        [name for name in LATEST_OUTPUTS if vars(shell.displayhook).get(name) is value],
        getattr(getattr(shell, "last_execution_result", None), "result", None) is value,
        _last_exception_refers_to(shell, value),
    )


def _last_exceptions(shell: Any) -> list[Any]:
    handlers = [vars(getattr(shell, name)) for name in _HANDLERS if getattr(shell, name, None) is not None]
    result = getattr(shell, "last_execution_result", None)
    objects = [
        *(getattr(sys, name, None) for name in _LAST[1:]),
        *(attributes.get(name) for attributes in handlers for name in ("tb", "evalue", "value")),
        getattr(result, "error_in_exec", None),
        getattr(result, "error_before_exec", None),
    ]
    return [obj for obj in objects if obj is not None]


def delete_exception(shell: Any) -> list[str]:
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


def _last_exception_refers_to(shell: Any, obj: Any) -> bool:
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
