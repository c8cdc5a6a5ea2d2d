"""Functions of PyTorch that are replaced by wrappers while this package needs them."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CallObservers", "WrappedFunctions"]


class WrappedFunctions:
    """The wrappers around functions of one module.

    If another library has wrapped a wrapper since, the wrapper stays in place and must keep working.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def wrap(self, name: str, call: Callable[..., Any]) -> None:
        """Call ``call(original, *arguments)`` instead of a function, if the module has that function."""
        module = sys.modules.get(self._module)
        current = getattr(module, name, None)
        if current is None:
            return
        if name not in self._wrapped:
            self._wrapped[name] = current, _wrapper(current, call)
        original, wrapper = self._wrapped[name]
        if current is original:
            setattr(module, name, wrapper)

    def unwrap(self, name: str) -> None:
        """Restore a function, unless another library has wrapped the wrapper."""
        module = sys.modules.get(self._module)
        original, wrapper = self._wrapped.get(name, (None, None))
        if wrapper is not None and getattr(module, name, None) is wrapper:
            setattr(module, name, original)
            del self._wrapped[name]

    def original(self, name: str) -> Callable[..., Any]:
        """Return the function without the wrapper."""
        wrapped = self._wrapped.get(name)
        function: Callable[..., Any] = getattr(sys.modules[self._module], name) if wrapped is None else wrapped[0]
        return function


def _wrapper(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        return call(original, *arguments, **options)

    # compiled code must see one opaque call, as it does without the wrapper
    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    return wrapper


class CallObservers:
    """Observers of calls, which are notified before or after functions of one module.

    The functions are wrapped while there are observers. The observer that was added last is notified first. Its errors
    replace the call or its result, except those that are ``ignored``.
    """

    def __init__(
        self, module: str, before: tuple[str, ...], after: tuple[str, ...], ignored: tuple[type[Exception], ...] = ()
    ) -> None:
        self._functions = WrappedFunctions(module)
        self._before, self._after, self._ignored = before, after, ignored
        self._lock = threading.RLock()
        self._observers: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def add(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call ``before`` and ``after`` from now on."""
        with self._lock:
            self._observers.append((before, after))
            for name in (*self._before, *self._after):
                self._functions.wrap(name, functools.partial(self._call, name))

    def remove(self, before: Callable[[], None]) -> None:
        """Remove the observer with this function."""
        with self._lock:
            self._observers = [observer for observer in self._observers if observer[0] != before]
            if not self._observers:
                for name in (*self._before, *self._after):
                    self._functions.unwrap(name)

    def close(self) -> None:
        """Remove all observers."""
        for before, _ in tuple(self._observers):
            self.remove(before)

    def _call(self, name: str, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        observers = self._observers[::-1]
        if name in self._before:
            self._notify(before for before, _ in observers)
        try:
            return original(*arguments, **options)
        finally:
            if name in self._after:
                self._notify(after for _, after in observers)

    def _notify(self, functions: Iterable[Callable[[], None]]) -> None:
        for function in functions:
            with contextlib.suppress(*self._ignored):
                function()
