"""A sheet to draw on, in CSS pixels from the upper left corner: matplotlib's Agg behind a few strokes.

No pyplot, and none of the user's settings: a figure with a style of their own must not change ours, nor ours theirs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Box", "Paper", "own_style"]

_BELOW, _IMAGE, _ABOVE = 0.5, 1, 2
_INCH = 100
_POINT = 0.72
"""Points of a CSS pixel, where an inch is 100 of them."""
_STYLE = ("agg.", "axes.", "figure.", "font.", "image.", "lines.", "mathtext.", "patch.", "path.", "text.")


@contextlib.contextmanager
def own_style() -> Iterator[None]:
    """The settings that matplotlib comes with, not the user's: a figure is made and drawn inside.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    style = {key: mpl.rcParamsDefault[key] for key in mpl.rcParamsDefault if key.startswith(_STYLE)}
    with mpl.rc_context(style):
        yield


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; its upper left corner, width and height."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + self.height


class Paper:
    """A white sheet.

    Attributes:
        width: In CSS pixels.
        height: In CSS pixels.

    """

    def __init__(self, width: int, height: int, scale: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height, self._scale = width, height, scale
        self._figure: Any = Figure(figsize=(width / _INCH, height / _INCH), dpi=_INCH * scale, facecolor="white")
        canvas: Any = FigureCanvasAgg(self._figure)
        self._canvas = canvas
        self._renderer = canvas.get_renderer()
        self._axes: Any = None

    def pixels_of(self, length: float) -> int:
        """How many of the picture's own pixels a length has."""
        return round(length * self._scale)

    def pixels(self) -> NDArray[np.uint8]:
        """The finished picture: uint8, shape (height, width, 4)."""
        self._canvas.draw()
        found: NDArray[np.uint8] = np.asarray(self._canvas.buffer_rgba())
        return found

    def text(
        self,
        x: float,
        y: float,
        text: str,
        pixels: float,
        colour: str,
        *,
        across: str = "left",
        weight: str = "normal",
        most: float | None = None,
        veil: bool = False,
    ) -> float:
        """Write a line, its middle at the height ``y``, cut to ``most`` pixels; its right end comes back.

        With a veil, what lies below it shines through only faintly.
        """
        text = _printable(text)
        made = self._figure.text(
            x / self.width,
            1 - y / self.height,
            text,
            fontsize=pixels * _POINT,
            color=colour,
            ha=across,
            va="center_baseline",
            fontweight=weight,
            parse_math=False,  # a dollar in a name is a dollar
            bbox={"facecolor": "white", "alpha": 0.88, "linewidth": 0, "pad": 1.5} if veil else None,
        )
        while most is not None and text and self._width(made) > most:
            text = text[: min(len(text) - 1, int(len(text) * most / self._width(made)))]
            made.set_text(f"{text.rstrip()}…")
        return float(made.get_window_extent(self._renderer).x1) / self._scale

    def _width(self, text: Any) -> float:
        return float(text.get_window_extent(self._renderer).width) / self._scale

    def fill(self, box: Box, colour: str) -> None:
        """A rectangle."""
        from matplotlib.patches import Rectangle

        corner = (box.left / self.width, 1 - box.bottom / self.height)
        size = (box.width / self.width, box.height / self.height)
        transform = self._figure.transFigure
        self._figure.add_artist(Rectangle(corner, *size, facecolor=colour, linewidth=0, transform=transform))

    def stroke(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        pixels: float,
        *,
        dashes: tuple[int, int] | None = None,
        below: bool = False,
    ) -> None:
        """A line through points of the sheet; below the image, if asked."""
        from matplotlib.lines import Line2D

        x, y = [x / self.width for x, _ in points], [1 - y / self.height for _, y in points]
        self._figure.add_artist(
            Line2D(
                x,
                y,
                color=colour,
                linewidth=pixels * _POINT,
                transform=self._figure.transFigure,
                zorder=_BELOW if below else _ABOVE,
                **_dashed(dashes),
            )
        )

    def frame(self, box: Box, columns: int, top: float) -> None:
        """Where the plot is: what follows is drawn in columns and bytes."""
        axes = self._figure.add_axes(
            (box.left / self.width, 1 - box.bottom / self.height, box.width / self.width, box.height / self.height)
        )
        axes.set_axis_off()
        axes.set_zorder(_ABOVE)
        axes.set_xlim(0, columns)
        axes.set_ylim(0, top)
        self._axes = axes
        self.stroke([(box.left, box.bottom), (box.left + box.width, box.bottom)], "#59636e", 1)

    def image(self, box: Box, pixels: NDArray[np.uint8]) -> None:
        """Pixels of the picture's own, as many as the box has."""
        self._figure.figimage(
            pixels,
            xo=box.left * self._scale,
            yo=(self.height - box.bottom) * self._scale,
            origin="upper",
            zorder=_IMAGE,
        )

    def steps(self, values: NDArray[Any], colour: str, pixels: float) -> None:
        """A curve of steps: one value per column."""
        x = np.repeat(np.arange(len(values) + 1), 2)[1:-1]
        self._axes.plot(x, np.repeat(values, 2), color=colour, linewidth=pixels * _POINT, solid_joinstyle="miter")

    def line(
        self, x: NDArray[Any], y: NDArray[Any], colour: str, pixels: float, dashes: tuple[int, int] | None = None
    ) -> None:
        """A line through points: columns and bytes."""
        self._axes.plot(x, y, color=colour, linewidth=pixels * _POINT, **_dashed(dashes))

    def rule(self, value: float, colour: str, dashes: tuple[int, int] | None = None) -> None:
        """A level line at so many bytes."""
        self._axes.axhline(value, color=colour, linewidth=_POINT, **_dashed(dashes))

    def upright(
        self, column: float, colour: str, pixels: float, low: float = 0, dashes: tuple[int, int] | None = None
    ) -> None:
        """A vertical line from so many bytes to the top."""
        _, top = self._axes.get_ylim()
        self._axes.plot([column, column], [low, top], color=colour, linewidth=pixels * _POINT, **_dashed(dashes))

    def dot(self, column: float, value: float, colour: str) -> None:
        """A ring around a point."""
        self._axes.plot(
            [column],
            [value],
            "o",
            markersize=5 * _POINT,
            markerfacecolor="white",
            markeredgecolor=colour,
            clip_on=False,
        )


def _dashed(dashes: tuple[int, int] | None) -> dict[str, Any]:
    return {} if dashes is None else {"linestyle": (0, dashes)}


def _printable(text: str) -> str:
    """Without the characters that the font lacks: matplotlib would warn of each."""
    known = _characters()
    return "".join(sign if ord(sign) in known else "?" for sign in text)


@cache
def _characters() -> frozenset[int]:
    from matplotlib import font_manager

    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
