"""A report in at most 2 kB, for the metadata of a notebook output; core/FORMAT.md describes the format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ipygpumem.core.device_names import HOST
from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import DataReader, check_ranges, check_schema, mapping, printable
from ipygpumem.core.grade import Trust
from ipygpumem.features.history.model import ReportRow, report_rows

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["LIMIT", "MIME", "output_metadata", "rows_from_summary", "summary"]

MIME = "application/vnd.ipygpumem+json"
LIMIT = 2048
"""Maximum size of the summary as JSON, in bytes of UTF-8."""
_SCHEMA = 1

_REPORT_FIELDS = ("cell", "time", "seconds", "success")
_CHANGES = ("held", "peak", "cached", "outside")
_DEVICE_FIELDS = (*_CHANGES, "allocated", "cache", "outside_level", "others_level", "capacity", "ooms", "started")
_DEFAULTS = ReportRow()
_READER = DataReader({"Trust": Trust})


def output_metadata(report: Report) -> dict[str, Any]:
    """The metadata of the output that shows a report."""
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
    figures = [getattr(row, name) for name in _CHANGES]
    return max((abs(figure) for figure in figures if figure is not None), default=-1)


def _figures(row: ReportRow) -> dict[str, Any]:
    """The known figures of a device; what equals the default is left out to save space."""
    figures = {name: value for name in _DEVICE_FIELDS if (value := getattr(row, name)) != getattr(_DEFAULTS, name)}
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
    common = {name: data[name] for name in _REPORT_FIELDS if name in data}
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
