"""The short form of a report as text and HTML: one row for each device whose memory usage changed, then notes."""

from __future__ import annotations

from html import escape

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import Accuracy, DeviceReading
from ipygpumem.core.report import DeviceReport, HostReport, Report
from ipygpumem.core.tables import AS_TEXT, BAR_COLORS, BAR_PIXELS
from ipygpumem.core.units import VISIBLE, duration, pair, signed
from ipygpumem.features.processes.table import other_process_sentence

_MAX_ROWS = 3
_ANSI = {"held": "1", "peak": "1", "outside": "33", "outside_peak": "33", "others": "35", "unattributed": "35"}
_FAINT = "2"
_HTML_COLORS = {"held": "#3b82f6", "peak": "#3b82f6", "outside": "#d97706", "outside_peak": "#d97706"}
_MONOSPACE = "font-family:monospace;font-size:90%;line-height:1.5;margin:2px 0"
_BAR = "height:9px;border:1px solid #9ca3af;margin-right:8px;overflow:hidden;white-space:nowrap"


@dataclass(frozen=True, slots=True)
class FormattedValue:
    """A formatted value, such as ``peak +1.2 GiB``.

    Attributes:
        kind: Kind of the value, which determines its color.
        grade: Accuracy of the value, which is shown as a tooltip; None for no tooltip.
    """

    kind: str
    text: str
    grade: Accuracy | None = None


@dataclass(frozen=True, slots=True)
class ShortReportRow:
    """A row of a short report.

    Attributes:
        name: Name of the device, or a label such as ``host memory (RSS)``.
        metrics: Values that changed.
        used: Text that shows the memory in use at the end of the measurement; may be empty.
        device: Report of the device; None for other rows.
        used_grade: Accuracy of the memory in use; None if it is not shown.
    """

    name: str
    metrics: tuple[FormattedValue, ...]
    used: str
    device: DeviceReport | None = None
    used_grade: Accuracy | None = None


_NO_CHANGE = FormattedValue("", "no change")


class ShortReport:
    """The short form of a report: rows for devices whose memory usage changed, at most three, followed by notes.

    If no device changed, there is one row without changes; if no device is in use, one row for host memory.
    """

    def __init__(self, report: Report) -> None:
        self.rows = _rows(report)
        self.caption = report.caption
        self.outside = _outside_sentences(report) if report.libraries else []
        processes = (other_process_sentence(device, report.neighbours) for device in report.devices)
        self.processes = list(filter(None, processes))
        self.notes = report_notes(report)

    def text(self, *, color: bool = False) -> str:
        def paint(text: str, code: str) -> str:
            return f"\x1b[{code}m{text}\x1b[0m" if color and code else text

        lines = []
        for row in self.rows:
            metrics = [paint(metric.text, _ANSI.get(metric.kind, "")) for metric in row.metrics or (_NO_CHANGE,)]
            lines.append(f"{row.name}  {' · '.join(filter(None, [*metrics, row.used]))}")
        lines[0] += "   " + paint(self.caption, _FAINT)
        lines += [paint(sentence, _ANSI["outside"]) for sentence in self.outside]
        lines += [paint(sentence, _ANSI["others"]) for sentence in self.processes]
        return "\n".join([*lines, *([paint("; ".join(self.notes), _FAINT)] if self.notes else [])])

    def html(self) -> str:
        first, *other_rows = map(_html_row, self.rows)
        lines = [f'<div>{first}&emsp;<span style="opacity:0.65">{escape(self.caption)}</span></div>']
        lines += [f"<div>{row}</div>" for row in other_rows]
        notes = [*self.outside, *self.processes, *self.notes]
        lines += [f'<div style="opacity:0.75">{escape(note)}</div>' for note in notes]
        return "\n".join([f'<div {AS_TEXT} style="{_MONOSPACE}">', *lines, "</div>"])


def _outside_sentences(report: Report) -> list[str]:
    from ipygpumem.features.outside.table import outside_sentence  # on first use, to save memory

    return list(filter(None, map(outside_sentence, report.libraries)))


def short_bundle(report: Report, *, color: bool = False) -> dict[str, str]:
    short = ShortReport(report)
    return {"text/plain": short.text(color=color), "text/html": short.html()}


def _html_row(row: ShortReportRow) -> str:
    bar, title = "", ""
    if row.device is not None:
        bar = _bar(row.device.after)
        title = f"device memory used by all processes, excluding driver reserved: {row.used_grade}"
    metrics = [*map(_html_metric, row.metrics or (_NO_CHANGE,))]
    if row.used:
        metrics.append(f'<span title="{escape(title)}">{row.used}</span>')
    return f"{bar}<b>{escape(row.name)}</b>&ensp;{' &middot; '.join(metrics)}"


def _html_metric(metric: FormattedValue) -> str:
    color = _HTML_COLORS.get(metric.kind)
    line = f' style="border-bottom:2px solid {color}"' if color else ""
    return f'<span title="{escape(str(metric.grade or ""))}"{line}>{escape(metric.text)}</span>'


def _bar(reading: DeviceReading) -> str:
    capacity = reading.capacity
    if not capacity or reading.in_use is None:
        return ""
    sizes = {
        "tensors": reading.allocated or 0,
        "cache": (reading.cached or 0) + (reading.pending or 0),
        "outside PyTorch": max(reading.outside or 0, 0),
        "other processes": (reading.others or 0) + max(reading.unattributed or 0, 0),
    }
    # values that were read at different times or include shared memory can add up to more than the capacity
    whole = max(capacity, sum(sizes.values()))
    parts = [
        f'<span style="display:inline-block;height:9px;width:{round(BAR_PIXELS * nbytes / whole, 1)}px;'
        f'background-color:{BAR_COLORS[name]}"></span>'
        for name, nbytes in sizes.items()
        if nbytes > 0
    ]
    shares = ", ".join(f"{name} {nbytes / whole:.1%}" for name, nbytes in sizes.items())
    return (
        f'<span style="display:inline-block;width:{BAR_PIXELS}px;{_BAR}" title="shares of device memory: {shares}">'
        f"{''.join(parts)}</span>"
    )


