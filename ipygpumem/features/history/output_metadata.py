"""A report in at most 2 kB, for the metadata of a notebook's output; core/FORMAT.md describes it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import Plain, mapping, printable
from ipygpumem.core.grade import Trust
from ipygpumem.core.load import check_ranges, check_schema
from ipygpumem.features.history.model import HOST, Entry, entries

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["LIMIT", "MIME", "entries_from_summary", "summary"]

MIME = "application/vnd.ipygpumem+json"
LIMIT = 2048
"""Bytes of the summary as JSON, in UTF-8."""
_SCHEMA = 1

_OF_REPORT = ("cell", "time", "seconds", "success")
_OF_DEVICE = (
    "held",
    "peak",
    "cached",
    "outside",
    "allocated",
    "cache",
    "outside_level",
    "others_level",
    "capacity",
    "ooms",
    "started",
)
_plain = Plain({"Trust": Trust})


def summary(report: Report) -> dict[str, Any]:
    """The report's figures as plain data, of as many devices as fit, those that moved most first."""
    rows = sorted(entries(report), key=lambda one: -_weight(one))
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


def _weight(entry: Entry) -> int:
    figures = (entry.held, entry.peak, entry.outside, entry.cached)
    return max((abs(one) for one in figures if one is not None), default=-1)


def _figures(entry: Entry) -> dict[str, Any]:
    values = ((name, getattr(entry, name)) for name in _OF_DEVICE)
    found = {name: value for name, value in values if value is not None}  # a null takes bytes and tells nothing
    for name in ("ooms", "started"):
        if not found[name]:
            del found[name]
    for name, least in (("peak", "bound"), ("outside", "device")):
        if getattr(entry, f"{name}_trust") == least:
            found[f"{name}_trust"] = least
    return found


def entries_from_summary(data: Any, *, cell_id: str | None = None, code: str = "") -> list[Entry]:
    """The rows that a summary tells of.

    Raises:
        ReportError: It is none, or a broken one.
    """
    check_schema(mapping(data, ""), _SCHEMA)
    devices = mapping(data.get("devices"), "devices")
    if not devices:
        raise ReportError("devices is empty")
    rows = []
    for name, figures in devices.items():
        where = f"devices.{printable(name)}"
        given = {"peak_trust": "exact", "outside_trust": "exact", **mapping(figures, where)}
        for figure in ("peak", "outside"):
            if given.get(figure) is None:
                given[f"{figure}_trust"] = "unknown"
        found = _plain.fields(Entry, given, where, skip=("device", *_OF_REPORT, "cell_id", "code"))
        rest = tuple(field.name for field in dataclasses.fields(Entry) if field.name not in _OF_REPORT)
        found |= _plain.fields(Entry, data, skip=rest)
        check_ranges(found)
        rows.append(Entry(device=printable(name) or HOST, cell_id=cell_id, code=code, **found))
    return rows
