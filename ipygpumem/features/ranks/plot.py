"""Static plot of the memory usage of ranks over time."""

from __future__ import annotations

from collections.abc import Sequence

from ipygpumem.core.errors import OptionError
from ipygpumem.core.text import clip
from ipygpumem.core.units import many, size
from ipygpumem.features.ranks.comparison import compare_ranks
from ipygpumem.features.ranks.model import RankPeak, RankResult
from ipygpumem.viewer.plot_image import LEFT, POINT, RIGHT, PlotLayout, PngImage, render, time_ticks

_TOP, _PLOT_HEIGHT, _FOOT = 54, 260, 40
_HEADROOM = 1.1
_DEFAULT_COLOR = "#9db8d9"
_TYPICAL, _OUTLIER = ("typical", "#1d4ed8"), ("deviates most", "#c2410c")


def ranks_plot(results: Sequence[RankResult]) -> PngImage:
    curves = {result.name: peak for result in results if (peak := result.highest) is not None and peak.curve}
    if not curves:
        raise OptionError("cannot plot the ranks: no rank has a snapshot with timestamps")
    comparison, marked = compare_ranks(results), {}
    if comparison is not None and comparison.lines:
        marked = {comparison.typical: _TYPICAL, comparison.outlier: _OUTLIER}
    text = f"{many(len(curves), 'rank')}, highest peak {size(max(peak.requested for peak in curves.values()))}"
    return render(_TOP + _PLOT_HEIGHT + _FOOT, lambda layout: _draw(layout, curves, marked), text)


def _draw(layout: PlotLayout, curves: dict[str, RankPeak], marked: dict[str, tuple[str, str]]) -> None:
    first = min(0.0, *(peak.curve[0][0] for peak in curves.values()))
    last = max(peak.curve[-1][0] for peak in curves.values())
    highest = max(usage for peak in curves.values() for _, usage in peak.curve)
    has_start_times = all(peak.start_us is not None for peak in curves.values())
    time_axis = (
        "time since the start of each measurement" if has_start_times else "time since the first event of each rank"
    )
    title = f"Requested memory of {many(len(curves), 'rank')}"
    layout.title(RIGHT, 20, title, time_axis, size=14)
    axes = layout.plot(_TOP, _PLOT_HEIGHT, (first, last if last > first else first + 1), highest * _HEADROOM or 1.0)
    layout.label_x(axes, time_ticks(*axes.get_xlim()))
    for name, peak in curves.items():
        _, color = marked.get(name, ("", _DEFAULT_COLOR))
        style = {"linewidth": 2 * POINT, "zorder": 3} if name in marked else {"linewidth": POINT}
        axes.plot(*zip(*peak.curve, strict=True), color=color, **style)
    labels = [(color, f"rank {clip(name, 40)}, {label}", "solid") for name, (label, color) in marked.items()]
    if labels:
        layout.legend(LEFT, 33, labels)
