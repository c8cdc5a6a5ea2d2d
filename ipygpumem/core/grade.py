"""Accuracy of reported values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Trust = Literal["exact", "derived", "bound", "sampled", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class Grade:
    """Accuracy of a reported value.

    Attributes:
        trust: ``exact``, ``derived`` (computed from exact values that were read at different times), ``bound`` (an
            upper bound), ``sampled`` (a lower bound), ``device`` (the value of the whole device, not only of this
            process), or ``unknown`` (the value is None).
        reason: The source of the value, or the reason why it is not exact.
    """

    trust: Trust
    reason: str = ""

    @property
    def qualifier(self) -> str:
        """Prefix of a value that is a bound: ``"at most "`` or ``"at least "``; otherwise empty."""
        return {"bound": "at most ", "sampled": "at least "}.get(self.trust, "")

    def __str__(self) -> str:
        """Return the trust and the reason, such as ``"exact (allocator counter)"``."""
        return f"{self.trust} ({self.reason})" if self.reason else self.trust


@lru_cache(maxsize=256)
def grade(trust: Trust, reason: str = "") -> Grade:
    """Return a `Grade`. Equal arguments return the same object, because thousands of reports share a few grades."""
    return Grade(trust, reason)


def exact_if_known(metric: int | None, source: str, problem: str) -> Grade:
    """Return grade ``exact`` with the source, or grade ``unknown`` with the problem if the value is None."""
    return grade("unknown", problem) if metric is None else grade("exact", source)
