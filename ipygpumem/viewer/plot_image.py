"""Layout and drawing of small PNG files with matplotlib's Agg backend, which is imported when an image is drawn."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.files import import_library

Ticks = list[tuple[float, str]]

LegendItem = tuple[str, str, Any]  # color, label and matplotlib line style, which is None for a filled area
MAX_BYTES = 60_000  # target size of a PNG file in bytes; larger images are drawn again with fewer pixels
SCALES = (2.0, 1.5, 1.0)  # image pixels per CSS pixel, in the order in which they are tried
_COLORS = 128
WIDTH = 880  # width of every image in CSS pixels
LEFT, RIGHT = 70, 16
"""Left and right margins of a plot in CSS pixels."""
PLOT_WIDTH = WIDTH - LEFT - RIGHT
INK, SOFT = "#1b1f24", "#59636e"
_DPI = 100
POINT = 72 / _DPI  # points per CSS pixel; font sizes and line widths in matplotlib are in points
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MAX_BYTE_INTERVALS = 6
_MAX_TICKS = 9
_TIME_UNITS = ((7200.0, 3600.0, "h"), (180.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 1e-3, "ms"))
"""For each unit of time: the shortest time axis that uses the unit and the unit's length in seconds, and its symbol."""


def import_matplotlib() -> None:
    """Import matplotlib in a shell command, without a file ``matplotlibrc`` of the current directory.

    Reading it could block, and its warnings could contain control characters, if it was created by another user.
    Raises `OptionError` if matplotlib is not installed.
    """
    directory = Path.cwd()
    os.chdir(os.sep)
    try:
        import_library("matplotlib", "images")
    finally:
        os.chdir(directory)


def style() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that applies the style of all images instead of the user's matplotlib settings."""
    from matplotlib import style as styles

    return styles.context(["default", str(files("ipygpumem") / "data" / "plot.mplstyle")])


