"""Reversible replacement of an object's method."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any


def replace_method(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of an object. The returned function restores the original unless other code has replaced it.

    Raises `AttributeError` if the attributes of the object cannot be set.
    """
    original = getattr(owner, "__dict__", {}).get(name)  # IPython 9 also wraps ``write`` while a cell runs
    setattr(owner, name, wrapper)

    def restore() -> None:
        if vars(owner).get(name) is not wrapper:
            return
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return restore


def time_tracebacks(shell: Any, add: Callable[[float], None]) -> Callable[[], None]:
    """Call ``add`` with the time in seconds that a shell takes to show each traceback. Returns as `replace_method`."""
    show = shell.showtraceback

    def showtraceback(*arguments: Any, **options: Any) -> Any:
        began = perf_counter()
        try:
            return show(*arguments, **options)
        finally:
            add(perf_counter() - began)

    return replace_method(shell, "showtraceback", showtraceback)


def before_tracebacks(shell: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Install a function that a shell calls before it shows a traceback. The returned function uninstalls it."""
    show = shell.showtraceback

    def showtraceback(*arguments: Any, **options: Any) -> Any:
        callback()
        return show(*arguments, **options)

    return replace_method(shell, "showtraceback", showtraceback)
