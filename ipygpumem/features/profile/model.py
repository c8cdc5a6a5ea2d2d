"""Results of profiling a measurement: the trace, the timeline by category, and the overhead."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.units import duration, precise_size


@dataclass(frozen=True, slots=True)
class CategoryPeak:
    """The memory usage at the peak of a device, as recorded by the profiler.

    Attributes:
        device: Device name, such as ``"cuda:0"`` or ``"cpu"``.
        bytes: Memory usage at the peak in bytes.
        seconds: Time from the start of the profile to the peak.
        categories: (category, bytes) pairs at the peak. Memory that no profiled operator used has no category.
    """

    device: str
    bytes: int
    seconds: float
    categories: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """The results of profiling a measurement.

    Attributes:
        trace: Path of the trace; None if it was not requested or could not be written (see ``errors``).
        trace_size: Size of the trace in bytes.
        timeline: Path of the timeline page; None if it was not requested or could not be written.
        timeline_size: Size of the page in bytes.
        changes: Number of allocations, frees and category changes in the timeline, for all devices.
        peaks: The peak of each device, the highest first.
        seconds: Time spent on starting and stopping the profiler and on reading and writing the results.
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
        """Return the notes that a report shows below its tables."""
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
