"""The short form of a report, as text and as HTML: a line for each device with a change, then notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.tables import BAR_COLORS, BAR_PIXELS, template
from ipygpumem.core.units import VISIBLE, duration, pair, signed
from ipygpumem.features.outside.table import outside_sentences
from ipygpumem.features.processes.table import other_process_sentences
from ipygpumem.features.report.notes import report_notes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipygpumem.core.grade import Grade
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.core.report import DeviceReport, HostReport, Report

__all__ = ["Figure", "Line", "Row", "html_line", "line_bundle", "report_line", "text_line"]

_MAX_ROWS = 3
_MINUTE = 60
_ANSI = {"held": "1", "peak": "1", "outside": "33", "outside_peak": "33", "others": "35", "unattributed": "35"}
_FAINT = "2"
_HTML_COLORS = {"held": "#3b82f6", "peak": "#3b82f6", "outside": "#d97706", "outside_peak": "#d97706"}
_USED_TITLE = "device memory in use by all programs, without the driver's own: {}"

_TEMPLATE = """\
<div style="font-family:monospace;font-size:90%;line-height:1.5;margin:2px 0">
{%- for row in rows %}
<div>
{%- if row.bar %}<span style="display:inline-block;width:{{ width }}px;height:9px;border:1px solid #9ca3af;\
margin-right:8px;overflow:hidden;white-space:nowrap" title="{{ row.bar_title }}">
{%- for part in row.bar %}<span style="display:inline-block;height:9px;width:{{ part.width }}px;\
background-color:{{ part.color }}"></span>{% endfor %}</span>{% endif -%}
<b>{{ row.name }}</b>&ensp;
{%- for column in row.columns %}<span title="{{ column.title }}"
{%- if column.color %} style="border-bottom:2px solid {{ column.color }}"{% endif %}>{{ column.text }}</span>\
 &middot; \
{% endfor %}<span title="{{ row.used_title }}">{{ row.used }}</span>\
{% if loop.first %}&emsp;<span style="opacity:0.65">{{ footer }}</span>{% endif %}</div>
{%- endfor %}
{%- for note in notes %}
<div style="opacity:0.75">{{ note }}</div>
{%- endfor %}
</div>"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a row: which one (held, peak, ...), its text, and how accurate it is."""

    kind: str
    text: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class Row:
    """One device or the host: the figures that changed, and how much of it is in use."""

    name: str
    figures: tuple[Figure, ...]
    used: str
    device: DeviceReport | None = None
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """What the short form of a report says, before it becomes text or HTML."""

    rows: tuple[Row, ...]
    footer: str
    outside: tuple[str, ...]
    other_processes: tuple[str, ...]
    notes: tuple[str, ...]


def report_line(report: Report) -> Line:
    """What the short form of a report says."""
    rows = _rows(report)
    footer = ", ".join(
        [
            *([] if report.cell is None else [f"In [{report.cell}]"]),
            duration(report.seconds),
            *(["failed"] if report.success is False else []),
        ]
    )
    outside = outside_sentences(report) if report.libraries else ()
    other_processes = other_process_sentences(report) if report.neighbours else ()
    return Line(tuple(rows), footer, tuple(outside), tuple(other_processes), tuple(report_notes(report)))


def line_bundle(report: Report, *, color: bool = False) -> dict[str, str]:
    """The short form of a report as a MIME bundle; ``color`` is for terminals."""
    line = report_line(report)
    return {"text/plain": text_line(line, color=color), "text/html": html_line(line)}


