"""Facts as rows: the full table of a measurement, and the books of now. Rendered as text here, as HTML next door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.baseline import PRELOAD_OFF
from ipygpumem.core.breakdown import books
from ipygpumem.core.units import duration, signed, size
from ipygpumem.display.columns import VISIBLE, footer, notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.baseline import Baseline
    from ipygpumem.core.grade import Grade
    from ipygpumem.core.reading import Reading
    from ipygpumem.core.report import DeviceReport, HostReport, Report
    from ipygpumem.features.lines.model import PeakLines

__all__ = ["Table", "TableRow", "books_tables", "report_tables", "text_tables"]

_BAR_CELLS = 10


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line: a label (``level`` deep), a text for each column, the trust in them, and what else is to be said.

    ``bar``: its part of the whole, from 0 to 1, drawn as a bar.
    """

    label: str
    cells: tuple[str, ...]
    level: int
    grade: Grade | None = None
    bar: float | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One device, or the host: a title, the columns' names, and rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[TableRow, ...]
    remarks: tuple[str, ...] = ()


def report_tables(report: Report, lines: Sequence[PeakLines] = ()) -> list[Table]:
    """The full table of a measurement: every figure of every device that this process uses, then the host.

    ``lines``: who held the peak, where the measurement recorded it.
    """
    shown = [device for device in report.devices.values() if device.after.context or device.before.context]
    tables = []
    for device in shown:
        tables.append(_device_table(device))
        tables += [_lines_table(one) for one in lines if one.device == device.name]
    tables.append(_host_table(report.host))
    first = tables[0]
    tables[0] = Table(f"{first.title}   {footer(report)}", first.header, first.rows, first.remarks)
    last = tables[-1]
    tables[-1] = Table(last.title, last.header, last.rows, (*last.remarks, *notes(report)))
    return tables


def _device_table(device: DeviceReport) -> Table:
    grades = device.grades
    before, after = device.before, device.after
    outside = "outside PyTorch (CUDA context and first kernels)" if device.started else "outside PyTorch"
    figures = (
        ("allocated (tensors)", "held", device.held, device.peak, after.allocated),
        ("pending (freed, wait for a stream)", "pending", device.pending, None, after.pending),
        ("cached", "cached", device.cached, None, after.cached),
        (outside, "outside", device.outside, device.outside_peak, after.outside),
        ("other processes", "others", device.others, None, after.others),
        ("unattributed", "unattributed", device.unattributed, None, after.unattributed),
    )
    rows = [
        TableRow(label, (_change(change), _peak(device, kind, peak), _level(now)), 1, grades[kind])
        for label, kind, change, peak, now in figures
    ]
    alike = before.source == after.source  # NVML's figure and CUDA's are never subtracted
    driver = _minus(after.driver_reserved, before.driver_reserved) if alike else None
    rows.append(TableRow("driver reserved", (_change(driver), "", _level(after.driver_reserved)), 1))
    used = _minus(after.used, before.used) if alike else None
    rows.append(TableRow("device used", (_change(used), "", _level(after.used)), 0, grades["used"]))
    rows.append(TableRow("free", (_change(None if used is None else -used), "", _level(after.free)), 0, grades["used"]))
    remarks = [f"at most: {grades['peak'].reason}"] if grades["peak"].trust == "bound" else []
    if device.outside_peak is not None:
        sampled = None if device.outside_peak == device.accounted else device.sampled
        when = "" if sampled is None else f", at {duration(sampled.seconds)}"
        remarks.append(f"at least{when}: {grades['outside_peak'].reason}")
    return Table(device.name, ("change", "peak", "now"), tuple(rows), tuple(remarks))


def _lines_table(peak: PeakLines) -> Table:
    parts = [*peak.lines, *([peak.rest] if peak.rest.blocks else [])]
    rows = [TableRow(line.label, (_level(line.amount), f"{line.blocks:,}"), 1) for line in parts]
    rows.append(TableRow("rounding by the allocator", (_level(peak.rounding), ""), 1))
    if peak.pending:
        rows.append(TableRow("freed, waited for a stream", (_change(peak.pending), ""), 1))
    rows.append(TableRow("allocated", (_level(peak.allocated), ""), 0))
    return Table(f"{peak.device} at its peak, by line of code", ("bytes", "blocks"), tuple(rows))


