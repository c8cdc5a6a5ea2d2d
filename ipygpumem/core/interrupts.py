"""Context managers that defer interrupts (SIGINT), or permit interrupts while another context manager defers them.

Without deferral, Python can raise `KeyboardInterrupt` between any two bytecode instructions.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the module signal takes 10 us, because it converts handlers to enums
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from signal import SIGINT
from types import MethodType
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


class DeferredInterrupts:
    """Context manager that defers interrupts until it exits, so that an interrupt cannot end its block early.

    If there was an interrupt, the program's signal handler is called on exit; it usually raises `KeyboardInterrupt`.
    The context manager can be nested. It has no effect in threads other than the main thread, or if the signal handler
    is not a Python function.
    """

    previous: Any = None  # handler to restore
    handler: Any = None  # handler to call for deferred interrupts
    pending = False

    def record(self, *_: object) -> None:
        self.pending = True

    def __enter__(self) -> None:
        handler = _signal.getsignal(SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler) and _deferral() is None:
            self.previous = self.handler = handler
            _signal.signal(SIGINT, self.record)

    def __exit__(self, *_: object) -> None:
        if _deferral() is self:
            _signal.signal(SIGINT, self.previous)
        self.deliver()

    def deliver(self) -> None:
        if self.pending:
            self.pending = False
            self.handler(SIGINT, sys._getframe())  # noqa: SLF001 (an argument of signal handlers)


class DeferredInterruptsInFiles(DeferredInterrupts):
    """Context manager that defers interrupts while a function from a file below one of ``paths`` is running."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def record(self, *arguments: Any) -> None:
        frame = arguments[1]
        while frame is not None and not frame.f_code.co_filename.startswith(self._paths):
            frame = frame.f_back
        if frame is None:
            self.handler(*arguments)
        else:
            self.pending = True


class ImmediateInterrupts:
    """Context manager for long operations, during which interrupts are not deferred even if the caller defers them."""

    def __enter__(self) -> None:
        self._deferral = deferral = _deferral()
        if deferral is not None:
            deferral.deliver()  # if this raises, further interrupts are still deferred
            try:
                _signal.signal(SIGINT, deferral.handler)
                deferral.deliver()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        try:
            self._defer()
        except BaseException:  # interrupted before further interrupts were deferred
            self._defer()
            raise

    def _defer(self) -> None:
        deferral, handler = self._deferral, _signal.getsignal(SIGINT)
        if deferral is not None and callable(handler) and _deferral() is not deferral:
            if handler is not deferral.handler:  # the program has installed another handler
                deferral.previous = deferral.handler = handler
            _signal.signal(SIGINT, deferral.record)


def exit_method(function: _Function) -> _Function:
    """Decorate a method ``__exit__`` so that `exit_after_interrupt` can call it if an interrupt has prevented this."""
    return cast("_Function", _ExitMethod(function))


def exit_after_interrupt(manager: Any) -> None:
    """Call the ``__exit__`` method of a context manager at the end of the current ``with`` statement, at the latest.

    Python calls signal handlers before the first statement of the method, so an interrupt can end the method there. The
    ``with`` statement then deletes its reference to the bound method, which nothing else refers to.
    """
    reference = vars(manager).get(_BOUND_METHOD)
    if reference is not None and (bound := reference()) is not None:
        weakref.finalize(bound, manager.__class__.__exit__, manager, KeyboardInterrupt, None, None).atexit = False


_BOUND_METHOD = "_bound_exit_method"


class _ExitMethod:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, manager: Any, owner: type) -> Callable[..., Any]:
        if manager is None:
            return self._function
        bound = functools.partial(self._function, manager)  # unlike this object, the frame of the function may be kept
        vars(manager)[_BOUND_METHOD] = weakref.ref(bound)
        return bound


def _deferral() -> DeferredInterrupts | None:
    handler = _signal.getsignal(SIGINT)
    owner = handler.__self__ if type(handler) is MethodType else None
    is_main = threading.current_thread() is threading.main_thread()
    return owner if isinstance(owner, DeferredInterrupts) and is_main else None
