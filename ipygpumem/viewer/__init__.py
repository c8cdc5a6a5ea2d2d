"""Views of a snapshot: in a notebook, as a standalone HTML page and as a static image."""

from __future__ import annotations

from ipygpumem.viewer.axes import PngImage
from ipygpumem.viewer.page import PageData, page
from ipygpumem.viewer.static_plot import picture
from ipygpumem.viewer.view import View
from ipygpumem.viewer.write import open_page, write_page, write_picture

__all__ = ["PageData", "PngImage", "View", "open_page", "page", "picture", "write_page", "write_picture"]
