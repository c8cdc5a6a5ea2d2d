"""Where names begin in a notebook: its variables, its outputs, and every place that keeps the last exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import isinstance_of
from ipygpumem.features.holders.naming import Root
from ipygpumem.features.holders.roots import exception_roots, frame_label
from ipygpumem.jupyter.ipython_names import LATEST, is_ipythons, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_output", "labeller", "notebook_roots"]

_NOBODY = object()
_CELL = re.compile(r"<ipython-input-(\d+)-")


def is_output(shell: Any, name: str) -> bool:
    """Whether what has this name is IPython's: ``_``, ``_3``, ``Out``. They may be the user's own, as in ``_ = x``."""
    value, hidden = shell.user_ns.get(name), shell.user_ns_hidden
    number = numbered(name)
    if name in LATEST:
        return value is vars(shell.displayhook).get(name)
    if number is not None:
        history = shell.user_ns.get("_oh")
        return isinstance_of(history, dict) and value is dict.get(history, number, _NOBODY)
    return hidden[name] is value if name in hidden else is_ipythons(name)


def notebook_roots(shell: Any) -> list[Root]:
    """The roots of one shell."""
    space = shell.user_ns
    hook = shell.displayhook

    def output(name: str) -> bool:
        return is_ipythons(name) and is_output(shell, name)

    roots = [
        Root("", space, "variable", "names", lambda name: not is_ipythons(name)),
        Root("", space, "variable", "names", lambda name: not output(name)),  # the user's own _, after better names
        Root("Out", space.get("_oh"), "output", "items"),
        Root("", space, "output", "names", output),
        Root("", getattr(shell, "user_ns_hidden", None), "output", "names", is_ipythons),
        Root("the last output", hook, "output"),
        Root("IPython", shell, "elsewhere"),
        *_tracebacks(shell),
    ]
    result = getattr(shell, "last_execution_result", None)
    if result is not None:
        roots.append(Root("the last output", result.result, "output", stops=False))
        # of a failed cell it keeps the error, which has its own names
        errors = (getattr(result, "error_in_exec", None), getattr(result, "error_before_exec", None))
        roots += [Root("last exception", one, "traceback", stops=False) for one in errors]
        roots.append(Root("last exception", result, "traceback", late=True))
    return [root for root in roots if root.thing is not None]


def _tracebacks(shell: Any) -> list[Root]:
    """Every place that IPython keeps a traceback in, besides Python's own."""
    keepers = (getattr(shell, name, None) for name in ("InteractiveTB", "SyntaxTB"))
    return [*exception_roots(), *(Root("last exception", one, "traceback") for one in keepers if one is not None)]


def labeller(shell: Any) -> Callable[[str, int, str], str]:
    """What a recorded line is called in this notebook: ``In [3]:5 make()``."""

    def label(file: str, line: int, function: str) -> str:
        number = getattr(shell.compile, "_filename_map", {}).get(file)
        match = _CELL.match(file)
        if number is None and match is not None:
            number = int(match[1])
        if number is None:
            return frame_label(file, line, function)
        return f"In [{number}]:{line}{'' if function == '<module>' else f' {function}()'}"

    return label
