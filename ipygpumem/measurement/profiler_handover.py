"""Notification of uses of torch.profiler, which must not run together with other collectors.

* torch.profiler and our records of memory outside PyTorch cannot both use CUPTI's buffers: while our callbacks are
  registered, a profiler that starts gets no records (seen with torch 2.11 and CUPTI 13.0).
* A second profiler ends the first while it prepares, and the first has an empty result. In another thread the process
  crashes when the first one stops (seen with torch 2.13).

All uses of torch.profiler pass through three functions, which are wrapped while there are observers.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ProfilerObservers", "profiling"]

_BEFORE, _AFTER = ("_prepare_profiler", "_enable_profiler"), ("_disable_profiler",)


def _module() -> Any | None:
    return sys.modules.get("torch.autograd.profiler")


def profiling() -> bool:
    """Return whether torch.profiler is running."""
    return bool(getattr(_module(), "_is_profiler_enabled", False))


class ProfilerObservers:
    """The observers of torch.profiler; one object per runtime: ``current().state(ProfilerObservers)``."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._observers: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._originals: dict[str, Callable[..., Any]] = {}
        self._wrappers: dict[str, Callable[..., Any]] = {}

    def add(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call ``before`` each time a profiler prepares or starts, and ``after`` each time it has stopped.

        The observer that was added last is called first. If ``before`` raises, that profiler does not start.
        """
        module = _module()
        if module is None:
            return
        with self._lock:
            self._observers.append((before, after))
            if self._originals:
                return
            for name in (*_BEFORE, *_AFTER):
                original = getattr(module, name, None)
                if original is not None:
                    self._originals[name] = original
                    self._wrappers[name] = self._wrap(original, 1 if name in _AFTER else 0)
                    setattr(module, name, self._wrappers[name])

    def remove(self, before: Callable[[], None]) -> None:
        """Remove the observer with this function."""
        with self._lock:
            self._observers[:] = [observer for observer in self._observers if observer[0] != before]
            if not self._observers:
                self._unwrap()

    def close(self) -> None:
        """Remove all observers."""
        with self._lock:
            self._observers.clear()
            self._unwrap()

    def _unwrap(self) -> None:
        module = _module()
        for name, original in self._originals.items():
            # if another library has wrapped our wrapper since, ours stays, and does nothing
            if getattr(module, name, None) is self._wrappers[name]:
                setattr(module, name, original)
        self._originals.clear()
        self._wrappers.clear()

    def _wrap(self, original: Callable[..., Any], after: int) -> Callable[..., Any]:
        """Return a wrapper that calls all observers before the original, or (1) after it."""

        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if not after:
                self._call(0)
            try:
                return original(*arguments, **options)
            finally:
                if after:
                    self._call(1)

        return wrapper

    def _call(self, index: int) -> None:
        for observer in reversed(self._observers[:]):
            observer[index]()
