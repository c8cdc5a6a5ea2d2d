"""When torch.profiler works: it and we cannot have CUPTI's buffers both, and it goes first.

While our callbacks stand, a profiler that starts loses its own records (seen with torch 2.11 and CUPTI 13.0). So the
two functions that every use of it goes through tell us beforehand and afterwards.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["profiling", "release_profiler", "watch_profiler"]

_BEFORE, _AFTER = "_prepare_profiler", "_disable_profiler"
_originals: dict[str, Callable[..., Any]] = {}
_wrappers: dict[str, Callable[..., Any]] = {}


def _module() -> Any | None:
    return sys.modules.get("torch.autograd.profiler")


def profiling() -> bool:
    """Whether a profiler of PyTorch's is at work."""
    module = _module()
    return bool(getattr(module, "_is_profiler_enabled", False))


def watch_profiler(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call ``before`` each time a profiler makes ready, and ``after`` when it has ended, until `release_profiler`."""
    module = _module()
    if module is None or _originals:
        return
    for name, make in ((_BEFORE, _leading), (_AFTER, _following)):
        original = getattr(module, name, None)
        if original is not None:
            _originals[name] = original
            _wrappers[name] = make(original, before if name == _BEFORE else after)
            setattr(module, name, _wrappers[name])


def release_profiler() -> None:
    """Put the two functions back, unless somebody has wrapped ours since: then they go on, and say nothing to us."""
    module = _module()
    for name, original in _originals.items():
        if getattr(module, name, None) is _wrappers[name]:
            setattr(module, name, original)
    _originals.clear()
    _wrappers.clear()


def _leading(original: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare(*arguments: Any, **options: Any) -> Any:
        tell()
        return original(*arguments, **options)

    return prepare


def _following(original: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def disable(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        finally:
            tell()

    return disable
