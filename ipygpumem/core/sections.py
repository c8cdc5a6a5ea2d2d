"""The sections of a report that features collect.

A feature registers its section here, with the class of its facts. `ipygpumem.core` imports no feature: a class is
imported when a report with that section is read from a file.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

__all__ = ["section_classes"]

_CLASSES = {
    "DeviceLines": "features.lines.model",
    "PeakLines": "features.lines.model",
    "ExceededLimit": "features.limits.model",
    "ModuleTree": "features.modules.model",
    "OutsideMemory": "features.outside.model",
    "ProfileFacts": "features.profile.model",
}
"""The class of each section's facts, as `Report` names it, and its module."""


@cache
def section_classes() -> dict[str, Any]:
    """The class of each section's facts by name."""
    return {name: getattr(importlib.import_module(f"ipygpumem.{module}"), name) for name, module in _CLASSES.items()}
