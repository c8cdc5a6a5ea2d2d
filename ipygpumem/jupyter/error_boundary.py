"""The one error boundary: what goes wrong in our callbacks never reaches the person's cell."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["guarded"]

_Result = TypeVar("_Result")
_told: set[str] = set()


def guarded(callback: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """A callback of IPython's that never raises: one line for each kind of trouble, once, and the session goes on."""

    @functools.wraps(callback)
    def safe(*arguments: Any) -> _Result | None:
        try:
            return callback(*arguments)
        except Exception as error:
            text = str(error).strip().splitlines()
            line = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
            if line not in _told:
                _told.add(line)
                print(f"ipygpumem: this cell has no report ({line}); said once", file=sys.stderr)  # noqa: T201
            return None

    return safe
