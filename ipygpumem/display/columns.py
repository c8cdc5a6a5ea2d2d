"""What a report says in one line, as facts: which figures moved, in which words, with which grade.

Both the line of text and the line of HTML are made of these, so that they cannot say different things.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.units import VISIBLE, duration, pair, signed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipygpumem.core.grade import Grade
    from ipygpumem.core.report import DeviceReport, HostReport, RecordingFacts, Report

__all__ = ["VISIBLE", "Column", "Row", "footer", "notes", "recording_notes", "rows"]

_MOST_ROWS = 3
_MINUTE = 60
_PASSING = "this process or one that came and went"
"""Whose a sampled peak is: the lists at both ends have nobody who was there in between only."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure in words. ``kind`` names the figure (held, peak, ...), ``text`` is what is shown."""

    kind: str
    text: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class Row:
    """One device, or the host, with the figures that moved; ``used`` is the part of the card that is taken.

    ``rest``: no device, but the word on those that have no row of their own.
    """

    name: str
    columns: tuple[Column, ...]
    used: str
    device: DeviceReport | None
    rest: bool = False

    @property
    def still(self) -> bool:
        """Whether nothing moved here."""
        return not self.columns and not self.rest


def rows(report: Report) -> list[Row]:
    """The devices that moved, the largest first when there are many; without any device, the host."""
    if not report.devices:
        return [_host_row(report.host)]
    moved = [row for row in map(_device_row, report.devices.values()) if row.columns]
    if not moved:
        first = next((one for one in report.devices.values() if one.after.context), next(iter(report.devices.values())))
        return [_device_row(first)]
    if len(moved) > _MOST_ROWS:
        moved.sort(key=_weight, reverse=True)
        rest = len(moved) - _MOST_ROWS + 1
        return [*moved[: _MOST_ROWS - 1], Row(f"{rest} more devices", (), "%gpumem shows them", None, rest=True)]
    return moved


def _weight(row: Row) -> int:
    device = row.device
    figures = () if device is None else (device.held, device.peak, device.outside, device.cached)
    return max((abs(figure) for figure in figures if figure is not None), default=0)


def _device_row(device: DeviceReport) -> Row:
    grades = device.grades
    outside = "CUDA context and first kernels" if device.started else "outside PyTorch"
    words = (
        ("held", device.held, "{} held"),
        ("peak", device.peak, "peak {}"),
        ("pending", device.pending, "pending {}"),
        ("cached", device.cached, "cache {}"),
        ("outside", device.outside, f"{outside} {{}}"),
        ("others", device.others, "other processes {}"),
        ("unattributed", device.unattributed, "unattributed {}"),
    )
    columns = tuple(
        Column(kind, _words(pattern, amount, grades[kind]), grades[kind])
        for kind, amount, pattern in words
        if amount is not None and abs(amount) >= VISIBLE
    )
    columns = _with_sampled(columns, device, grades)
    after = device.after
    used = "" if after.in_use is None or after.capacity is None else f"{pair(after.in_use, after.capacity)} used"
    return Row(device.name, columns, used, device)


def _with_sampled(columns: tuple[Column, ...], device: DeviceReport, grades: Mapping[str, Grade]) -> tuple[Column, ...]:
    """The columns with the proved peak of memory outside PyTorch behind what is left of it."""
    found, peak = device.sampled, device.outside_peak
    if peak is None:
        return columns
    if found is None or peak == device.accounted:  # it is this process's for certain
        text = f"at least {signed(peak)} (by the driver's accounting)"
    else:
        whose = _PASSING if device.process_wide else "this process or another"
        text = f"at least {signed(peak)} at {_when(found.seconds)} (sampled, largest gap {_gap(found.gap)}; {whose})"
    if not any(one.kind == "outside" for one in columns):
        text = f"outside PyTorch, {text}"
    kinds = [one.kind for one in columns]
    at = next((i for i, kind in enumerate(kinds) if kind in {"others", "unattributed"}), len(kinds))
    return (*columns[:at], Column("outside_peak", text, grades["outside_peak"]), *columns[at:])


def _when(seconds: float) -> str:
    """A time in a cell: seconds with one decimal place while it is short."""
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < _MINUTE else duration(seconds)


def _gap(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)} ms" if seconds < 1 else duration(seconds)


def _words(pattern: str, amount: int, grade: Grade) -> str:
    text = signed(amount)
    if grade.trust == "bound":
        text = f"at most {text}"
    elif grade.trust == "sampled":
        text = f"at least {text}"
    elif grade.trust == "device":
        return f"~{pattern.format(text)} (this process or another)"
    return pattern.format(text)


def _host_row(host: HostReport) -> Row:
    grades = host.grades
    columns = []
    if host.held is not None and abs(host.held) >= VISIBLE:
        columns.append(Column("held", _words("{} held", host.held, grades["held"]), grades["held"]))
    # a bound that comes from an older record says nothing about this cell
    if host.exact and host.peak is not None and host.peak >= VISIBLE:
        columns.append(Column("peak", f"peak {signed(host.peak)}", grades["peak"]))
    after = host.after
    used = "" if after.rss is None or after.total is None else f"{pair(after.rss, after.total)} resident"
    return Row("host memory (RSS)", tuple(columns), used, None)


def footer(report: Report) -> str:
    """Which cell, and how long: ``In [7], 2.31 s``."""
    parts = [] if report.cell is None else [f"In [{report.cell}]"]
    parts.append(duration(report.seconds))
    if report.success is False:
        parts.append("failed")
    return ", ".join(parts)


def notes(report: Report) -> list[str]:
    """Sentences that the figures need."""
    sentences = [str(excess) for excess in report.excesses]
    sentences += report.notes
    for device in report.devices.values():
        if device.ooms > 0:
            sentences.append(f"{device.name} ran out of memory{_times(device.ooms)}")
        if device.retries > 0:
            sentences.append(
                f"{device.name} was full: PyTorch gave its cache back and tried again{_times(device.retries)}"
            )
        if device.started:
            sentences += _context(report, device)
        if device.after.busy:
            sentences.append(f"{device.name} was still at work when read: memory that this work frees shows later")
    if report.recording is not None:
        sentences.append(recording_notes(report.recording))
    if report.profile is not None:
        sentences += report.profile.sentences()
    return sentences


def _context(report: Report, device: DeviceReport) -> list[str]:
    """How a further device came by a context of this process: people did not ask for it, and it stays."""
    others = [one.name for one in report.devices.values() if one is not device and one.before.context]
    if not others:
        return []
    if (device.high is not None and device.high.counters.allocated > 0) or device.held:
        return [f"{device.name}: this process's CUDA context came with the first tensor there, and stays"]
    ways = "by a copy between devices (peer access), NCCL, or a call on that device"
    return [f"{device.name}: a CUDA context of this process came without a tensor, and stays: {ways}"]


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def recording_notes(recording: RecordingFacts) -> str:
    """What became of a recording: where it lies, how large it is, what it lost; or why there is none."""
    if recording.path is None:
        return recording.error
    from humanize import intcomma, naturalsize

    events = f"{intcomma(recording.events)} event{'' if recording.events == 1 else 's'}"
    text = f"snapshot {recording.path}: {events}, {naturalsize(recording.size, binary=True)}"
    if recording.dropped is None:
        text += "; whether the ring dropped events is not known"
    elif recording.dropped:
        remedy = "raise --max-entries" if recording.own else "raise its max_entries"
        text += f"; the ring dropped {intcomma(recording.dropped)} allocations: {remedy}"
    if not recording.own:
        text += "; cut out of the recording that was on"
    if recording.error:
        text += f"; {recording.error}"
    return text
