"""Whether a front end puts what a request shows into an ``ipywidgets.Output`` instead of under its cell.

Such a widget names a request, and takes every output of that request while it does: also those that another thread
sends in the cell's name. Updates of a display elsewhere are lost meanwhile.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["captured"]


def captured(request: str | None) -> bool:
    """Whether a living Output takes the outputs of this request (a message id) now. Imports nothing."""
    output = getattr(sys.modules.get("ipywidgets.widgets.widget_output"), "Output", None)
    module = sys.modules.get("ipywidgets.widgets.widget")
    if output is None or not request:
        return False
    living: Any = getattr(module, "_instances", None)  # ipywidgets 8; 7 has them on the class
    if living is None:
        living = vars(getattr(module, "Widget", object)).get("widgets")
    if not isinstance(living, dict):
        return True  # nobody knows: then nothing is put there
    return any(isinstance(one, output) and one.msg_id == request for one in tuple(living.values()))
