"""Whether the last line that a cell printed is still open, as that of a progress bar is.

A display between two pieces of such a line would part it: a bar that redraws itself would leave its torso behind.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Endings"]


class Endings:
    """Watches both streams from `install` to `remove`."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._ours: list[tuple[Any, Callable[..., Any], Any]] = []

    @property
    def open(self) -> bool:
        """Whether one of the streams stands in the middle of a line."""
        return any(last not in {"", "\n"} for last in self._last.values())

    def install(self) -> None:
        """Stand before what writes."""
        for place, stream in enumerate((sys.stdout, sys.stderr)):
            if hasattr(stream, "__dict__") and not self._ours[place:]:
                self._watch(place, stream)

    def _watch(self, place: int, stream: Any) -> None:
        theirs, write, last = vars(stream).get("write"), stream.write, self._last

        def watched(text: Any, *rest: Any) -> Any:
            if isinstance(text, str) and text:
                last[place] = text[-1]
            return write(text, *rest)

        try:
            stream.write = watched
        except AttributeError:  # it cannot be watched: then it says nothing
            return
        self._ours.append((stream, watched, theirs))

    def remove(self) -> None:
        """Give back what was there, unless somebody has stood before us since."""
        for stream, watched, theirs in self._ours:
            if vars(stream).get("write") is not watched:
                continue
            if theirs is None:
                del stream.write
            else:
                stream.write = theirs
        self._ours.clear()
