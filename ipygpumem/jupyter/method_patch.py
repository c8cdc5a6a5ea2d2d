"""Reversible replacement of a method of a single object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def replace_method(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method. Return a function that restores it, unless other code has replaced it since.

    Raises:
        AttributeError: The object is immutable.
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
