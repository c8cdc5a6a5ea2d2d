"""When torch.profiler works: only one can, and whoever is in its way has to know beforehand.

* It and our records of memory outside PyTorch cannot both have CUPTI's buffers: while our callbacks stand, a profiler
  that starts loses its own records (seen with torch 2.11 and CUPTI 13.0).
* A second profiler makes ready by ending the first, whose result is then empty; in another thread it ends the process
  when the first stops (seen with torch 2.13).

The functions that every use of it goes through tell us beforehand and afterwards.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    _Watcher = tuple[Callable[[], None], Callable[[], None]]

__all__ = ["profiling", "release_profiler", "watch_profiler"]

_BEFORE, _AFTER = ("_prepare_profiler", "_enable_profiler"), ("_disable_profiler",)
_originals: dict[str, Callable[..., Any]] = {}
_wrappers: dict[str, Callable[..., Any]] = {}
_watchers: list[_Watcher] = []
_lock = threading.RLock()


def _module() -> Any | None:
    return sys.modules.get("torch.autograd.profiler")


def profiling() -> bool:
    """Whether a profiler of PyTorch's is at work."""
    module = _module()
    return bool(getattr(module, "_is_profiler_enabled", False))


def watch_profiler(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call ``before`` each time a profiler makes ready or starts, and ``after`` when it has ended.

    Who came last is told first. An error of ``before`` reaches whoever starts that profiler, which then does not start.
    """
    module = _module()
    if module is None:
        return
    with _lock:
        _watchers.append((before, after))
        if _originals:
            return
        for name in (*_BEFORE, *_AFTER):
            original = getattr(module, name, None)
            if original is not None:
                _originals[name] = original
                _wrappers[name] = _following(original) if name in _AFTER else _leading(original)
                setattr(module, name, _wrappers[name])


def release_profiler(before: Callable[[], None]) -> None:
    """Tell this one no more. After the last of them the functions are put back.

    Unless somebody has wrapped ours since: then they go on, and say nothing to us.
    """
    module = _module()
    with _lock:
        _watchers[:] = [one for one in _watchers if one[0] != before]
        if _watchers:
            return
        for name, original in _originals.items():
            if getattr(module, name, None) is _wrappers[name]:
                setattr(module, name, original)
        _originals.clear()
        _wrappers.clear()


def _leading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def begin(*arguments: Any, **options: Any) -> Any:
        for before, _ in reversed(_watchers[:]):
            before()
        return original(*arguments, **options)

    return begin


def _following(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def disable(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        finally:
            for _, after in reversed(_watchers[:]):
                after()

    return disable