def text_line(report: Report | Line, *, color: bool = False) -> str:
    """The short form as text; ``color`` adds ANSI escape sequences."""
    line = report if isinstance(report, Line) else report_line(report)

    def paint(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color and code else text

    texts = []
    for row in line.rows:
        parts = [paint(figure.text, _ANSI.get(figure.kind, "")) for figure in row.figures]
        parts += ["no change"] if row.unchanged else []
        texts.append(f"{row.name}  {' · '.join([*parts, *filter(None, [row.used])])}")
    texts[0] += "   " + paint(line.footer, _FAINT)
    texts += [paint(sentence, _ANSI["outside"]) for sentence in line.outside]
    texts += [paint(sentence, _ANSI["others"]) for sentence in line.other_processes]
    if line.notes:
        texts.append(paint("; ".join(line.notes), _FAINT))
    return "\n".join(texts)


def html_line(report: Report | Line) -> str:
    """The short form as HTML, with a bar for each device. The tooltip of a figure says how accurate it is."""
    line = report if isinstance(report, Line) else report_line(report)
    rows = [
        {
            "name": row.name,
            "used": " · ".join(filter(None, ["no change" if row.unchanged else "", row.used])),
            "used_title": "" if row.device is None else _USED_TITLE.format(row.device.grades["used"]),
            "columns": [
                {"text": figure.text, "title": str(figure.grade), "color": _HTML_COLORS.get(figure.kind)}
                for figure in row.figures
            ],
            **({} if row.device is None else _bar(row.device.after)),
        }
        for row in line.rows
    ]
    notes = [*line.outside, *line.other_processes, *line.notes]
    html: str = template(_TEMPLATE).render(rows=rows, footer=line.footer, notes=notes, width=BAR_PIXELS)
    return html


def _bar(reading: DeviceReading) -> dict[str, Any]:
    """The parts of the device's capacity that are in use, as a bar."""
    capacity = reading.capacity
    if not capacity or reading.in_use is None:
        return {}
    sizes = {
        "tensors": reading.allocated or 0,
        "cache": (reading.cached or 0) + (reading.pending or 0),
        "outside PyTorch": max(reading.outside or 0, 0),
        "other processes": (reading.others or 0) + max(reading.unattributed or 0, 0),
    }
    # figures read at two instants, or entries that share memory, can add up to more than the capacity
    whole = max(capacity, sum(sizes.values()))
    parts = [
        {"width": round(BAR_PIXELS * nbytes / whole, 1), "color": BAR_COLORS[name]}
        for name, nbytes in sizes.items()
        if nbytes > 0
    ]
    title = ", ".join(f"{name} {nbytes / whole:.1%}" for name, nbytes in sizes.items())
    return {"bar": parts, "bar_title": f"of the device: {title}"}


def _rows(report: Report) -> list[Row]:
    """The devices that changed, the largest change first if there are many; the host if there is no device."""
    if not report.devices:
        return [_host_row(report.host)]
    rows = [_device_row(device) for device in report.devices.values()]
    changed = [row for row in rows if row.figures]
    if not changed:
        in_use = [row for row in rows if row.device is not None and row.device.after.context]
        return (in_use or rows)[:1]
    if len(changed) > _MAX_ROWS:
        changed.sort(key=_largest_change, reverse=True)
        count = len(changed) - _MAX_ROWS + 1
        return [*changed[: _MAX_ROWS - 1], Row(f"{count} more devices", (), "%gpumem shows them")]
    return changed


def _largest_change(row: Row) -> int:
    device = row.device
    changes = () if device is None else (device.held, device.peak, device.outside, device.cached)
    return max((abs(change) for change in changes if change is not None), default=0)


def _device_row(device: DeviceReport) -> Row:
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
    figures = [
        Figure(kind, _graded(pattern, change, grades[kind]), grades[kind])
        for kind, change, pattern in changes
        if change is not None and abs(change) >= VISIBLE
    ]
    figures = _add_sampled_peak(figures, device, grades)
    after = device.after
    used = "" if after.in_use is None or after.capacity is None else f"{pair(after.in_use, after.capacity)} used"
    return Row(device.name, tuple(figures), used, device, unchanged=not figures)


def _add_sampled_peak(figures: list[Figure], device: DeviceReport, grades: Mapping[str, Grade]) -> list[Figure]:
    """Put the peak of memory outside PyTorch behind its change."""
    sampled, peak = device.sampled, device.outside_peak
    if peak is None:
        return figures
    if sampled is None or peak == device.accounted:
        text = f"at least {signed(peak)} (from the driver's accounting)"
    else:
        owner = "this process or one that has ended" if device.process_wide else "this process or another"
        text = (
            f"at least {signed(peak)} at {_time(sampled.seconds)} (sampled, largest gap {_gap(sampled.gap)}; {owner})"
        )
    if not any(figure.kind == "outside" for figure in figures):
        text = f"outside PyTorch, {text}"
    position = sum(figure.kind not in {"others", "unattributed"} for figure in figures)
    return [*figures[:position], Figure("outside_peak", text, grades["outside_peak"]), *figures[position:]]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < _MINUTE else duration(seconds)


def _gap(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)} ms" if seconds < 1 else duration(seconds)


def _graded(pattern: str, change: int, grade: Grade) -> str:
    text = signed(change)
    if grade.trust == "bound":
        text = f"at most {text}"
    elif grade.trust == "sampled":
        text = f"at least {text}"
    elif grade.trust == "device":
        return f"~{pattern.format(text)} (this process or another)"
    return pattern.format(text)


def _host_row(host: HostReport) -> Row:
    grades = host.grades
    figures = []
    held, peak = host.held, host.peak
    if held is not None and abs(held) >= VISIBLE:
        figures.append(Figure("held", _graded("{} held", held, grades["held"]), grades["held"]))
    # a bound from an older peak says nothing about this cell
    if peak is not None and peak >= VISIBLE and grades["peak"].trust == "exact":
        figures.append(Figure("peak", f"peak {signed(peak)}", grades["peak"]))
    after = host.after
    used = "" if after.rss is None or after.total is None else f"{pair(after.rss, after.total)} resident"
    return Row("host memory (RSS)", tuple(figures), used, unchanged=not figures)
