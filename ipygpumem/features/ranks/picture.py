"""The levels of many ranks over time, on one clock: a still picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.files import check_path, replacing
from ipygpumem.core.units import duration, size
from ipygpumem.features.ranks.skew import compare_ranks
from ipygpumem.snapshot.export.text import clip
from ipygpumem.viewer.axes import Box, Paper, own_style
from ipygpumem.viewer.picture import WIDTH, Picture, packed
from ipygpumem.viewer.ticks import byte_ticks

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from ipygpumem.features.ranks.model import RankPeak, RankResult

__all__ = ["ranks_picture", "write_ranks_picture"]

_SCALE = 2.0
_LEFT, _RIGHT, _HEAD, _PLOT, _FOOT = 70, 16, 54, 260, 40
_INK, _SOFT, _FAINT = "#1b1f24", "#59636e", "#e3e6ea"
_EACH, _ODD, _TYPICAL = "#9db8d9", "#c2410c", "#1d4ed8"
_HEADROOM = 1.1
_TICKS = 5


def ranks_picture(members: Sequence[RankResult], what: str = "rank") -> Picture:
    """Draw each member's requested bytes over the seconds since its own measurement began.

    The rank that differs most and a typical one are drawn last, in colours of their own. A point is the highest level
    of a stretch of time.

    Raises:
        OptionError: No member has a recording with times, or matplotlib is not installed.
    """
    drawn = [(member.name, peak) for member in members if (peak := member.highest) is not None and peak.curve]
    if not drawn:
        raise OptionError("there is no picture of these ranks: none has a snapshot with times")
    found = compare_ranks(members)
    marked = {} if found is None or not found.lines else {found.typical: _TYPICAL, found.odd: _ODD}
    try:
        with own_style():
            paper = _drawn(drawn, marked, what)
            png = packed(paper.pixels())
    except ImportError as error:
        raise OptionError(f"a picture needs matplotlib: pip install matplotlib ({first_line(error)})") from error
    words = f"{len(drawn):,} {what}s, the highest level {size(max(peak.requested for _, peak in drawn))}"
    return Picture(png, paper.width, paper.height, words)


def write_ranks_picture(path: str | os.PathLike[str], members: Sequence[RankResult]) -> Path:
    """Write that picture.

    Raises:
        OptionError: Nothing can be written there, or there is nothing to draw.
    """
    target = check_path(path, "picture", "ranks.png")
    found = ranks_picture(members)
    try:
        with replacing(target) as temporary:
            temporary.write_bytes(found.png)
    except OSError as error:
        raise OptionError(f"{target} was not written: {error.strerror or error}") from error
    return target


def _drawn(drawn: Sequence[tuple[str, RankPeak]], marked: dict[str, str], what: str) -> Paper:
    paper = Paper(WIDTH, _HEAD + _PLOT + _FOOT, _SCALE)
    plot = Box(_LEFT, _HEAD, WIDTH - _LEFT - _RIGHT, _PLOT)
    top = max(max(level for _, level in peak.curve) for _, peak in drawn) * _HEADROOM or 1.0
    first = min(0.0, *(peak.curve[0][0] for _, peak in drawn))
    last = max(peak.curve[-1][0] for _, peak in drawn)
    span = (last - first) or 1.0
    many = f"{len(drawn):,} {what}{'' if len(drawn) == 1 else 's'}"
    end = paper.text(_RIGHT, 20, f"Level of {many}", 14, _INK, weight="bold")
    clock = "requested bytes, by seconds since each one's measurement began"
    if any(peak.start_us is None for _, peak in drawn):
        clock = "requested bytes, by seconds since each one's first event"
    paper.text(end + 14, 20, clock, 12, _SOFT)
    _grid(paper, plot, top, (first, span))
    for name, peak in sorted(drawn, key=lambda one: one[0] in marked):
        points = [
            (plot.left + plot.width * (at - first) / span, plot.bottom - plot.height * level / top)
            for at, level in peak.curve
        ]
        paper.stroke(points, marked.get(name, _EACH), 2 if name in marked else 1)
    x: float = _LEFT
    words = {
        name: f"{what} {name}{', typical' if colour == _TYPICAL else ', differs most'}"
        for name, colour in marked.items()
    }
    for name, colour in marked.items():
        paper.stroke([(x, 40), (x + 14, 40)], colour, 2)
        x = paper.text(x + 20, 40, clip(words[name], 48), 12, _SOFT) + 18
    return paper


def _grid(paper: Paper, plot: Box, top: float, span: tuple[float, float]) -> None:
    for value, label in byte_ticks(top):
        y = plot.bottom - plot.height * value / top
        paper.stroke([(plot.left, y), (plot.left + plot.width, y)], _FAINT, 1, below=True)
        paper.text(plot.left - 8, y, label, 11, _SOFT, across="right")
    for number in range(_TICKS):
        part = number / (_TICKS - 1)
        seconds = span[0] + span[1] * part
        text = f"-{duration(-seconds)}" if seconds < 0 else duration(seconds)
        across = "left" if number == 0 else "right" if number == _TICKS - 1 else "center"
        paper.text(plot.left + plot.width * part, plot.bottom + 16, text, 11, _SOFT, across=across)
