"""Accuracy of reported values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Trust = Literal["exact", "derived", "bound", "sampled", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a reported value.

    Attributes:
        trust: ``exact``, ``derived`` (computed from exact values that were read at different times), ``bound`` (an
            upper bound), ``sampled`` (a lower bound), ``device`` (the value of the whole device, not only of this
            process), or ``unknown`` (the value is None).
        reason: The origin of an exact value, or the reason why the value is not exact.
    """

    trust: Trust
    reason: str = ""

    @property
    def qualifier(self) -> str:
        """Text to write before the value: ``"at most "`` or ``"at least "`` for a bound; otherwise empty."""
        return {"bound": "at most ", "sampled": "at least "}.get(self.trust, "")

    def __str__(self) -> str:
        """Return the trust and the reason, such as ``"exact (allocator counter)"``."""
        return f"{self.trust} ({self.reason})" if self.reason else self.trust


@lru_cache(maxsize=256)
def make_accuracy(trust: Trust, reason: str = "") -> Accuracy:
    """Return a cached `Accuracy`, because thousands of reports contain the same few values."""
    return Accuracy(trust, reason)


def exact_if_known(metric: int | None, source: str, problem: str) -> Accuracy:
    """Return ``exact`` with ``source`` as the reason or, if ``metric`` is None, ``unknown`` with ``problem``."""
    return make_accuracy("unknown", problem) if metric is None else make_accuracy("exact", source)
