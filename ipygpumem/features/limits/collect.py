"""Collector that checks memory limits, and creation of the error for exceeded limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipygpumem.core.errors import GPUMemLimitExceeded
from ipygpumem.core.introspection import attempt
from ipygpumem.core.report import Report
from ipygpumem.features.limits.model import ExceededLimit, MemoryLimits
from ipygpumem.features.lines.model import AllocationSite
from ipygpumem.features.lines.peak import allocation_sites, lines_at_peak, lines_reaching_peak
from ipygpumem.measurement.plan import Collector, CompletedMeasurement, with_notes
from ipygpumem.snapshot import Snapshot
from ipygpumem.sources import pytorch

_MAX_HOLDERS = 3


class LimitsCollector(Collector):
    """Collector that checks memory limits. If a limit is exceeded, it sets `CompletedMeasurement.error`."""

    section = "limits"
    reads_recording = True

    def __init__(self, limits: MemoryLimits, *, recorded: bool) -> None:
        self._limits = limits
        self._recorded = recorded

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:
        excesses, notes = self._limits.check(report)
        report = with_notes(replace(report, excesses=excesses), *notes)
        if not report.devices:
            # if CUDA was not initialized, no GPU memory was used and the limits are met
            problem = pytorch.problem(load=True) if pytorch.module() is not None else "torch was not imported"
            report = with_notes(report, *(self._limits.unmeasured(problem) if problem else ()))
        if excesses:
            outcome.error = _limit_error(report, outcome.snapshot, recorded=self._recorded)
        return report


def _limit_error(report: Report, snapshot: Snapshot | None, *, recorded: bool) -> GPUMemLimitExceeded:
    from ipygpumem.features.holders.collect import holders

    cell = "" if report.cell is None else f"In [{report.cell}]: "
    lines = ["" if snapshot is None else _responsible_lines(excess, snapshot) for excess in report.excesses]
    parts = [f"{excess} ({line})" if line else str(excess) for excess, line in zip(report.excesses, lines, strict=True)]
    on_gpu = [excess for excess in report.excesses if excess.where != "host"]
    if on_gpu and (largest := attempt(lambda: holders().largest(_MAX_HOLDERS))):  # without holders if the search fails
        parts.append(f"largest holders now: {', '.join(map(str, largest))}")
    if not recorded and any(excess.kind in {"peak", "held"} for excess in on_gpu):
        parts.append("to find the responsible line of code, run this cell with %%gpumem and --limit or --limit-held")
    return GPUMemLimitExceeded(cell + "; ".join(parts), report.excesses)


def _responsible_lines(excess: ExceededLimit, snapshot: Snapshot) -> str:
    index = -1 if excess.where == "host" else int(excess.where.rpartition(":")[2])
    if not 0 <= index < len(snapshot.timelines) or not len(snapshot.timelines[index].trace):
        return ""
    if excess.kind == "held":
        reached_by, largest = "", _first_known(allocation_sites(snapshot.leaks(device=index)))
    elif excess.kind == "peak":
        reached_by = _first_known(lines_reaching_peak(snapshot, index))
        largest = _first_known(lines_at_peak(snapshot, index))
    else:
        return ""
    phrases = [f"peak reached by {reached_by}"] if reached_by else []
    phrases += [f"largest part allocated by {largest}"] if largest and largest != reached_by else []
    return "; ".join(phrases)


def _first_known(lines: Sequence[AllocationSite]) -> str:
    return next((line.label for line in lines if line.known), "")
