"""How accurate a figure is, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Trust = Literal["exact", "derived", "bound", "sampled", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class Grade:
    """How accurate a figure is.

    Attributes:
        trust: ``exact``; ``derived`` from exact figures that were read at different times; ``bound``: an upper bound;
            ``sampled``: a lower bound; ``device``: of the whole device, not only of this process; ``unknown``: the
            figure is None.
        reason: The source of the figure, or why it is not exact.
    """

    trust: Trust
    reason: str = ""

    @property
    def qualifier(self) -> str:
        """The words before a figure that is a bound: ``"at most "`` or ``"at least "``."""
        return {"bound": "at most ", "sampled": "at least "}.get(self.trust, "")

    def __str__(self) -> str:
        """Such as ``"exact (allocator counter)"``."""
        return f"{self.trust} ({self.reason})" if self.reason else self.trust


@lru_cache(maxsize=256)
def grade(trust: Trust, reason: str = "") -> Grade:
    """Return a `Grade`, the same object for the same arguments: thousands of reports share a few grades."""
    return Grade(trust, reason)


def exact_if_known(figure: int | None, source: str, problem: str) -> Grade:
    """Return the grade of a figure that is exact, or None because of a problem."""
    return grade("unknown", problem) if figure is None else grade("exact", source)
