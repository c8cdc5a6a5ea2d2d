"""Replace a method of one object, and restore it unless other code has replaced it since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def replace_method(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method, and return a function that restores it; AttributeError if the object is immutable."""
    original = getattr(owner, "__dict__", {}).get(name)  # IPython 9 itself wraps ``write`` while a cell runs
    setattr(owner, name, wrapper)

    def restore() -> None:
        if vars(owner).get(name) is not wrapper:
            return
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return restore
