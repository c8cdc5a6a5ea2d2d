"""Reversible replacement of an object's method."""

from __future__ import annotations

from collections.abc import Callable
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
