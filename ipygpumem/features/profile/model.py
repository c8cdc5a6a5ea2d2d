"""The profile of a measurement: its trace, its timeline by category, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.units import duration, precise_size


@dataclass(frozen=True, slots=True)
class CategoryPeak:
    """The peak of a device as the profile recorded it.

    Attributes:
        device: Name, as in ``"cuda:0"`` or ``"cpu"``.
        bytes: Memory in use at the peak.
        seconds: Time of the peak, from the beginning of the profile.
        categories: (category, bytes) at the peak. Memory that no profiled operator used is in no category.
    """

    device: str
    bytes: int
    seconds: float
    categories: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """The results of a measurement's profile.

    Attributes:
        trace: Path of the trace; None if none was requested, or it was not written (see ``errors``).
        trace_size: Size of the trace in bytes.
        timeline: Path of the timeline page; None as for ``trace``.
        timeline_size: Size of the page in bytes.
        changes: Number of allocations, frees and changes of category in the timeline, for all devices.
        peaks: The peak of each device, the highest first.
        seconds: Time that profiling took in addition to the code: starting, stopping, reading and writing.
        aside: Seconds after which the profile ended because the code started its own profiler; None if it did not.
        why: Reason why categories are unknown; empty if they are known.
        errors: Messages about files that were not written.
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
        """Return the notes that a report shows below its figures."""
        notes = []
        if self.aside is not None:
            notes.append(f"the code started its own profiler: the profile ended after {duration(self.aside)}")
        if self.trace is not None:
            notes.append(f"trace: {self.trace} ({precise_size(self.trace_size)}), open it with https://ui.perfetto.dev")
        if self.timeline is not None:
            notes.append(f"timeline: {self.timeline} ({precise_size(self.timeline_size)}), open it with any browser")
        if self.why:
            notes.append(self.why)
        notes += self.errors
        cost = duration(self.seconds)
        notes.append(f"profiling took another {cost}; it also slowed the code down and used host memory")
        return notes
