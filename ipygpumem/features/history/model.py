"""A report as one flat row per device: the form that histories, comparisons, pictures and exports use.

The rows also go into the metadata of the notebook output that shows a report, in at most 2 kB: core/FORMAT.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.device_names import HOST
from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import DataReader, check_ranges, check_schema, mapping, printable
from ipygpumem.core.grade import Trust
from ipygpumem.core.tables import is_visible
from ipygpumem.core.units import difference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.report import DeviceReport, Report

MIME = "application/vnd.ipygpumem+json"
LIMIT = 2048
"""Maximum size of the summary as JSON, in bytes of UTF-8."""
_SCHEMA = 1


_REPORT_FIELDS = ("cell", "cell_id", "code", "time", "seconds", "success")
_CHANGES = ("held", "peak", "cached", "pending", "outside", "others", "unattributed")
_DEVICE_FIELDS = (*_CHANGES, "ooms", "retries", "started")
_SUMMARY_REPORT_FIELDS = ("cell", "time", "seconds", "success")
_SUMMARY_CHANGES = ("held", "peak", "cached", "outside")
_LEVELS = ("allocated", "cache", "outside_level", "others_level", "capacity")
_SUMMARY_FIELDS = (*_SUMMARY_CHANGES, *_LEVELS, "ooms", "started")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One measurement on one device. Sizes are in bytes; None means unknown.

    Attributes:
        cell: In number; None for code that does not run in a numbered cell.
        cell_id: The front end's id of the cell, the same in every run.
        time: Start of the measurement, in seconds since 1970.
        device: ``cuda:0``, or ``host``, whose memory is the resident memory of the process.
        held: Change in allocated memory. The next figures, up to ``unattributed``, are changes, too.
        peak: Highest level of allocated memory, relative to the start.
        peak_trust: ``exact``, ``bound`` (at most) or ``unknown``.
        outside_trust: ``exact``, ``device`` (this process or another) or ``unknown``.
        allocated: Level at the end, like ``cache`` (with pending blocks), ``outside_level`` and ``others_level`` (with
            unattributed memory).
        capacity: Memory of the device that programs can use.
        retries: Allocations for which PyTorch first had to release its cache.
        started: Whether this measurement created the process's CUDA context on the device.
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
        """Allocated memory at the peak."""
        if self.peak is None or self.allocated is None or self.held is None:
            return None
        return self.allocated - self.held + self.peak

    @property
    def changed(self) -> bool:
        """Whether this process changed any figure visibly, or ran out of memory."""
        return self.ooms > 0 or is_visible(self.held, self.peak, self.cached, self.outside)


_UNCHANGED = ReportRow()
_READER = DataReader({"Trust": Trust})


def report_rows(report: Report) -> list[ReportRow]:
    """A row for each device that this process uses, or one for the host if it uses none."""
    used = [device for device in report.devices.values() if device.before.context or device.after.context]
    common = {name: getattr(report, name) for name in _REPORT_FIELDS}
    host = report.host
    trust = host.grades["peak"].trust
    common |= {"host_held": host.held, "host_peak": host.peak, "host_peak_trust": trust}
    if used:
        return [_device_row(device, common) for device in used]
    rss, total = host.after.rss, host.after.total
    return [ReportRow(**common, held=host.held, peak=host.peak, peak_trust=trust, allocated=rss, capacity=total)]


def changed_rows(reports: Iterable[Report]) -> list[ReportRow]:
    """The rows of the devices that each report changed, or its first row if it changed none."""
    rows = []
    for report in reports:
        of_report = report_rows(report)
        rows += [row for row in of_report if row.changed] or of_report[:1]
    return rows


def _device_row(device: DeviceReport, common: dict[str, Any]) -> ReportRow:
    after, grades = device.after, device.grades
    return ReportRow(
        **common,
        **{name: getattr(device, name) for name in _DEVICE_FIELDS},
        device=device.name,
        peak_trust=grades["peak"].trust,
        outside_trust=grades["outside"].trust,
        allocated=after.allocated,
        cache=difference(after.allocated, after.reserved),
        outside_level=after.outside,
        others_level=difference(after.process, after.in_use),
        capacity=after.capacity,
    )


def output_metadata(report: Report) -> dict[str, Any]:
    """The metadata of the notebook output that shows a report."""
    return {MIME: summary(report)}


def summary(report: Report) -> dict[str, Any]:
    """The figures of a report as plain data. If not all devices fit, those with the largest changes are included."""
    rows = sorted(report_rows(report), key=_largest_change, reverse=True)
    devices = {row.device: _figures(row) for row in rows}
    data: dict[str, Any] = {
        "schema": _SCHEMA,
        "cell": report.cell,
        "time": round(report.time, 3),
        "seconds": round(report.seconds, 4),
        "success": report.success,
        "devices": devices,
    }
    for row in reversed(rows[1:]):
        if len(json.dumps(data).encode()) <= LIMIT:
            break
        del devices[row.device]
        data["left_out"] = len(rows) - len(devices)
    return data


def _largest_change(row: ReportRow) -> int:
    figures = [getattr(row, name) for name in _SUMMARY_CHANGES]
    return max((abs(figure) for figure in figures if figure is not None), default=-1)


def _figures(row: ReportRow) -> dict[str, Any]:
    """The known figures of a device; what equals the default is left out to save space."""
    figures = {name: value for name in _SUMMARY_FIELDS if (value := getattr(row, name)) != getattr(_UNCHANGED, name)}
    for name, trust in (("peak", "bound"), ("outside", "device")):
        if getattr(row, f"{name}_trust") == trust:
            figures[f"{name}_trust"] = trust
    return figures


def rows_from_summary(data: Any, *, cell_id: str | None = None, code: str = "") -> list[ReportRow]:
    """Rebuild the rows that `summary` was made from; a `ReportError` says what is invalid."""
    check_schema(mapping(data, ""), _SCHEMA)
    devices = mapping(data.get("devices"), "devices")
    if not devices:
        raise ReportError("devices is empty")
    common = {name: data[name] for name in _SUMMARY_REPORT_FIELDS if name in data}
    rows = []
    for name, device in devices.items():
        where = f"devices.{printable(name)}"
        figures = {"peak_trust": "exact", "outside_trust": "exact", **mapping(device, where)}
        for figure in ("peak", "outside"):
            if figures.get(figure) is None:
                figures[f"{figure}_trust"] = "unknown"
        row = _READER.read(
            ReportRow, {**figures, **common, "device": name or HOST, "cell_id": cell_id, "code": code}, where
        )
        check_ranges(row)
        rows.append(row)
    return rows
