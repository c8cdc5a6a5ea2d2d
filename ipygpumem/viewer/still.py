"""Still pictures as small PNG files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.viewer.axes import WIDTH, Sheet, style

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MAX_BYTES", "SCALES", "Picture", "render"]

MAX_BYTES = 60_000
"""Target size of a PNG: a picture that exceeds it is drawn again with fewer pixels."""
SCALES = (2.0, 1.5, 1.0)
"""Pixels per CSS pixel, in the order in which they are tried."""
_COLORS = 128


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG image.

    Attributes:
        png: Content of the file, usually at most `MAX_BYTES`.
        width, height: Size in CSS pixels; the image itself may have twice as many pixels.
        text: Description for displays without images.
    """

    png: bytes
    width: int
    height: int
    text: str


def render(height: int, draw: Callable[[Sheet], None], text: str, scales: Sequence[float] = SCALES) -> Picture:
    """Draw a picture with the first of ``scales`` whose file is small enough.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        with style():
            for scale in scales:
                sheet = Sheet(height, scale)
                draw(sheet)
                png = _compressed(sheet)
                if len(png) <= MAX_BYTES:
                    break
    except ImportError as error:
        message = f"pictures require matplotlib: install it with pip install matplotlib ({first_line(error)})"
        raise OptionError(message) from error
    return Picture(png, WIDTH, height, text)


def _compressed(sheet: Sheet) -> bytes:
    """Encode as a PNG with a palette, which takes a fraction of the space."""
    from PIL import Image

    pixels = sheet.pixels()[:, :, :3]
    file = io.BytesIO()
    image = Image.fromarray(pixels).quantize(_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
