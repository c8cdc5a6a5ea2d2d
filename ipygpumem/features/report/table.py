"""Tables for the sections and the full breakdown of a report, and for the memory breakdown of a reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.reading import PRELOAD_OFF, Accuracy, Baseline, Reading, breakdown
from ipygpumem.core.report import DeviceReport, HostReport, Report
from ipygpumem.core.tables import Table, TableRow, is_visible, tables_bundle
from ipygpumem.core.units import GIB, MIB, change_text, difference, duration, size, usage_text
from ipygpumem.features.processes.table import with_change_rows
from ipygpumem.features.report.short_report import report_notes, short_bundle

if TYPE_CHECKING:
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.lines.model import PeakLines

_NEW_HOLDERS = 5


def requested_bundle(report: Report, *, color: bool = False) -> dict[str, str]:
    line = short_bundle(report, color=color)
    tables = _sections(report)
    if not tables:
        return line
    sections = tables_bundle(tables)
    return {
        "text/plain": f"{sections['text/plain']}\n\n{line['text/plain']}",
        "text/html": sections["text/html"] + line["text/html"],
    }


def full_bundle(report: Report, new_holders: Holders | None = None) -> dict[str, str]:
    *tables, host = report_tables(report)
    if new_holders is not None and new_holders.holders:
        from ipygpumem.features.holders.table import holders_tables  # on first use, to save memory

        tables += holders_tables(new_holders, limit=_NEW_HOLDERS, parts=2)
    return tables_bundle([*_sections(report, include_outside=False), *tables, host])


def _sections(report: Report, *, include_outside: bool = True) -> list[Table]:
    peak_lines = () if report.recording is None else report.recording.peak_lines
    tables: list[Table] = []
    if report.lines:
        from ipygpumem.features.lines.table import line_table  # on first use, to save memory

        tables += map(line_table, report.lines)
    if report.modules:
        from ipygpumem.features.modules.table import module_tables

        tables += module_tables(report.modules)
    if report.libraries and include_outside:
        from ipygpumem.features.outside.table import outside_table

        tables += (
            outside_table(outside, report.devices[outside.device])
            for outside in report.libraries
            if outside.libraries or outside.pools or outside.grade.trust != "unknown"
        )
    return [*tables, *peak_lines_tables(peak_lines)]


def report_tables(report: Report) -> list[Table]:
    used_devices = [device for device in report.devices.values() if device.after.context or device.before.context]
    tables = [*map(_device_table, used_devices), _host_table(report.host)]
    tables = with_change_rows(tables, report)
    if report.libraries:
        from ipygpumem.features.outside.table import insert_outside_tables

        tables = insert_outside_tables(tables, report)
    tables[0] = replace(tables[0], title=f"{tables[0].title}   {report.caption}")
    tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *report_notes(report)))
    return tables


def _device_table(device: DeviceReport) -> Table:
    grades = device.grades
    before, after = device.before, device.after
    outside = "outside PyTorch (CUDA context and first kernels)" if device.started else "outside PyTorch"
    comparable = before.source == after.source  # values from NVML and CUDA must not be subtracted from each other
    driver = difference(before.driver_reserved, after.driver_reserved) if comparable else None
    used = difference(before.used, after.used) if comparable else None
    free = None if used is None else -used
    metrics = (
        ("allocated (tensors)", "held", device.held, device.peak, after.allocated, 1),
        ("pending (freed, waiting for another stream)", "pending", device.pending, None, after.pending, 1),
        ("cached", "cached", device.cached, None, after.cached, 1),
        (outside, "outside", device.outside, device.outside_peak, after.outside, 1),
        ("other processes", "others", device.others, None, after.others, 1),
        ("unattributed", "unattributed", device.unattributed, None, after.unattributed, 1),
        ("driver reserved", "", driver, None, after.driver_reserved, 1),
        ("device used", "used", used, None, after.used, 0),
        ("free", "used", free, None, after.free, 0),
    )
    rows = tuple(
        TableRow(label, (change_text(change), _peak(peak, kind, grades), usage_text(now)), level, grades.get(kind))
        for label, kind, change, peak, now, level in metrics
        if change
        or peak
        or now
        or (grades[kind].trust == "unknown" if kind else now is None and before.driver_reserved is not None)
    )
    notes = [f"at most: {grades['peak'].reason}"] if grades["peak"].trust == "bound" else []
    if device.outside_peak is not None:
        sampled = None if device.outside_peak == device.accounting_bound else device.sampled
        time = "" if sampled is None else f", at {duration(sampled.seconds)}"
        notes.append(f"at least{time}: {grades['outside_peak'].reason}")
    return Table(device.name, ("change", "peak", "now"), rows, tuple(notes))


def _peak(peak: int | None, kind: str, grades: Mapping[str, Accuracy]) -> str:
    grade = grades["outside_peak" if kind == "outside" else "peak"]
    return "" if peak is None else grade.qualifier + change_text(peak)


def _host_table(host: HostReport) -> Table:
    grades = host.grades
    held = grades["held"].qualifier + change_text(host.held)
    cells = (held, _peak(host.peak, "held", grades), usage_text(host.after.rss))
    rows = [TableRow("resident (RSS)", cells, 1, None if grades["held"].qualifier else grades["held"])]
    if host.after.pinned or is_visible(host.pinned):
        cells = (change_text(host.pinned), "", usage_text(host.after.pinned))
        rows.append(TableRow("pinned by PyTorch", cells, 1, grades["pinned"]))
    notes = (f"at most: {grades['peak'].reason}",) if grades["peak"].trust == "bound" else ()
    return Table("host memory of this process", ("change", "peak", "now"), tuple(rows), notes)


def peak_lines_tables(devices: Iterable[PeakLines]) -> list[Table]:
    tables = []
    for peak in devices:
        lines = [*peak.lines, *([peak.rest] if peak.rest.blocks else [])]
        rows = [TableRow(line.label, (usage_text(line.amount), f"{line.blocks:,}"), 1) for line in lines]
        if is_visible(peak.rounding):
            rows.append(TableRow("rounding by the allocator", (usage_text(peak.rounding), ""), 1))
        if peak.pending:
            rows.append(TableRow("pending (freed, waiting for another stream)", (change_text(peak.pending), ""), 1))
        rows.append(TableRow("allocated", (usage_text(peak.allocated), ""), 0))
        tables.append(Table(f"{peak.device} at its peak, by line of code", ("size", "blocks"), tuple(rows)))
    return tables


def breakdown_tables(reading: Reading, baseline: Baseline | None = None) -> list[Table]:
    tables = []
    for device in reading.devices.values():
        if not device.context:
            continue
        label = f" {baseline.label}" if baseline is not None and baseline.device == device.name else ""
        rows = tuple(
            TableRow(line.label, (usage_text(line.nbytes),), line.level, line.grade)
            for line in breakdown(device, baseline)
            if line.nbytes != 0
        )
        tables.append(Table(f"{device.name}{label}", ("now",), rows))
    unused_devices = [name for name, device in reading.devices.items() if not device.context]
    host = reading.host
    sizes = (
        ("machine total", host.total, 0),
        ("available", host.available, 0),
        ("this process (RSS)", host.rss, 1),
        ("its peak so far", host.peak, 1),
        ("pinned by PyTorch", host.pinned or 0, 1),
    )
    rows = tuple(TableRow(label, (usage_text(nbytes),), level) for label, nbytes, level in sizes if nbytes != 0)
    notes = (f"not used by this process: {', '.join(unused_devices)}",) if unused_devices else ()
    if not tables and not unused_devices and baseline is not None and baseline.note:
        notes = ("CUDA is not initialized" if baseline.note == PRELOAD_OFF else f"no GPU: {baseline.note}",)
    tables.append(Table("host memory", ("now",), rows, notes))
    return tables


def baseline_line(baseline: Baseline, *, reports: bool = True) -> str:
    """Return the line that ``%load_ext ipygpumem`` prints: the device, its baseline, and whether reports are on."""
    outlook = "a report follows every cell that changes memory" if reports else "reports are off: use %gpumem on"
    device = baseline.reading.devices.get(baseline.device or "")
    if device is None:
        if baseline.note == PRELOAD_OFF:
            return f"ipygpumem: CUDA is not initialized; the first cell to use CUDA sets the baseline; {outlook}"
        rss = baseline.reading.host.rss
        host = "" if rss is None else f", baseline {size(rss)}"
        return f"ipygpumem: no GPU ({baseline.note}): reporting host memory (RSS) instead{host}; {outlook}"
    capacity = "" if device.capacity is None else f", {device.capacity / GIB:.1f} GiB"
    parts = [f"{device.name} {baseline.label}{capacity}", _baseline_size(baseline)]
    if baseline.workspace:
        parts.append(f"cuBLAS workspace {round(baseline.workspace / MIB)} MiB in PyTorch")
    if device.mode != "process":
        known = "is known only for the whole device" if device.mode == "device" else "is unknown"
        parts.append(f"memory outside PyTorch {known}: {device.why}")
    if baseline.note:
        parts.append(baseline.note)
    return "ipygpumem: " + "; ".join([*parts, outlook])


def _baseline_size(baseline: Baseline) -> str:
    context, kernels, outside = baseline.context, baseline.kernels, baseline.outside
    if context is not None and kernels is not None:
        total = round((context + kernels) / MIB)
        # both parts are rounded so that they add up to the total
        return f"baseline {total} MiB (context {total - round(kernels / MIB)}, first kernels {round(kernels / MIB)})"
    if outside is None:
        return "the baseline of memory outside PyTorch is unknown"
    unknown = "CUDA context" if context is None else "first kernels"
    return f"baseline {round(outside / MIB)} MiB outside PyTorch (the size of the {unknown} is unknown)"
