"""What became of a measurement's profile: its trace, its timeline by category, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.units import MIB, duration, in_bytes, size

__all__ = ["CategoryPeak", "ProfileFacts"]

_COST = "profiling took {} beside the code's own time, and made that and the host's figures larger"


@dataclass(frozen=True, slots=True)
class CategoryPeak:
    """The highest level of a device as the profile saw it: ``bytes``, ``seconds`` after the profile's beginning.

    ``categories``: name and bytes of each category there; what no operator used is in none of them.
    """

    device: str
    bytes: int
    seconds: float
    categories: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """What became of a measurement's profile.

    Attributes:
        trace: Where the trace lies; None where none was asked for, or it could not be written (``errors`` says why).
        trace_size: In bytes.
        timeline: Where the page lies; None as above.
        timeline_size: In bytes.
        changes: Allocations, frees and changes of category that the timeline has, over all devices.
        peaks: Of each device, the one with the highest peak first.
        seconds: What profiling took beside the code's own time: to begin, to end, to read, to write.
        aside: Seconds after which it made way for a profiler of the code's own; None where it did not.
        why: Why categories are unknown, where they are.
        errors: What could not be done.
    """

    trace: str | None = None
    trace_size: int = 0
    timeline: str | None = None
    timeline_size: int = 0
    changes: int = 0
    peaks: tuple[CategoryPeak, ...] = ()
    seconds: float = 0.0
    aside: float | None = None
    why: str = ""
    errors: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """What is to be said of it below the figures."""
        found = []
        if self.aside is not None:
            found.append(f"this code profiles itself: our profile made way for it after {duration(self.aside)}")
        if self.trace is not None:
            found.append(f"trace of {_amount(self.trace_size)} in {self.trace}: https://ui.perfetto.dev opens it")
        if self.timeline is not None:
            found.append(f"timeline of {_amount(self.timeline_size)} in {self.timeline}: any browser opens it")
        if self.why:
            found.append(self.why)
        found += self.errors
        found.append(_COST.format(duration(self.seconds)))
        return found


def _amount(count: int) -> str:
    return size(count) if count >= MIB // 20 else in_bytes(count)
