"""Objects at which the search for names starts: notebook variables and outputs, the last exception, and modules."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from ipygpumem.core.introspection import (
    LATEST_OUTPUTS,
    frame_label,
    instance_dict,
    is_instance,
    is_ipython_name,
    is_library_file,
    output_number,
)
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipygpumem.features.holders.labels import Style
    from ipygpumem.features.holders.model import Place

_MISSING = object()


class Root(NamedTuple):
    """An object at which the search for names starts.

    Attributes:
        label: Name of the object or, for a namespace, prefix of the names.
        value: Any object or, with the style ``names``, the dict of a namespace.
        place: Place of all objects that are named after the root.
        style: Format of the dict's keys. With ``items``, each item is a separate holder.
        names: Function that selects names of a namespace; None for all names.
        terminal: Whether referrers of the root are ignored.
        last_resort: Whether objects are named after another root if possible.
        distant: Whether the root is searched only for memory that other roots do not explain.
    """

    label: str
    value: Any
    place: Place
    style: Style = "object"
    names: Callable[[str], bool] | None = None
    terminal: bool = True
    last_resort: bool = False
    distant: bool = False


class NameProviders:
    """Functions that provide the roots and the labels of stack frames. A notebook replaces both functions.

    Attributes:
        roots: Function that returns the roots.
        label: Function that formats a stack frame, given the file name, the line number and the function name.
    """

    def __init__(self) -> None:
        self.roots: Callable[[], list[Root]] = python_roots
        self.label: Callable[[str, int, str], str] = frame_label


def name_providers() -> NameProviders:
    """Return the name providers of this process."""
    return current().state(NameProviders)


def python_roots() -> list[Root]:
    """Return the roots of a process without IPython: the variables of ``__main__`` and the last exception."""
    return [Root("", vars(sys.modules["__main__"]), "variable", "names"), *exception_roots()]


def exception_roots() -> list[Root]:
    """Return the roots for the last exception and its traceback, which Python keeps for post-mortem debugging."""
    values = (getattr(sys, name, None) for name in ("last_exc", "last_value", "last_traceback"))
    return [Root("last exception", value, "traceback", terminal=False) for value in values if value is not None]


def module_roots(roots: Sequence[Root]) -> list[Root]:
    """Return the namespaces of imported modules that are not roots yet. The user's modules come before libraries."""
    seen_ids = {id(root.value) for root in roots}
    user_modules: list[Root] = []
    libraries: list[Root] = []
    # copied to a list first, because another thread may import a module
    for name, module in sorted(item for item in list(sys.modules.items()) if type(item[0]) is str):
        namespace = instance_dict(module) if is_instance(module, types.ModuleType) else None
        if namespace is None or id(namespace) in seen_ids or name.partition(".")[0] == "ipygpumem":
            continue
        seen_ids.add(id(namespace))
        file = namespace.get("__file__")
        is_library = type(file) is not str or is_library_file(file)
        names = (lambda name: not name.startswith("last_")) if name == "sys" else None  # the last exception
        root = Root(f"{name}.", namespace, "module", "names", names, distant=is_library)
        (libraries if is_library else user_modules).append(root)
    return [*user_modules, *libraries]


def notebook_roots(shell: Any) -> list[Root]:
    """Return the roots of an IPython shell: variables, outputs, and references to the last exception."""
    namespace = shell.user_ns
    result = getattr(shell, "last_execution_result", None)

    def is_own_output(name: str) -> bool:
        return is_ipython_name(name) and is_output(shell, name)

    roots = [
        Root("", namespace, "variable", "names", lambda name: not is_ipython_name(name)),
        Root("", namespace, "variable", "names", lambda name: not is_own_output(name)),  # a variable named _
        Root("Out", namespace.get("_oh"), "output", "items"),
        Root("", namespace, "output", "names", is_own_output),
        Root("", getattr(shell, "user_ns_hidden", None), "output", "names", is_ipython_name),
        Root("the last output", shell.displayhook, "output"),
        Root("IPython", shell, "elsewhere", distant=True),
        *exception_roots(),
        Root("last exception", getattr(shell, "InteractiveTB", None), "traceback"),
        Root("last exception", getattr(shell, "SyntaxTB", None), "traceback"),
    ]
    if result is not None:
        roots += [
            Root("the last output", result.result, "output", terminal=False),
            Root("last exception", getattr(result, "error_in_exec", None), "traceback", terminal=False),
            Root("last exception", getattr(result, "error_before_exec", None), "traceback", terminal=False),
            Root("last exception", result, "traceback", last_resort=True),
        ]
    return [root for root in roots if root.value is not None]


def is_output(shell: Any, name: str) -> bool:
    """Return whether a name in the user's namespace, such as ``_3``, still has the value assigned by IPython."""
    value, hidden = shell.user_ns.get(name), shell.user_ns_hidden
    number = output_number(name)
    if name in LATEST_OUTPUTS:
        return value is vars(shell.displayhook).get(name)
    if number is not None:
        history = shell.user_ns.get("_oh")
        return is_instance(history, dict) and value is dict.get(history, number, _MISSING)
    return hidden[name] is value if name in hidden else is_ipython_name(name)
