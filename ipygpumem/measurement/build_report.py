"""Two readings and the peaks between them become one report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.reading import DeviceReading, shared
from ipygpumem.core.report import DeviceReport, HostReport, Report

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.core.reading import Reading
    from ipygpumem.core.report import Peak, RecordingFacts
    from ipygpumem.core.samples import OutsidePeak

__all__ = ["settle"]


def settle(
    before: Reading,
    after: Reading,
    peaks: Mapping[str, Peak],
    *,
    sampled: Mapping[str, OutsidePeak] | None = None,
    unsampled: Mapping[str, str] | None = None,
    seconds: float,
    only: Collection[str] | None = None,
    cell: int | None = None,
    cell_id: str | None = None,
    code: str = "",
    success: bool | None = True,
    notes: tuple[str, ...] = (),
    recording: RecordingFacts | None = None,
) -> Report:
    """The report of one measurement; ``only`` names the devices to tell of (all that this process uses by default)."""
    devices, samples = {}, sampled or {}
    for name, end in after.devices.items():
        start = before.devices.get(name) or _untouched(end)
        used = start.context or end.context
        if name not in only if only is not None else not used:
            continue
        devices[name] = DeviceReport(
            name=name,
            before=start,
            after=shared(start, end),
            high=peaks.get(name),
            sampled=samples.get(name),
            unsampled=(unsampled or {}).get(name, ""),
        )
    return Report(
        devices=devices,
        host=HostReport(before=before.host, after=after.host),
        seconds=seconds,
        cell=cell,
        cell_id=cell_id,
        code=code,
        success=success,
        time=before.time,
        notes=notes,
        recording=recording,
    )


def _untouched(end: DeviceReading) -> DeviceReading:
    """The device before CUDA started in this process: our own figures were 0 for certain, the card's are unknown."""
    known = end.reserved is not None
    return DeviceReading(
        name=end.name,
        context=False,
        allocated=0 if known else None,
        reserved=0 if known else None,
        active=0 if known else None,
        requested=0 if known else None,
        inactive_split=0 if known else None,
        retries=0 if known else None,
        ooms=0 if known else None,
        process=0 if end.process is not None else None,
        mode=end.mode,
        why=end.why,
        torch_why=end.torch_why,
    )