class PlotLayout:
    """A white figure whose elements are positioned in CSS pixels from its upper left corner.

    Attributes:
        scale: Number of image pixels per CSS pixel.
        columns: Width of a plot in image pixels.
    """

    def __init__(self, height: int, scale: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.transforms import Affine2D

        self.height, self.scale = height, scale
        self.columns = round(PLOT_WIDTH * scale)
        self.figure: Any = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI * scale, facecolor="white")
        self._canvas: Any = FigureCanvasAgg(self.figure)
        self._css = Affine2D().scale(1 / WIDTH, -1 / height).translate(0, 1) + self.figure.transFigure

    def pixels(self) -> NDArray[np.uint8]:
        """Draw the figure, and return its RGBA pixels as a uint8 array of shape (height, width, 4)."""
        self._canvas.draw()
        return np.asarray(self._canvas.buffer_rgba())

    def png(self) -> bytes:
        from PIL import Image

        image = Image.fromarray(self.pixels()[:, :, :3])
        file = io.BytesIO()
        image.quantize(_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        return file.getvalue()

    def _right_edge(self, artist: Any) -> float:
        return float(artist.get_window_extent(self._canvas.get_renderer()).x1) / self.scale

    def text(self, x: float, y: float, text: str, *, limit: float = WIDTH, **options: Any) -> float:
        """Draw a line of text, vertically centered at ``y`` and at most ``limit`` CSS pixels wide.

        Return its right edge.
        """
        text = printable(text)
        options = {"color": SOFT, "va": "center_baseline", "transform": self._css, **options}
        artist = self.figure.text(x, y, text, **options)
        while (end := self._right_edge(artist)) > x + limit and text:
            text = text[: min(len(text) - 1, int(len(text) * limit / (end - x)))]
            artist.set_text(f"{text.rstrip()}…")
        return end

    def title(self, x: float, y: float, name: str, details: str, *, size: float = 12) -> None:
        end = self.text(x, y, name, color=INK, weight="bold", size=size * POINT)
        self.text(end + size, y, details, limit=WIDTH - RIGHT - end - size)

    def legend(self, x: float, y: float, items: Iterable[LegendItem], columns: int = 0, **options: Any) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        handles: list[Any] = [
            Patch(color=color, label=printable(label), linewidth=0)
            if style is None
            else Line2D([], [], color=color, label=printable(label), linestyle=style, linewidth=1.8 * POINT)
            for color, label, style in items
        ]
        legend = self.figure.legend(
            handles=handles,
            ncols=columns or len(handles),
            loc="upper left",
            alignment="left",
            bbox_to_anchor=(x, y),
            bbox_transform=self._css,
            handlelength=1.5 if any(isinstance(handle, Line2D) for handle in handles) else 1,
            **options,
        )
        legend.get_title().set_color(SOFT)

    def strip(self, top: float, height: float, x_limits: tuple[float, float]) -> Any:
        """Add axes with the width of a plot and a vertical range from 0 to 1, without a frame or ticks."""
        bottom = 1 - (top + height) / self.height
        axes = self.figure.add_axes((LEFT / WIDTH, bottom, PLOT_WIDTH / WIDTH, height / self.height))
        axes.set(xlim=x_limits, ylim=(0, 1))
        axes.set_axis_off()
        return axes

    def plot(
        self, top: float, height: float, x_limits: tuple[float, float], bytes_limit: float, tick_limit: float = 1.0
    ) -> Any:
        """Add a plot with a vertical range of ``bytes_limit`` bytes and ticks up to ``tick_limit`` times this limit."""
        axes = self.strip(top, height, x_limits)
        axes.set_axis_on()
        axes.set_ylim(0, bytes_limit)
        ticks = [(value, label) for value, label in byte_ticks(bytes_limit) if value <= bytes_limit * tick_limit]
        axes.set_yticks(*zip(*ticks, strict=True))
        axes.grid(axis="y")
        return axes

    def label_x(self, axes: Any, ticks: Ticks, **options: Any) -> None:
        """Set the ticks of the horizontal axis. Right-align the last label if it would extend beyond the figure."""
        axes.set_xticks([value for value, _ in ticks], [label for _, label in ticks], **options)
        for label in axes.xaxis.get_ticklabels()[-1:]:
            if self._right_edge(label) > WIDTH:
                label.set_horizontalalignment("right")


def steps(axes: Any, edges: Any, values: Any, color: str, *, width: float) -> None:
    """Draw a step curve with a line width of ``width`` CSS pixels. NaN values create gaps."""
    from matplotlib.patches import StepPatch

    options: dict[str, Any] = {"baseline": None, "fill": False, "color": color, "linewidth": width * POINT}
    # faster than axes.stairs, which spends most of its time on data limits
    axes.add_artist(StepPatch(values, edges, **options))


def mark_peak(axes: Any, x: float, level: float, label: str) -> None:
    axes.plot([x], [level], "o", markersize=5 * POINT, markerfacecolor="white", markeredgecolor=INK, clip_on=False)
    first, last = axes.get_xlim()
    right = (x - first) / (last - first) < 0.7  # noqa: PLR2004 (fraction of the width that leaves space for the label)
    axes.annotate(
        label,
        (x, 1),
        xycoords=("data", "axes fraction"),
        xytext=((6 if right else -6) * POINT, -12 * POINT),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center_baseline",
        color=INK,
        weight="bold",
        bbox={"facecolor": "white", "alpha": 0.88, "linewidth": 0, "pad": 1.5},
    )


def byte_ticks(limit: float) -> Ticks:
    """Return up to seven ticks at multiples of a power of two from 0 to ``limit`` bytes, labeled in one unit."""
    step = 1
    while limit / step > _MAX_BYTE_INTERVALS:
        step *= 2
    power = min((int(limit).bit_length() - 1) // 10, len(_BYTE_UNITS) - 1)
    unit, symbol = 1 << power * 10, _BYTE_UNITS[power]
    return [(value, f"{value / unit:g} {symbol}" if value else "0") for value in range(0, int(limit) + 1, step)]


def event_ticks(count: int) -> Ticks:
    return [(value, f"{value:,.0f}") for value in _round_values(0, count - 1, integer=True)] if count else []


def time_ticks(first: float, last: float) -> Ticks:
    """Return ticks at round times from ``first`` to ``last`` seconds, labeled in one unit."""
    unit, symbol = next((unit, symbol) for shortest, unit, symbol in _TIME_UNITS if last - first >= shortest)
    values = _round_values(first / unit, last / unit)
    return [(value * unit, f"{value:g} {symbol}" if value else "0") for value in values]


def _round_values(first: float, last: float, *, integer: bool = False) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(_MAX_TICKS, integer=integer, steps=(1, 2, 5, 10)).tick_values(first, last)
    return [float(value) for value in values if first <= value <= last]


def printable(text: str) -> str:
    """Replace characters that the font lacks, because matplotlib would warn about them."""
    return "".join(character if ord(character) in _font_characters() else "?" for character in text)


@cache
def _font_characters() -> frozenset[int]:
    from matplotlib import font_manager

    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())


@dataclass(frozen=True, slots=True)
class PngImage:
    """A PNG image.

    Attributes:
        png: Contents of the PNG file, usually at most `MAX_BYTES` long.
        width, height: Size in CSS pixels. The PNG file can have up to twice as many pixels in each dimension.
        text: Description for front ends that do not show images.
    """

    png: bytes
    width: int
    height: int
    text: str


def render(height: int, draw: Callable[[PlotLayout], None], text: str, scales: Sequence[float] = SCALES) -> PngImage:
    """Draw an image at the first of ``scales`` at which its PNG file has at most `MAX_BYTES` bytes, or at the last.

    ``height`` is in CSS pixels. Raises `OptionError` if matplotlib is not installed.
    """
    import_library("matplotlib", "images")
    with style():
        for scale in scales:
            layout = PlotLayout(height, scale)
            draw(layout)
            png = layout.png()
            if len(png) <= MAX_BYTES:
                break
    return PngImage(png, WIDTH, height, text)
