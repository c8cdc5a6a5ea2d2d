"""Data classes and tables for the results of profiling a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.text import printable
from ipygpumem.core.units import duration, precise_size


@dataclass(frozen=True, slots=True)
class CategoryPeak:
    """Memory usage of a device at its peak, as recorded by the profiler.

    Attributes:
        device: Device name, such as ``"cuda:0"`` or ``"cpu"``.
        bytes: Memory usage at the peak in bytes.
        seconds: Time from the start of the profile to the peak, in seconds.
        categories: Pairs ``(category, bytes)``, excluding memory that was neither used nor freed during the profile.
    """

    device: str
    bytes: int
    seconds: float
    categories: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """The files written by profiling a measurement, and a summary of their contents.

    Attributes:
        trace: Path of the trace; None if it was not requested or could not be written (see ``errors``).
        trace_size: Size of the trace in bytes.
        timeline: Path of the timeline page; None if it was not requested or could not be written.
        timeline_size: Size of the page in bytes.
        changes: Number of allocations, frees and category changes in the timeline, for all devices.
        peaks: The peak of each GPU in descending order, followed by the peak of the host.
        seconds: Time in seconds for starting and stopping the profiler and for reading and writing the results.
        interrupted_after: Seconds until the code started its own profiler, which ended the profile; None if it did not
            start one.
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
    interrupted_after: float | None = field(default=None, metadata={"key": "aside"})
    why: str = ""
    errors: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return the notes about the profile that are shown below a report."""
        notes = []
        if self.interrupted_after is not None:
            notes.append(
                f"the profile ended after {duration(self.interrupted_after)} because the code started its own profiler"
            )
        if self.trace is not None:
            file = f"{printable(self.trace)} ({precise_size(self.trace_size)})"
            notes.append(f"trace: {file}; open it at https://ui.perfetto.dev")
        if self.timeline is not None:
            file = f"{printable(self.timeline)} ({precise_size(self.timeline_size)})"
            notes.append(f"timeline: {file}; open it in a browser")
        if self.why:
            notes.append(self.why)
        notes += self.errors
        notes.append(f"profiling itself took {duration(self.seconds)}, slowed the code down and used host memory")
        return notes


def category_tables(peaks: Sequence[CategoryPeak]) -> list[Table]:
    tables = []
    for peak in peaks:
        rows = [
            TableRow(category, (precise_size(nbytes), f"{nbytes / peak.bytes:.1%}" if peak.bytes > 0 else ""), 1)
            for category, nbytes in sorted(peak.categories, key=lambda entry: -entry[1])
            if nbytes
        ]
        rows.append(TableRow("all categories", (precise_size(peak.bytes), ""), 0))
        title = f"{peak.device} at its peak ({duration(peak.seconds)} after the start of the profile), by category"
        tables.append(Table(title, ("size", "share"), tuple(rows)))
    return tables
