"""How far a number can be trusted, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

__all__ = ["Grade", "Trust", "grade"]

Trust = Literal["exact", "derived", "bound", "sampled", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class Grade:
    """The trust in one number, with its reason.

    ``exact``: to the byte of the counter. ``derived``: worked out from exact figures of several instants. ``bound``:
    the number is the most it can have been. ``sampled``: at least this. ``device``: true of the whole card, not of
    this process alone. ``unknown``: the number is None.
    """

    trust: Trust
    reason: str = ""

    def __str__(self) -> str:
        """As one phrase: ``"exact (allocator counter)"``."""
        return f"{self.trust} ({self.reason})" if self.reason else self.trust


@lru_cache(maxsize=256)
def grade(trust: Trust, reason: str = "") -> Grade:
    """The one `Grade` of these words: thousands of reports share a handful of objects."""
    return Grade(trust, reason)
