"""A report as one flat row for each device: what a history lists, compares, draws and exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.grade import Trust
    from ipygpumem.core.report import DeviceReport, Report

__all__ = ["HOST", "Entry", "entries", "moved_entries"]

HOST = "host"
"""The device of a row that tells of this process's main memory, where there was no GPU."""
_VISIBLE = MIB // 20


@dataclass(frozen=True, slots=True)
class Entry:
    """What one measurement did to one device. Bytes; what is unknown is None.

    Attributes:
        cell: In number; None outside a stored cell.
        cell_id: The front end's name of the cell, the same in every run.
        code: First line of the code.
        time: When it began, in seconds since 1970.
        seconds: How long it took.
        success: False where the code raised.
        device: ``cuda:0``, or ``host``.
        held: Change of allocated memory; of the host, of resident memory.
        peak: Highest level above the level before.
        peak_trust: ``exact``, ``bound`` (at most) or ``unknown``.
        cached: Change of PyTorch's cache.
        pending: Change of blocks that wait for a stream.
        outside: Change of memory outside PyTorch.
        outside_trust: ``exact``, ``device`` (this process or another) or ``unknown``.
        others: Change of other processes.
        unattributed: Change of what is nobody's.
        allocated: Level at the end; of the host, resident memory.
        cache: Level of PyTorch's cache and of pending blocks at the end.
        outside_level: Level of memory outside PyTorch at the end.
        others_level: Level of everybody else at the end.
        capacity: What programs can have of the device.
        ooms: Allocations that failed.
        retries: Allocations before which PyTorch gave its cache back.
        started: Whether this brought the CUDA context of this process onto the device.
        host_held: Change of this process's resident memory.
        host_peak: Its peak above the level before.
        host_peak_trust: As ``peak_trust``.
    """

    cell: int | None = None
    cell_id: str | None = None
    code: str = ""
    time: float = 0.0
    seconds: float = 0.0
    success: bool | None = True
    device: str = HOST
    held: int | None = None
    peak: int | None = None
    peak_trust: Trust = "unknown"
    cached: int | None = None
    pending: int | None = None
    outside: int | None = None
    outside_trust: Trust = "unknown"
    others: int | None = None
    unattributed: int | None = None
    allocated: int | None = None
    cache: int | None = None
    outside_level: int | None = None
    others_level: int | None = None
    capacity: int | None = None
    ooms: int = 0
    retries: int = 0
    started: bool = False
    host_held: int | None = None
    host_peak: int | None = None
    host_peak_trust: Trust = "unknown"

    @property
    def peak_level(self) -> int | None:
        """Level of allocated memory at the peak."""
        if self.peak is None or self.allocated is None or self.held is None:
            return None
        return self.allocated - self.held + self.peak

    @property
    def moved(self) -> bool:
        """Whether this process moved anything that shows, or ran out of memory."""
        figures = (self.held, self.peak, self.cached, self.outside)
        return self.ooms > 0 or any(one is not None and abs(one) >= _VISIBLE for one in figures)


def entries(report: Report) -> list[Entry]:
    """A row for each device that this process uses; for the host where there is none."""
    used = [one for one in report.devices.values() if one.before.context or one.after.context]
    return [_entry(report, device) for device in used] or [_host(report)]


def moved_entries(reports: Iterable[Report]) -> list[Entry]:
    """The rows of many reports: of each the devices that moved, or the first where none did."""
    rows = []
    for report in reports:
        found = entries(report)
        rows += [one for one in found if one.moved] or found[:1]
    return rows


def _entry(report: Report, device: DeviceReport) -> Entry:
    after, host, grades = device.after, report.host, device.grades
    return Entry(
        cell=report.cell,
        cell_id=report.cell_id,
        code=report.code,
        time=report.time,
        seconds=report.seconds,
        success=report.success,
        device=device.name,
        held=device.held,
        peak=device.peak,
        peak_trust=grades["peak"].trust,
        cached=device.cached,
        pending=device.pending,
        outside=device.outside,
        outside_trust=grades["outside"].trust,
        others=device.others,
        unattributed=device.unattributed,
        allocated=after.allocated,
        cache=_sum(after.cached, after.pending),
        outside_level=after.outside,
        others_level=_sum(after.others, after.unattributed),
        capacity=after.capacity,
        ooms=device.ooms,
        retries=device.retries,
        started=device.started,
        host_held=host.held,
        host_peak=host.peak,
        host_peak_trust=host.grades["peak"].trust,
    )


def _host(report: Report) -> Entry:
    host = report.host
    trust = host.grades["peak"].trust
    return Entry(
        cell=report.cell,
        cell_id=report.cell_id,
        code=report.code,
        time=report.time,
        seconds=report.seconds,
        success=report.success,
        held=host.held,
        peak=host.peak,
        peak_trust=trust,
        allocated=host.after.rss,
        capacity=host.after.total,
        host_held=host.held,
        host_peak=host.peak,
        host_peak_trust=trust,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
