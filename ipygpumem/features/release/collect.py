"""Letting go: of the last exception in all its hiding places, of outputs, of a variable and its copies.

After a failed cell its frames stay alive through later cells, with all that their functions had: in Python's own
``sys.last_*``, in IPython's traceback handlers, in its debugger, in the result of the last cell.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.holders.exceptions import led_to, traceback_of
from ipygpumem.features.holders.frames import locals_of
from ipygpumem.features.holders.labels import is_one_of, isinstance_of, name_of
from ipygpumem.jupyter.ipython_names import LATEST, numbered
from ipygpumem.jupyter.roots import is_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Debugger", "check_names", "let_go_of_names", "let_go_of_outputs", "let_go_of_tracebacks"]

_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
_KEEPERS = ("InteractiveTB", "SyntaxTB")
_KEPT = ("tb", "etype", "evalue", "value", "pdb", "last_syntax_error")
_SHARED = (type(None), bool, int, float, complex, str, bytes)


def _exceptions(shell: Any) -> Iterator[Any]:
    """Every exception and traceback that Python and IPython keep for a post-mortem."""
    for name in _LAST[1:]:
        yield getattr(sys, name, None)
    for keeper in _KEEPERS:
        thing = getattr(shell, keeper, None)
        yield from (vars(thing).get(name) for name in ("tb", "evalue", "value") if thing is not None)
    result = getattr(shell, "last_execution_result", None)
    yield getattr(result, "error_in_exec", None)
    yield getattr(result, "error_before_exec", None)


def let_go_of_tracebacks(shell: Any) -> list[str]:
    """The last exception goes from wherever it is kept; what it was, in words, where there was one."""
    names = {name_of(type(one)) for one in _exceptions(shell) if one is not None and isinstance_of(one, BaseException)}
    there = any(one is not None for one in _exceptions(shell))
    for name in _LAST:
        if hasattr(sys, name):
            delattr(sys, name)
    for keeper in _KEEPERS:
        thing = getattr(shell, keeper, None)
        for name in _KEPT:
            if thing is not None and vars(thing).get(name) is not None:
                setattr(thing, name, None)
    result = getattr(shell, "last_execution_result", None)
    if result is not None and not result.success:
        shell.last_execution_result = None
    return [f"the traceback of {' and '.join(sorted(names)) or 'the last exception'}"] if there else []


def let_go_of_outputs(shell: Any) -> list[str]:
    """``Out``, ``_``, ``__``, ``___`` and every ``_3``."""
    history = _history(shell)
    count = len(history)
    for number in list(history):
        _forget_output(shell, number)
    for name in LATEST:
        if vars(shell.displayhook).get(name) is not None:
            _forget_latest(shell, name)
    hidden = shell.user_ns_hidden  # here IPython alone puts outputs, also such as are no more in its history
    for name in [name for name in hidden if numbered(name) is not None]:
        del hidden[name]
    hidden.update((name, "") for name in LATEST if name in hidden)
    result = getattr(shell, "last_execution_result", None)
    if result is not None and result.result is not None:
        shell.last_execution_result = None
    return [f"{count} output{'' if count == 1 else 's'}"] if count else []


def _history(shell: Any) -> dict[int, Any]:
    history: Any = shell.user_ns.get("_oh")
    return history if history is not None and isinstance_of(history, dict) else {}


def _forget_output(shell: Any, number: int) -> None:
    value = _history(shell).pop(number)
    for names in (shell.user_ns, shell.user_ns_hidden):
        if names.get(f"_{number}") is value:
            del names[f"_{number}"]


def _forget_latest(shell: Any, name: str) -> None:
    """Empty ``_``, ``__`` or ``___`` where it is the output: what the user has put there himself is his."""
    mine = vars(shell.displayhook)[name]
    for names in (shell.user_ns, shell.user_ns_hidden):
        if name in names and names[name] is mine:
            names[name] = ""
    setattr(shell.displayhook, name, "")


def check_names(shell: Any, names: Iterable[str]) -> None:
    """Refuse before anything is gone.

    Raises:
        OptionError: A name that is not there, or IPython's or Python's own.
    """
    for name in names:
        if not name.isidentifier():
            raise OptionError(f"{name!r} is no name of a variable: what is inside one goes with `del`")
        if name not in shell.user_ns:
            raise OptionError(f"there is no variable {name!r}: nothing was let go")
        if name.startswith("__") and name.endswith("__") and name.strip("_"):
            raise OptionError(f"{name!r} is Python's own: it stays")
        if is_output(shell, name):
            raise OptionError(f"{name!r} is IPython's own: --out lets outputs go")


@dataclass(frozen=True, slots=True)
class _Copies:
    """What goes with a variable: outputs by number, the latest by name, the last cell's result, the last exception."""

    name: str
    numbers: tuple[int, ...] = ()
    latest: tuple[str, ...] = ()
    result: bool = False
    raised: bool = False


