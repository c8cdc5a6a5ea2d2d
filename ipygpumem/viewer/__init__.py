"""Views of a snapshot: in a notebook, as a standalone HTML page and as a static image."""

from ipygpumem.viewer.page import PageData, page
from ipygpumem.viewer.plot_image import PngImage
from ipygpumem.viewer.static_plot import static_image
from ipygpumem.viewer.view import View
from ipygpumem.viewer.write import open_page, write_image, write_page

__all__ = ["PageData", "PngImage", "View", "open_page", "page", "static_image", "write_image", "write_page"]
