"""Backward passes of PyTorch, and the code that waits for them.

PyTorch runs backward passes on its own threads, whose Python stacks do not show the code that called ``backward``. All
calls pass through one Python function of PyTorch, which is wrapped while there are observers.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ipygpumem.measurement.event_position import EventPosition, event_position
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["BackwardObserver", "BackwardPass", "BackwardPasses", "BackwardWrapper"]

_FUNCTION = "_engine_run_backward"


class BackwardObserver(Protocol):
    """An object that is called around each backward pass. Its errors are ignored."""

    def backward_begins(self) -> None:
        """Called before a backward pass."""

    def backward_ends(self) -> None:
        """Called after a backward pass, also if it failed."""


class BackwardWrapper:
    """The wrapper of PyTorch's function; one per runtime: ``current().state(BackwardWrapper)``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._observers: list[BackwardObserver] = []
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None

    def add(self, observer: BackwardObserver) -> None:
        """Call an observer around each backward pass from now on."""
        torch = pytorch.module()
        if torch is None:
            return
        with self._lock:
            self._observers.append(observer)
            if self._original is None and hasattr(torch.autograd, _FUNCTION):
                self._original = getattr(torch.autograd, _FUNCTION)
                self._wrapper = self._wrap(self._original)
                setattr(torch.autograd, _FUNCTION, self._wrapper)

    def remove(self, observer: BackwardObserver) -> None:
        """Do not call an observer any more."""
        with self._lock:
            if observer in self._observers:
                self._observers.remove(observer)
            if not self._observers:
                self._unwrap()

    def close(self) -> None:
        """Remove all observers."""
        with self._lock:
            self._observers.clear()
            self._unwrap()

    def _unwrap(self) -> None:
        torch = pytorch.module()
        # if another library has wrapped our wrapper since, ours stays, and does nothing
        if self._original is not None and getattr(getattr(torch, "autograd", None), _FUNCTION, None) is self._wrapper:
            setattr(torch.autograd, _FUNCTION, self._original)  # type: ignore[union-attr]
            self._original = self._wrapper = None

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            observers = tuple(self._observers)
            for observer in observers:
                _call(observer.backward_begins)
            try:
                return original(*arguments, **options)
            finally:
                for observer in observers:
                    _call(observer.backward_ends)

        wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
        return wrapper


def _call(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception:  # must not replace the result or the error of the user's backward pass
        return


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """One backward pass.

    Attributes:
        begin: Position in the allocation events before it.
        end: Position after it.
        stack: The Python stack of the caller, innermost frame first, as (file, line).
        root: The outermost file of that stack, which differs between threads.
    """

    begin: EventPosition
    end: EventPosition
    stack: tuple[tuple[str, int], ...]
    root: str


class BackwardPasses:
    """Observer of a measurement that collects all backward passes."""

    def __init__(self) -> None:
        self.passes: list[BackwardPass] = []
        self._running = threading.local()
        self._wrapper: BackwardWrapper | None = None

    def start(self) -> None:
        """Begin to collect."""
        self._wrapper = current().state(BackwardWrapper)
        self._wrapper.add(self)

    def stop(self) -> None:
        """Stop collecting."""
        if self._wrapper is not None:
            self._wrapper.remove(self)

    def backward_begins(self) -> None:
        """Store the position and the caller's stack."""
        vars(self._running).setdefault("passes", []).append((event_position(), *_caller_stack()))

    def backward_ends(self) -> None:
        """Add the pass that ended."""
        begin, stack, root = self._running.passes.pop()
        self.passes.append(BackwardPass(begin, event_position(), stack, root))


def _caller_stack() -> tuple[tuple[tuple[str, int], ...], str]:
    frame: FrameType | None = sys._getframe(1)
    stack: list[tuple[str, int]] = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(stack), stack[-1][0]
