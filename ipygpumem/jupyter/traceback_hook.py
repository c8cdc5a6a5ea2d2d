"""The moment at which a cell fails, before its traceback is made: a profile need not hold what IPython does for that.

Formatting a traceback is hundreds of thousands of calls of Python, which would be most of a failing cell's trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Failing"]


class Failing:
    """Calls ``then`` once, when a shell is about to show a traceback; until `remove`."""

    def __init__(self, shell: Any, then: Callable[[], None]) -> None:
        self._shell, self._then = shell, then
        show = shell.showtraceback
        self._theirs = vars(shell).get("showtraceback")

        def showtraceback(*arguments: Any, **options: Any) -> Any:
            then = self._then
            self.remove()
            then()
            return show(*arguments, **options)

        self._ours: Any = showtraceback
        shell.showtraceback = showtraceback

    def remove(self) -> None:
        """Give the way back, unless somebody has wrapped ours since: then it goes on, and calls nothing of ours."""
        self._then = _nothing
        if vars(self._shell).get("showtraceback") is not self._ours:
            return
        if self._theirs is None:
            del self._shell.showtraceback
        else:
            self._shell.showtraceback = self._theirs


def _nothing() -> None:
    pass
