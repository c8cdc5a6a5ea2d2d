"""Freeing what a notebook keeps: outputs, and variables with their copies in outputs and in the last exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.interpreter import LATEST_OUTPUTS, is_exactly, is_instance, output_number
from ipygpumem.features.holders.roots import is_output
from ipygpumem.features.release.exceptions import forget_exception, last_exception_refers_to

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_names", "forget_outputs", "forget_variables"]

_SHARED_TYPES = (type(None), bool, int, float, complex, str, bytes)


def forget_outputs(shell: Any) -> list[str]:
    """Remove ``Out``, ``_``, ``__``, ``___`` and every ``_3``, and return a description of what was removed."""
    history = _history(shell)
    count = len(history)
    for number in list(history):
        _forget_output(shell, number)
    for name in LATEST_OUTPUTS:
        if vars(shell.displayhook).get(name) is not None:
            _forget_latest(shell, name)
    hidden = shell.user_ns_hidden  # contains only outputs, also some that are no longer in the history
    for name in [name for name in hidden if output_number(name) is not None]:
        del hidden[name]
    hidden.update((name, "") for name in LATEST_OUTPUTS if name in hidden)
    result = getattr(shell, "last_execution_result", None)
    if result is not None and result.result is not None:
        shell.last_execution_result = None
    return [f"{count} output{'' if count == 1 else 's'}"] if count else []


def _history(shell: Any) -> dict[int, Any]:
    history: Any = shell.user_ns.get("_oh")
    return history if is_instance(history, dict) else {}


def _forget_output(shell: Any, number: int) -> None:
    value = _history(shell).pop(number)
    for namespace in (shell.user_ns, shell.user_ns_hidden):
        if namespace.get(f"_{number}") is value:
            del namespace[f"_{number}"]


def _forget_latest(shell: Any, name: str) -> None:
    """Empty ``_``, ``__`` or ``___``, unless the user has assigned to it."""
    output = vars(shell.displayhook)[name]
    for namespace in (shell.user_ns, shell.user_ns_hidden):
        if name in namespace and namespace[name] is output:
            namespace[name] = ""
    setattr(shell.displayhook, name, "")


def check_names(shell: Any, names: Iterable[str]) -> None:
    """Raise `OptionError` if a name does not exist or belongs to Python or IPython, before the first is deleted."""
    for name in names:
        if not name.isidentifier():
            raise OptionError(f"{name!r} is not the name of a variable; use `del` for an item or an attribute")
        if name not in shell.user_ns:
            raise OptionError(f"there is no variable {name!r}; nothing was deleted")
        if name.startswith("__") and name.endswith("__") and name.strip("_"):
            raise OptionError(f"{name!r} belongs to Python and cannot be deleted")
        if is_output(shell, name):
            raise OptionError(f"{name!r} belongs to IPython; use --out to delete outputs")


def forget_variables(shell: Any, names: Iterable[str]) -> list[str]:
    """Delete variables, outputs that are the same object, and the last exception if it refers to that object."""
    copies = [(name, *_find_copies(shell, shell.user_ns[name])) for name in names]  # if this fails, nothing is deleted
    removed = []
    for name, outputs, latest_outputs, is_result, is_in_exception in copies:
        shell.user_ns.pop(name, None)
        shell.user_ns_hidden.pop(name, None)
        numbers = [number for number in outputs if number in _history(shell)]
        for number in numbers:
            _forget_output(shell, number)
        for latest in latest_outputs:
            _forget_latest(shell, latest)
        if is_result:
            shell.last_execution_result = None
        removed.append(f"{name}{''.join(f', Out[{number}]' for number in numbers)}")
        if is_in_exception:
            removed += forget_exception(shell)
    return removed


def _find_copies(shell: Any, value: Any) -> tuple[list[int], list[str], bool, bool]:
    """Numbers and names of outputs that are this object; whether the last result is, or the last exception has it."""
    if is_exactly(value, _SHARED_TYPES):  # objects such as True and None are shared by unrelated code
        return [], [], False, False
    return (
        [number for number, output in _history(shell).items() if output is value],
        [name for name in LATEST_OUTPUTS if vars(shell.displayhook).get(name) is value],
        getattr(getattr(shell, "last_execution_result", None), "result", None) is value,
        last_exception_refers_to(shell, value),
    )