def let_go_of_names(shell: Any, names: Iterable[str]) -> list[str]:
    """Variables, the outputs that are the same object, and the last exception where a frame of it has that object."""
    chosen = [
        _copies(shell, name) for name in names
    ]  # all questions first: what may fail fails before anything is gone
    gone = []
    for one in chosen:
        shell.user_ns.pop(one.name, None)
        shell.user_ns_hidden.pop(one.name, None)
        numbers = [number for number in one.numbers if number in _history(shell)]
        for number in numbers:
            _forget_output(shell, number)
        for latest in one.latest:
            _forget_latest(shell, latest)
        if one.result:
            shell.last_execution_result = None
        gone.append(f"{one.name}{''.join(f', Out[{number}]' for number in numbers)}")
        if one.raised:
            gone += let_go_of_tracebacks(shell)
    return gone


def _copies(shell: Any, name: str) -> _Copies:
    thing = shell.user_ns[name]
    if is_one_of(thing, _SHARED):  # True and None are everywhere, and nobody's copies
        return _Copies(name)
    return _Copies(
        name,
        tuple(number for number, value in _history(shell).items() if value is thing),
        tuple(latest for latest in LATEST if vars(shell.displayhook).get(latest) is thing),
        getattr(getattr(shell, "last_execution_result", None), "result", None) is thing,
        _raised_with(shell, thing),
    )


def _raised_with(shell: Any, thing: Any) -> bool:
    """Whether the last exception has an object: as a local of its frames, an argument or an attribute."""
    for one in _chain(shell):
        if type(one) is FrameType:
            held = [value for _, value in locals_of(one)]
        else:
            own = gc.get_referents(one)
            held = own + [part for some in own if is_one_of(some, (dict, tuple)) for part in gc.get_referents(some)]
        if any(part is thing for part in held):
            return True
    return False


def _chain(shell: Any) -> Iterator[BaseException | FrameType]:
    """The last exception and those that led to it or are grouped in it, and every frame of theirs."""
    todo, seen = [one for one in _exceptions(shell) if one is not None], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        trace = one if type(one) is TracebackType else None
        if isinstance_of(one, BaseException):
            yield one
            todo += led_to(one)
            trace = traceback_of(one)
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next


class Debugger:
    """What ``%debug`` says once the traceback that it would open was let go."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ours: Any = None

    def tell(self) -> None:
        """Stand before the shell's debugger; as soon as there is another traceback it is IPython's own again."""
        if self._ours is not None:
            return
        original = self._shell.debugger

        def debugger(force: bool = False) -> Any:
            if force and not hasattr(sys, "last_traceback"):
                print("ipygpumem: %gpumem free let the last traceback go; there is one again after the next error")  # noqa: T201 (%debug's answer)
                return None
            return original(force)

        self._ours = debugger
        self._shell.debugger = debugger

    def remove(self) -> None:
        """Give the shell its own back, unless somebody has wrapped ours since."""
        if self._ours is not None and vars(self._shell).get("debugger") is self._ours:
            with contextlib.suppress(AttributeError):
                del self._shell.debugger
        self._ours = None