def _rows(report: Report) -> list[ShortReportRow]:
    if not report.devices:
        return [_host_row(report.host)]
    rows = [_device_row(device) for device in report.devices.values()]
    changed_rows = [row for row in rows if row.metrics]
    if not changed_rows:
        in_use = [row for row in rows if row.device is not None and row.device.after.context]
        return (in_use or rows)[:1]
    if len(changed_rows) > _MAX_ROWS:
        changed_rows.sort(key=_largest_change, reverse=True)
        count = len(changed_rows) - _MAX_ROWS + 1
        more_devices = ShortReportRow(f"{count} more devices", (FormattedValue("", "changed"),), "%gpumem lists all")
        return [*changed_rows[: _MAX_ROWS - 1], more_devices]
    return changed_rows


def _largest_change(row: ShortReportRow) -> int:
    device = row.device
    changes = () if device is None else (device.held, device.peak, device.outside, device.cached)
    return max((abs(change) for change in changes if change is not None), default=0)


def _device_row(device: DeviceReport) -> ShortReportRow:
    grades = device.grades
    outside = "CUDA context and first kernels" if device.started else "outside PyTorch"
    changes = (
        ("held", device.held, "{} held"),
        ("peak", device.peak, "peak {}"),
        ("pending", device.pending, "pending {}"),
        ("cached", device.cached, "cache {}"),
        ("outside", device.outside, f"{outside} {{}}"),
        ("others", device.others, "other processes {}"),
        ("unattributed", device.unattributed, "unattributed {}"),
    )
    metrics = [
        FormattedValue(kind, _graded(pattern, change, grades[kind]), grades[kind])
        for kind, change, pattern in changes
        if change is not None and abs(change) >= VISIBLE
    ]
    _add_sampled_peak(metrics, device)
    after = device.after
    used = "" if after.in_use is None or after.capacity is None else f"{pair(after.in_use, after.capacity)} used"
    return ShortReportRow(device.name, tuple(metrics), used, device, grades["used"])


def _add_sampled_peak(metrics: list[FormattedValue], device: DeviceReport) -> None:
    sampled, peak = device.sampled, device.outside_peak
    if peak is None:
        return
    if sampled is None or peak == device.accounting_bound:
        text = f"at least {signed(peak)} (from NVML's accounting mode)"
    else:
        owner = "this process or one that has ended" if device.process_wide else "this process or another"
        time, gap = duration(sampled.seconds), duration(sampled.gap)
        text = f"at least {signed(peak)} at {time} (sampled, largest gap {gap}; {owner})"
    if not any(metric.kind == "outside" for metric in metrics):
        text = f"outside PyTorch, {text}"
    position = sum(metric.kind not in {"others", "unattributed"} for metric in metrics)
    metrics.insert(position, FormattedValue("outside_peak", text, device.grades["outside_peak"]))


def _graded(pattern: str, change: int, grade: Accuracy) -> str:
    if grade.trust == "device":
        return f"~{pattern.format(signed(change))} (this process or another)"
    return pattern.format(grade.qualifier + signed(change))


def _host_row(host: HostReport) -> ShortReportRow:
    grades = host.grades
    metrics = []
    held, peak = host.held, host.peak
    if held is not None and abs(held) >= VISIBLE:
        metrics.append(FormattedValue("held", f"{grades['held'].qualifier}{signed(held)} held", grades["held"]))
    # an upper bound from an earlier peak contains no information about this cell
    if peak is not None and peak >= VISIBLE and grades["peak"].trust == "exact":
        metrics.append(FormattedValue("peak", f"peak {signed(peak)}", grades["peak"]))
    after = host.after
    used = "" if after.rss is None or after.total is None else f"{pair(after.rss, after.total)} resident"
    return ShortReportRow("host memory (RSS)", tuple(metrics), used)


def report_notes(report: Report) -> list[str]:
    sentences = [*map(str, report.excesses), *report.notes]
    for device in report.devices.values():
        if device.ooms > 0:
            sentences.append(f"{device.name} ran out of memory{_times(device.ooms)}")
        if device.rejections > 0:
            sentences.append(
                f"{device.name}: PyTorch rejected an allocation{_times(device.rejections)} without releasing its cache,"
                " because the memory limit would have been exceeded (throw_on_cudamalloc_oom); torch.cuda.empty_cache()"
                " releases the cache"
            )
        if device.retries > 0:
            sentences.append(f"{device.name} was full: PyTorch released its cache and retried{_times(device.retries)}")
        if device.started:
            sentences += _context(report, device)
        if device.after.busy:
            included = "memory that is released only when they finish is included"
            sentences.append(f"{device.name} was still running kernels at the end: {included}")
    if report.recording is not None:
        sentences.append(report.recording.sentence())
    if report.profile is not None:
        sentences += report.profile.sentences()
    return sentences


def _context(report: Report, device: DeviceReport) -> list[str]:
    had_context = {report_device.name for report_device in report.devices.values() if report_device.before.context}
    if not had_context - {device.name}:
        return []
    has_tensor = (device.high is not None and device.high.allocated > 0) or device.held
    cause = "its first tensor" if has_tensor else "a copy between devices, NCCL, or another CUDA call"
    return [f"{device.name}: {cause} created a CUDA context, which exists until the process ends"]


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"
