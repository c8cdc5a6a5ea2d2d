"""The still picture of a snapshot: a PNG for nbconvert, GitHub, untrusted notebooks and reports.

It is as true as the viewer (see `columns`): every pixel column shows the instant of its highest bytes. The paper is
white, so that it reads the same in light and dark notebooks.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.units import amount, duration, size
from ipygpumem.snapshot.export.text import clip, many
from ipygpumem.snapshot.queries.overview import overview
from ipygpumem.viewer import overlays
from ipygpumem.viewer.axes import Box, Paper, own_style
from ipygpumem.viewer.detail import NOTHING, SMALL, columns, strata
from ipygpumem.viewer.line_colors import Parts, parts
from ipygpumem.viewer.ticks import byte_ticks, count_ticks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.detail import Columns

__all__ = ["MOST_BYTES", "WIDTH", "Picture", "packed", "picture"]

MOST_BYTES = 60_000
"""A picture is never larger: notebooks stay small."""
WIDTH = 880
"""In CSS pixels."""

_SCALES = (2.0, 1.5, 1.0)
_CROWD = 50_000
_HEADROOM = 1.16
_HIGHEST_TICK = 0.91
"""Above it stands the peak's label."""
_CAPACITY_SEEN = 0.35
_LEFT, _RIGHT, _PLOT_TOP, _PLOT_HEIGHT = 70, 16, 62, 300
_LEGEND_ROW = 20
_LEGEND_COLUMNS = 2
_LETTER = 6.6
_LEVELS = 18
"""The line that names what was sampled."""

_INK, _SOFT, _FAINT = "#1b1f24", "#59636e", "#e3e6ea"
_SMALL_COLOUR = (154, 161, 171)
_WHITE = 255


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG.

    Attributes:
        png: Its bytes, at most `MOST_BYTES`.
        width: In CSS pixels; the PNG itself may have twice as many.
        height: As the width.
        text: What it shows, in words.
    """

    png: bytes
    width: int
    height: int
    text: str


def picture(snapshot: Snapshot, device: int | None = None) -> Picture:
    """Draw a device's history; without a number that of the device with the highest peak.

    Raises:
        DeviceError: The file has no such device.
        OptionError: matplotlib is not installed.
    """
    text = snapshot.summary(device)
    timeline = snapshot.timeline(device) if device is not None or snapshot.timelines else None
    try:
        with own_style():
            for scale in _SCALES if timeline is None or not _crowded(timeline) else _SCALES[-1:]:
                paper = _blank(snapshot.name, scale) if timeline is None else _drawn(snapshot, timeline, scale)
                png = packed(paper.pixels())
                if len(png) <= MOST_BYTES:
                    break
    except ImportError as error:
        raise OptionError(f"a picture needs matplotlib: pip install matplotlib ({first_line(error)})") from error
    return Picture(png, paper.width, paper.height, text)


def _crowded(timeline: Timeline) -> bool:
    """Whether so much lives at once that every column takes its time."""
    allocations = timeline.allocations
    lives = float((allocations.end - allocations.start).sum(dtype=np.float64))
    return lives / len(timeline.requested) > _CROWD


def packed(pixels: NDArray[np.uint8]) -> bytes:
    """As a PNG of few colours: a fraction of the bytes."""
    from PIL import Image

    image = Image.fromarray(pixels[:, :, :3]).quantize(128, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _blank(name: str, scale: float) -> Paper:
    paper = Paper(WIDTH, 80, scale)
    paper.text(_RIGHT, 30, clip(name), 14, _INK, weight="bold")
    paper.text(_RIGHT, 56, "no device used memory", 12, _SOFT)
    return paper


def _drawn(snapshot: Snapshot, timeline: Timeline, scale: float) -> Paper:
    found = parts(snapshot, timeline)
    sampled = overlays.levels(snapshot, timeline)
    strip = overlays.CELL_STRIP if snapshot.own.cells and timeline.trace.timed else 0
    head = _PLOT_TOP + strip + (_LEVELS if sampled else 0)
    rows = -(-len(found.entries) // _LEGEND_COLUMNS)
    paper = Paper(WIDTH, head + _PLOT_HEIGHT + 50 + rows * _LEGEND_ROW + 8, scale)
    plot = Box(_LEFT, head, WIDTH - _LEFT - _RIGHT, _PLOT_HEIGHT)
    chosen = columns(timeline, paper.pixels_of(plot.width))
    top = _top(snapshot, timeline, chosen, sampled)
    unit = top / paper.pixels_of(plot.height)
    kinds = strata(timeline, chosen, paper.pixels_of(plot.height), unit, kind=found.kind, band=found.band)
    paper.frame(plot, len(chosen), top)
    _axes(paper, plot, timeline, chosen, top)
    paper.image(plot, _palette(found)[kinds])
    if strip:
        overlays.cells(paper, plot, snapshot, timeline, chosen)
    total = snapshot.own.device_totals.get(timeline.device)
    overlays.curves(paper, timeline, chosen, sampled, total=total, top=top)
    overlays.peak(paper, plot, timeline, chosen)
    _heading(paper, snapshot, timeline, reserved=chosen.reserved is not None)
    _sampled(paper, sampled, top)
    _legend(paper, found, plot, _low(timeline, unit))
    return paper


def _top(snapshot: Snapshot, timeline: Timeline, chosen: Columns, sampled: list[overlays.Level]) -> float:
    """The bytes at the upper edge: the card's capacity is in sight only where it is near."""
    highest = max(timeline.requested.peak()[1], 1)
    if chosen.reserved is not None:
        highest = max(highest, int(chosen.reserved.max()))
    highest = overlays.highest(sampled, highest)
    total = snapshot.own.device_totals.get(timeline.device)
    if total and highest >= _CAPACITY_SEEN * total:
        highest = max(highest, total)
    return highest * _HEADROOM


