"""From a finished measurement to its report, for cells, statements, blocks and tests alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ipygpumem.core.errors import IpyGpuMemError, first_line
from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.measurement.plan import Code, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipygpumem.core.errors import GPUMemLimitExceeded
    from ipygpumem.core.report import Report
    from ipygpumem.measurement.build_report import Label
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Plan
    from ipygpumem.snapshot import Snapshot

__all__ = ["Finished", "finish", "with_notes"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A report, and the error that the measured code is to end with, such as an exceeded limit."""

    report: Report
    error: GPUMemLimitExceeded | None = None


def finish(
    measurement: Measurement,
    plan: Plan,
    label: Label,
    *,
    success: bool | None,
    code: Callable[[], Code] = Code,
) -> Finished | None:
    """End a measurement and build its report with everything that was planned.

    Args:
        measurement: The open measurement.
        plan: What it was to collect.
        label: What was measured.
        success: Whether the code ended without an error.
        code: Returns the measured code; called only if there is a recording.

    Returns:
        None in a process that was forked during the measurement.
    """
    try:
        measured_code = code() if plan.records else Code()
        report = measurement.end(
            label, success=success, sources=lambda: measured_code.sources, numbers=lambda: measured_code.numbers
        )
    except BaseException:
        measurement.abandon()
        raise
    if report is None:
        return None
    if not plan.collectors:
        return Finished(report)
    snapshot, problem = _read_recording(measurement, plan, measured_code.numbers)
    outcome = Outcome(measurement, plan.recorder, snapshot, problem, measured_code)
    for collector in plan.collectors:
        try:
            report = collector.collect(report, outcome)
        except Exception as error:  # a missing section is no reason to lose the report
            report = with_notes(report, f"no {collector.section}: {first_line(error)}")
    return Finished(report, outcome.error)


def with_notes(report: Report, *notes: str) -> Report:
    """Return the report with further notes."""
    return replace(report, notes=(*report.notes, *notes)) if notes else report


def _read_recording(measurement: Measurement, plan: Plan, numbers: Mapping[str, int]) -> tuple[Snapshot | None, str]:
    """The recording, and why there is none to read."""
    recorder, facts = plan.recorder, measurement.recorded
    if recorder is None or facts is None or not recorder.keep:
        return None, ""
    recorded, recorder.kept = recorder.kept, None
    if recorded is None or facts.error:
        return None, facts.error or "nothing was recorded"
    if facts.dropped is None:
        return None, "it is unknown whether the ring buffer dropped allocations"
    if facts.dropped:
        return None, f"the ring buffer dropped {facts.dropped:,} allocations: raise max_entries"
    # functions of cells that ran earlier appear in the stacks; the saved file does not list these cells
    cells = recorded["ipygpumem"]["cells"]
    filenames = {cell["filename"] for cell in cells}
    cells += [
        {"number": number, "filename": filename, "start_us": 0, "end_us": 0, "success": None}
        for filename, number in numbers.items()
        if filename not in filenames
    ]
    from ipygpumem.snapshot import Snapshot

    try:
        with collector_paused():
            return Snapshot.load(recorded), ""
    except IpyGpuMemError as error:
        return None, str(error)
