"""A hook that runs before IPython formats the traceback of a failing cell.

Formatting makes hundreds of thousands of Python calls, which would be most of the profile of a failing cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TracebackHook"]


class TracebackHook:
    """Calls a function once, when a shell is about to show a traceback, until `remove`."""

    def __init__(self, shell: Any, callback: Callable[[], None]) -> None:
        self._shell, self._callback = shell, callback
        show = shell.showtraceback
        self._original = vars(shell).get("showtraceback")

        def showtraceback(*arguments: Any, **options: Any) -> Any:
            callback = self._callback
            self.remove()
            callback()
            return show(*arguments, **options)

        self._wrapper: Any = showtraceback
        shell.showtraceback = showtraceback

    def remove(self) -> None:
        """Restore the shell's method; if other code has wrapped it since, it stays and calls nothing of ours."""
        self._callback = _nothing
        if vars(self._shell).get("showtraceback") is not self._wrapper:
            return
        if self._original is None:
            del self._shell.showtraceback
        else:
            self._shell.showtraceback = self._original


def _nothing() -> None:
    pass
