"""Rows of reports, one per device, for tables, plots, exports, comparisons and notebook metadata (core/FORMAT.md)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.device_names import HOST
from ipygpumem.core.errors import ReportError
from ipygpumem.core.reading import Trust
from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.core.serialization import DataclassReader, check_ranges, check_schema, mapping
from ipygpumem.core.tables import is_visible
from ipygpumem.core.text import printable
from ipygpumem.core.units import VISIBLE, difference, duration, signed

SORT_COLUMNS = {"in": "cell", "held": "held", "peak": "peak", "outside": "outside", "time": "seconds"}
"""Columns by which tables can be sorted, with the `ReportRow` field of each column."""
PAGE = 30
"""Default number of rows per page of a table."""
MIME = "application/vnd.ipygpumem+json"
LIMIT = 2048  # maximum size of a summary as UTF-8-encoded JSON, in bytes
_SCHEMA = 1
_MAX_TEXT = 500
"""Maximum number of characters in the texts of a measurement in a file, because each of its devices has a row."""

_REPORT_FIELDS = ("cell", "cell_id", "code", "time", "seconds", "success")
_CHANGES = ("held", "peak", "cached", "pending", "outside", "others", "unattributed")
_DEVICE_FIELDS = (*_CHANGES, "ooms", "retries", "started")
_SUMMARY_REPORT_FIELDS = ("cell", "time", "seconds", "success")
_SUMMARY_CHANGES = ("held", "peak", "cached", "outside")
_USAGE = ("allocated", "cache", "outside_level", "others_level", "capacity")
_SUMMARY_FIELDS = (*_SUMMARY_CHANGES, *_USAGE, "ooms", "started")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One measurement on one device. Sizes are in bytes; unknown values are None.

    Attributes that are not listed have the same meaning as in `Report` and `DeviceReport`.

    Attributes:
        cell: Number in ``In [n]``; None for code that does not run in a numbered cell.
        cell_id: Cell ID assigned by the front end. Unlike ``cell``, it is the same in every run of the cell.
        device: Device name such as ``cuda:0``, or ``host`` for the resident memory of the process.
        peak_trust: ``exact``, ``bound`` (upper bound) or ``unknown``.
        outside_trust: ``exact``, ``device`` (may include other processes) or ``unknown``.
        allocated: Memory allocated by PyTorch at the end; for the host, the resident memory of the process.
        cache: Cached memory at the end, including pending blocks.
        others_level: Memory of other processes at the end, including unattributed memory.
        outside_level: Memory outside PyTorch at the end.
        capacity: Total memory of the device, excluding memory reserved by the driver; for the host, of the machine.
        host_held, host_peak, host_peak_trust: ``held``, ``peak`` and ``peak_trust`` of the process's resident memory.
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
    def measurement(self) -> str:
        """Key of the measurement. It is a string, because a malicious file can contain numbers with equal hashes."""
        return f"{self.time} {self.cell} {self.seconds}"

    @property
    def peak_level(self) -> int | None:
        if self.peak is None or self.allocated is None or self.held is None:
            return None
        return self.allocated - self.held + self.peak

    @property
    def changed(self) -> bool:
        """Whether an allocation failed, or the absolute value of held, peak, cached or outside is at least 0.05 MiB."""
        return self.ooms > 0 or is_visible(self.held, self.peak, self.cached, self.outside)


_UNCHANGED = ReportRow()
_READER = DataclassReader({"Trust": Trust})


def report_rows(report: Report) -> list[ReportRow]:
    used_devices = [device for device in report.devices.values() if device.before.context or device.after.context]
    common = {name: getattr(report, name) for name in _REPORT_FIELDS}
    common |= {"cell_id": _short_id(report.cell_id), "code": report.code[:_MAX_TEXT]}
    host = report.host
    trust = host.grades["peak"].trust
    common |= {"host_held": host.held, "host_peak": host.peak, "host_peak_trust": trust}
    if used_devices:
        return [_device_row(device, common) for device in used_devices]
    rss, total = host.after.rss, host.after.total
    return [ReportRow(**common, held=host.held, peak=host.peak, peak_trust=trust, allocated=rss, capacity=total)]


def changed_rows(reports: Iterable[Report]) -> list[ReportRow]:
    rows = []
    for report in reports:
        all_rows = report_rows(report)
        rows += [row for row in all_rows if row.changed] or all_rows[:1]
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
    """If the summary is longer than `LIMIT`, the devices with the smallest changes are omitted."""
    rows = sorted(report_rows(report), key=_largest_change, reverse=True)
    devices = {row.device: _known_values(row) for row in rows}
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
    return {MIME: data}


def _largest_change(row: ReportRow) -> int:
    changes = [getattr(row, name) for name in _SUMMARY_CHANGES]
    return max((abs(change) for change in changes if change is not None), default=-1)


def _known_values(row: ReportRow) -> dict[str, Any]:
    values = {name: value for name in _SUMMARY_FIELDS if (value := getattr(row, name)) != getattr(_UNCHANGED, name)}
    for name, trust in (("peak", "bound"), ("outside", "device")):
        if getattr(row, f"{name}_trust") == trust:
            values[f"{name}_trust"] = trust
    return values


def rows_from_summary(data: Any, *, cell_id: str | None = None, code: str = "") -> list[ReportRow]:
    """``data`` is the value of the key `MIME` in the metadata of an output. Raises `ReportError` if it is invalid."""
    check_schema(mapping(data, ""), _SCHEMA)
    devices = mapping(data.get("devices"), "devices")
    if not devices:
        raise ReportError("the summary contains no devices")
    common = {name: data[name] for name in _SUMMARY_REPORT_FIELDS if name in data}
    common |= {"cell_id": _short_id(cell_id), "code": code}
    rows = []
    for name, device in devices.items():
        where = f"devices.{printable(name)}"
        values = {"peak_trust": "exact", "outside_trust": "exact", **mapping(device, where)}
        for field in ("peak", "outside"):
            if values.get(field) is None:
                values[f"{field}_trust"] = "unknown"
        row = _READER.read(ReportRow, {**values, **common, "device": name or HOST}, where)
        check_ranges(row)
        rows.append(row)
    return rows


def _short_id(cell_id: str | None) -> str | None:
    """Return None for an ID that is too long, because a part of an ID can belong to several cells."""
    return None if cell_id is None or len(cell_id) > _MAX_TEXT else printable(cell_id)


_RunRows = dict[tuple[object, ...], ReportRow]

_PATTERNS = {"held": "{} held", "peak": "peak {}", "outside": "outside PyTorch {}"}


@dataclass(frozen=True, slots=True)
class RowPair:
    """The rows for the same code and device in two runs.

    Attributes:
        row: ``after`` or, if it is None, ``before``.
        before, after: Row in the first and in the second run; None if the run contains no such row.
    """

    row: ReportRow
    before: ReportRow | None
    after: ReportRow | None

    def change(self, name: str) -> Any:
        return difference(getattr(self.before, name, None), getattr(self.after, name, None))


def pair_rows(before: Sequence[ReportRow], after: Sequence[ReportRow]) -> tuple[list[RowPair], tuple[int, int]]:
    """Match the rows of two runs of a notebook.

    Cells are matched by the front end's cell ID if the runs have IDs in common, otherwise by the number in ``In [n]``,
    because a recreated or converted notebook has different IDs. Code outside cells is matched by its position in the
    run. Only the last execution of each cell in a run is compared.

    Returns:
        ``(pairs, (skipped_before, skipped_after))``: the pairs in the order of the second run, followed by the pairs of
        rows that only the first run contains; and the numbers of cell executions skipped in ``before`` and ``after``.
    """
    by_id = not {row.cell_id for row in before if row.cell_id}.isdisjoint(row.cell_id for row in after)
    first, skipped_before = _last_runs(before, by_id=by_id)
    second, skipped_after = _last_runs(after, by_id=by_id)
    pairs = [RowPair(row, first.get(key), row) for key, row in second.items()]
    pairs += [RowPair(row, row, None) for key, row in first.items() if key not in second]
    return pairs, (skipped_before, skipped_after)


def _last_runs(rows: Sequence[ReportRow], *, by_id: bool) -> tuple[_RunRows, int]:
    """Return the rows of the last execution of each cell, and the number of earlier executions."""
    runs, kernel, next_number = [], 0, math.inf
    for row in reversed(rows):  # reports of code inside a cell precede the report of the cell
        if row.cell is not None:
            kernel -= row.cell > next_number  # another kernel has continued the log
            next_number = row.cell
        # keys are strings, because a malicious file can contain numbers with equal hashes
        cell = repr(row.cell_id if by_id and row.cell_id else row.cell)
        runs.append((cell, f"{kernel} {row.cell}", row))
    runs.reverse()
    last = {cell: run for cell, run, _ in runs}
    counts: Counter[tuple[str, str]] = Counter()
    keyed: _RunRows = {}
    for cell, run, row in runs:
        if run == last[cell]:
            counts[cell, row.device] += 1
            keyed[cell, row.device, counts[cell, row.device]] = row
    earlier_runs = {(cell, run) for cell, run, row in runs if run != last[cell] and row.cell is not None}
    return keyed, len(earlier_runs)


def previous_run_note(report: Report, earlier: Report, threshold: int, *, always: bool = False) -> str | None:
    """Return a note that compares a report with the report of the previous run of the same code.

    Return None if no value of a device is exact in both reports. If ``always`` is false, also return None unless such a
    value differs by at least ``threshold`` bytes and at least 0.05 MiB.
    """
    rows = {row.device: row for row in report_rows(report)}
    pairs = [(before, rows[before.device]) for before in report_rows(earlier) if before.device in rows]
    parts, is_compared = [], False
    for before, now in pairs:
        values = {name: (getattr(before, name), getattr(now, name)) for name in _PATTERNS if _exact(name, before, now)}
        is_compared |= bool(values)
        if any(abs(new - old) >= max(threshold, VISIBLE) for old, new in values.values()):
            labels = [
                _PATTERNS[name].format(signed(old) if abs(old) >= VISIBLE else "0")
                for name, (old, new) in values.items()
                if max(abs(old), abs(new)) >= VISIBLE
            ]
            parts.append(f"{before.device} {' · '.join(labels)}" if len(pairs) > 1 else " · ".join(labels))
    title = "previous run" if earlier.cell is None else f"previous run, In [{earlier.cell}]"
    if parts:
        return f"{title}: {'; '.join(parts)}, {duration(earlier.seconds)}"
    return f"{title}: same memory usage, {duration(earlier.seconds)}" if always and is_compared else None


def _exact(name: str, *rows: ReportRow) -> bool:
    return all(getattr(row, name) is not None and getattr(row, f"{name}_trust", "exact") == "exact" for row in rows)
