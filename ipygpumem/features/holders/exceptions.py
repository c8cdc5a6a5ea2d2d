"""What an exception carries, read by the base class's own getters: its class may answer anything, or raise."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import isinstance_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["led_to", "traceback_of"]

_traceback: Any = vars(BaseException)["__traceback__"].__get__
_cause: Any = vars(BaseException)["__cause__"].__get__
_context: Any = vars(BaseException)["__context__"].__get__
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11
_grouped: Any = None if _GROUP is None else vars(_GROUP)["exceptions"].__get__


def traceback_of(error: BaseException) -> TracebackType | None:
    """Where it came by."""
    trace: TracebackType | None = _traceback(error)
    return trace


def led_to(error: BaseException) -> list[BaseException]:
    """The exceptions that it came of, or that are grouped in it."""
    grouped = _grouped(error) if _GROUP is not None and isinstance_of(error, _GROUP) else ()
    return [one for one in (_cause(error), _context(error), *grouped) if one is not None]
