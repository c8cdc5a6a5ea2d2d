"""Where names begin in a notebook: its variables, its outputs, and every place that keeps the last exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ipygpumem.recording.names import Root
from ipygpumem.session.roots import exception_roots, frame_label

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HIDDEN", "is_output", "labeller", "notebook_roots"]

HIDDEN = frozenset(
    {
        "In",
        "Out",
        "_",
        "__",
        "___",
        "_oh",
        "_ih",
        "_dh",
        "_i",
        "_ii",
        "_iii",
        "get_ipython",
        "exit",
        "quit",
        "_exit_code",
    }
)
"""Names that IPython itself keeps in a notebook's namespace."""
_NUMBERED = re.compile(r"_i?\d+")
_CELL = re.compile(r"<ipython-input-(\d+)-")


def is_output(name: str) -> bool:
    """Whether IPython put this name there: ``_``, ``_3``, ``Out``."""
    return name in HIDDEN or _NUMBERED.fullmatch(name) is not None


def notebook_roots(shell: Any) -> list[Root]:
    """The roots of one shell."""
    space = shell.user_ns
    hook = shell.displayhook
    roots = [
        Root("", space, "variable", "names", lambda name: not is_output(name)),
        Root("Out", space.get("_oh"), "output", "items"),
        Root("", space, "output", "names", is_output),
        Root("", getattr(shell, "user_ns_hidden", None), "output", "names", is_output),
        Root("the last output", hook, "output"),
        Root("IPython", shell, "output"),
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
