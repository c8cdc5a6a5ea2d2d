"""Where names begin without IPython, and what a recorded line is called."""

from __future__ import annotations

import sys
import sysconfig
import types
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.features.holders.labels import attributes, isinstance_of
from ipygpumem.features.holders.naming import Root
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Naming",
    "exception_roots",
    "frame_label",
    "is_library",
    "made_by",
    "module_roots",
    "naming",
    "python_roots",
]

_LIBRARIES = tuple(
    {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_paths().get(name))}
)


class Naming:
    """How this process names what it finds; a notebook replaces both functions.

    Attributes:
        roots: Returns the objects where the names of holders begin.
        label: Returns the name of a recorded line from its file name, line number and function.
    """

    def __init__(self) -> None:
        self.roots: Callable[[], list[Root]] = python_roots
        self.label: Callable[[str, int, str], str] = frame_label


def naming() -> Naming:
    """The naming of this process."""
    return current().state(Naming)


def is_library(file: str) -> bool:
    """Whether code in this file is not the user's own."""
    return file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file


def python_roots() -> list[Root]:
    """Where names begin without IPython: ``__main__``, and the last exception."""
    main = vars(sys.modules["__main__"])
    return [Root("", main, "variable", "names"), *exception_roots()]


def exception_roots() -> list[Root]:
    """The last exception, as Python keeps it for a post-mortem."""
    kept = (getattr(sys, name, None) for name in ("last_exc", "last_value", "last_traceback"))
    return [Root("last exception", one, "traceback", stops=False) for one in kept if one is not None]


def module_roots(given: Sequence[Root]) -> list[Root]:
    """The namespaces of imported modules: your own before the libraries'."""
    taken = {id(root.thing) for root in given}
    own: list[Root] = []
    libraries: list[Root] = []
    for name, module in sorted(sys.modules.items(), key=lambda item: str(item[0])):
        if not isinstance_of(module, types.ModuleType):
            continue
        space = attributes(module) or {}
        if id(space) in taken or type(name) is not str or name.partition(".")[0] == "ipygpumem":
            continue
        taken.add(id(space))
        names = _not_last if name == "sys" else None
        file = space.get("__file__")
        library = type(file) is not str or is_library(file)
        (libraries if library else own).append(Root(f"{name}.", space, "module", "names", names))
    return [*own, *libraries]


def _not_last(name: str) -> bool:
    return not name.startswith("last_")


def made_by(frames: Sequence[tuple[str, int, str]], label: Callable[[str, int, str], str]) -> str:
    """The innermost frame of the user's, in words; the innermost of all where there is none."""
    own = next((frame for frame in frames if not is_library(frame[0])), None)
    chosen = own or (frames[0] if frames else None)
    return "" if chosen is None else label(*chosen)


def frame_label(file: str, line: int, function: str) -> str:
    """A recorded line in words: ``train.py:12 step``."""
    return f"{Path(file).name}:{line} {function}".rstrip()
