"""When a backward pass runs, and which lines wait for it.

PyTorch runs it on threads of its own, where no Python stack tells who asked. All ways into it go through one Python
function; while somebody listens, ours stands before that.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ipygpumem.measurement.event_position import Mark, mark
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["BACKWARD", "Backward", "BackwardPasses", "Listener", "Pass"]

_NAME = "_engine_run_backward"


class Listener(Protocol):
    """Who wants to know of backward passes. What it raises is lost."""

    def backward_begins(self) -> None:
        """A pass is about to run."""

    def backward_ends(self) -> None:
        """It has run, well or not."""


class Backward:
    """The one place where we stand before PyTorch's engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None

    def join(self, listener: Listener) -> None:
        """Tell this one of every pass from here on."""
        torch = pytorch.module()
        if torch is None:
            return
        with self._lock:
            self._listeners.append(listener)
            home = torch.autograd
            if self._original is None and hasattr(home, _NAME):
                self._original = getattr(home, _NAME)
                self._wrapper = self._wrapped(self._original)
                setattr(home, _NAME, self._wrapper)

    def leave(self, listener: Listener) -> None:
        """No longer."""
        torch = pytorch.module()
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if torch is None or self._listeners or self._original is None:
                return
            # somebody may have wrapped ours since: then ours stays, and does nothing
            if getattr(torch.autograd, _NAME, None) is self._wrapper:
                setattr(torch.autograd, _NAME, self._original)
                self._original = self._wrapper = None

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            listeners = tuple(self._listeners)
            for listener in listeners:
                _quietly(listener.backward_begins)
            try:
                return original(*arguments, **options)
            finally:
                for listener in listeners:
                    _quietly(listener.backward_ends)

        wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
        return wrapper


def _quietly(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # never in the place of what the user's own backward does
        return


BACKWARD = Backward()
"""The process's one."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One backward pass.

    Attributes:
        begin: Where the events stood before it.
        end: Where they stood after it.
        stack: The Python stack that waited, innermost first, as (file, line).
        root: The outermost file of that stack: it tells the thread that waited from others.
    """

    begin: Mark
    end: Mark
    stack: tuple[tuple[str, int], ...]
    root: str


class BackwardPasses:
    """An observer of a measurement that notes every backward pass."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self._open = threading.local()

    def start(self) -> None:
        """Begin to listen."""
        BACKWARD.join(self)

    def stop(self) -> None:
        """End."""
        BACKWARD.leave(self)

    def backward_begins(self) -> None:
        """Note where the events stand, and who waits."""
        vars(self._open).setdefault("begun", []).append((mark(), *_waiting()))

    def backward_ends(self) -> None:
        """Note where they stand now."""
        begin, stack, root = self._open.begun.pop()
        self.passes.append(Pass(begin, mark(), stack, root))


def _waiting() -> tuple[tuple[tuple[str, int], ...], str]:
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[str, int]] = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found), found[-1][0]