def _palette(found: Parts) -> NDArray[np.uint8]:
    """RGBA by kind."""
    colours = np.zeros((256, 4), np.uint8)
    colours[NOTHING] = 0
    colours[SMALL] = (*_SMALL_COLOUR, _WHITE)
    for number, shade in found.colours.items():
        colours[number] = (*shade, _WHITE)
    return colours


def _axes(paper: Paper, plot: Box, timeline: Timeline, chosen: Columns, top: float) -> None:
    for value, label in byte_ticks(top):
        if value > top * _HIGHEST_TICK:
            break
        y = plot.bottom - plot.height * value / top
        paper.stroke([(plot.left, y), (plot.left + plot.width, y)], _FAINT, 1, below=True)
        paper.text(plot.left - 8, y, label, 11, _SOFT, across="right")
    for event, label in count_ticks(len(timeline.trace)):
        at = plot.left + plot.width * (chosen.of(event) + 0.5) / len(chosen)
        paper.stroke([(at, plot.bottom), (at, plot.bottom + 4)], _SOFT, 1)
        most = plot.left + plot.width + _RIGHT - _LETTER * len(label) / 2
        paper.text(min(at, most), plot.bottom + 13, label, 11, _SOFT, across="center")
    paper.text(plot.left + plot.width, plot.bottom + 32, "event", 11, _SOFT, across="right")


def _sampled(paper: Paper, sampled: list[overlays.Level], top: float) -> None:
    x: float = _RIGHT
    for level in sampled:
        above = ", above the picture" if level.bytes.min() > top else ""
        paper.stroke([(x, 62), (x + 18, 62)], overlays.SAMPLED, 1.8, dashes=level.dashes)
        words = f"{level.name}, at most {size(int(level.bytes.max()))} (sampled){above}"
        x = paper.text(x + 24, 62, words, 12, _SOFT, most=WIDTH - _RIGHT - x - 24) + 18


def _heading(paper: Paper, snapshot: Snapshot, timeline: Timeline, *, reserved: bool) -> None:
    facts = overview(snapshot, timeline.device)
    trace = timeline.trace
    name = snapshot.own.device_names.get(timeline.device)
    device = f"GPU {timeline.device}" + (f" {name}" if name else "")
    others = sum(1 for one in snapshot.timelines if len(one.trace) or one.end_reserved) - 1
    if others > 0:
        device += f" (and {many(others, 'other')} with a lower peak)"
    length = many(facts.events, "event")
    if trace.timed and len(trace) > 1:
        length += f" in {duration(int(trace.time[-1] - trace.time[0]) / 1e6).replace('.0 ', ' ')}"
    end = paper.text(_RIGHT, 20, clip(snapshot.name, 48), 14, _INK, weight="bold")
    paper.text(end + 14, 20, clip(f"{length} · {device}"), 12, _SOFT, most=WIDTH - _RIGHT - end - 14)
    x: float = _RIGHT
    entries: list[tuple[str, str, tuple[int, int] | None]] = [
        (overlays.TOTAL, f"requested, at the end {amount(facts.end_requested)}", None)
    ]
    if reserved and facts.reserved_peak is not None:
        entries.append((overlays.RESERVED, f"reserved, at most {amount(facts.reserved_peak)}", None))
    total = snapshot.own.device_totals.get(timeline.device)
    if total:
        entries.append((overlays.CAPACITY, f"capacity {size(total)}", (3, 2)))
    if facts.oom_events:
        entries.append((overlays.OOM, "out of memory", (3, 2)))
    for colour, label, dashes in entries:
        paper.stroke([(x, 44), (x + 18, 44)], colour, 1.8, dashes=dashes)
        x = paper.text(x + 24, 44, label, 12, _SOFT) + 18


def _low(timeline: Timeline, unit: float) -> str:
    """What of the peak is lower than a pixel."""
    rows = timeline.allocations.live(timeline.requested.peak()[0])
    low = timeline.allocations.size[rows]
    low = low[low < unit]
    words = f"; {many(len(low), 'block')} lower than a pixel ({amount(int(low.sum()))}) in bands"
    return "at the peak, by line" + (words if len(low) else "")


def _legend(paper: Paper, found: Parts, plot: Box, heading: str) -> None:
    """The lines of code at the peak, with their bytes there."""
    paper.text(_RIGHT, plot.bottom + 32, heading, 11, _SOFT)
    wide = (WIDTH - 2 * _RIGHT) / _LEGEND_COLUMNS
    rows = -(-len(found.entries) // _LEGEND_COLUMNS)
    for number, entry in enumerate(found.entries):
        x = _RIGHT + wide * (number // rows)
        y = plot.bottom + 56 + _LEGEND_ROW * (number % rows)
        paper.fill(Box(x, y - 6, 12, 12), entry.colour)
        paper.text(x + 84, y, amount(entry.bytes), 12, _INK, across="right")
        paper.text(x + 130, y, entry.share, 12, _SOFT, across="right")
        paper.text(x + 140, y, clip(entry.label), 12, _INK, most=wide - 152)