def _host_table(host: HostReport) -> Table:
    grades = host.grades
    peak = "" if host.peak is None else ("" if host.exact else "at most ") + _change(host.peak)
    held, at_most = _change(host.held), grades["held"].trust == "bound"
    cells = (f"at most {held}" if at_most else held, peak, _level(host.after.rss))
    rows = [TableRow("resident (RSS)", cells, 1, None if at_most else grades["held"])]
    if host.after.pinned is not None:
        rows.append(
            TableRow("pinned by PyTorch", (_change(host.pinned), "", _level(host.after.pinned)), 1, grades["pinned"])
        )
    bound = (f"at most: {grades['peak'].reason}",) if grades["peak"].trust == "bound" else ()
    return Table("host memory of this process", ("change", "peak", "now"), tuple(rows), bound)


def books_tables(reading: Reading, baseline: Baseline | None = None) -> list[Table]:
    """The books of now: every line of the identity for every device that this process uses, then the host."""
    tables = []
    for device in reading.devices.values():
        if not device.context:
            continue
        label = f" {baseline.label}" if baseline is not None and baseline.device == device.name else ""
        lines = books(device, baseline)
        rows = tuple(TableRow(line.label, (_level(line.amount),), line.level, line.grade) for line in lines)
        tables.append(Table(f"{device.name}{label}", ("now",), rows))
    idle = [name for name, device in reading.devices.items() if not device.context]
    host = reading.host
    rows = (
        TableRow("machine total", (_level(host.total),), 0),
        TableRow("available", (_level(host.available),), 0),
        TableRow("this process (RSS)", (_level(host.rss),), 1),
        TableRow("its peak so far", (_level(host.peak),), 1),
    )
    if host.pinned is not None:
        rows = (*rows, TableRow("pinned by PyTorch", (_level(host.pinned),), 1))
    remarks = (f"not used by this process: {', '.join(idle)}",) if idle else ()
    if not tables and not idle and baseline is not None and baseline.note:
        remarks = ("CUDA has not started" if baseline.note == PRELOAD_OFF else f"no GPU: {baseline.note}",)
    tables.append(Table("host memory", ("now",), rows, remarks))
    return tables


def _minus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def _change(amount: int | None) -> str:
    if amount is None:
        return "unknown"
    if abs(amount) >= VISIBLE:
        return signed(amount)
    return "0" if amount == 0 else "<0.1 MiB"


def _peak(device: DeviceReport, kind: str, peak: int | None) -> str:
    if peak is None:
        return ""
    if kind == "outside":
        return f"at least {_change(peak)}"
    return ("" if device.high is None or device.high.exact else "at most ") + _change(peak)


def _level(amount: int | None) -> str:
    return "unknown" if amount is None else size(amount)


def text_tables(tables: list[Table]) -> str:
    """Tables as aligned text; what is not exact ends in ``~``, with its reason below."""
    return "\n\n".join(_text_table(table) for table in tables)


def _text_table(table: Table) -> str:
    body = [("  " * row.level + row.label, *row.cells, _mark(row.grade)) for row in table.rows]
    widths = [max((len(line[i]) for line in body), default=0) for i in range(len(table.header) + 1)]
    widths = [widths[0], *(max(width, len(name)) for width, name in zip(widths[1:], table.header, strict=True))]
    lines = [table.title]
    if table.rows:
        lines.append("  ".join(["".ljust(widths[0]), *_right(table.header, widths[1:])]).rstrip())
    bars = any(row.bar for row in table.rows)
    wide = bars or any(row.remark for row in table.rows)
    for line, row in zip(body, table.rows, strict=True):
        text = "  ".join([line[0].ljust(widths[0]), *_right(line[1:-1], widths[1:])])
        lines.append(f"{text if wide else text.rstrip()}{line[-1]}{_aside(row, bars=bars)}".rstrip())
    return "\n".join([*lines, *dict.fromkeys(_reasons(table)), *table.remarks])


def _right(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


def _aside(row: TableRow, *, bars: bool) -> str:
    """What stands behind the columns: the bar and the remark."""
    bar = "█" * max(round(row.bar * _BAR_CELLS), 1) if row.bar else ""
    return f"  {bar.ljust(_BAR_CELLS)}  {row.remark}" if bars else f"  {row.remark}"


def _mark(grade: Grade | None) -> str:
    return " ~" if grade is not None and grade.trust not in {"exact", "unknown"} else ""


def _reasons(table: Table) -> list[str]:
    graded = (row.grade for row in table.rows if row.grade is not None)
    return [f"{'~' if one.trust != 'unknown' else 'unknown:'} {one.reason}" for one in graded if one.trust != "exact"]
