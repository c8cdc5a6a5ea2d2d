"""A profile's memory by category as one HTML file that works offline and without Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.export.encode import encode_columns
from ipygpumem.viewer.page import PageData, document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ipygpumem.features.profile.timeline import CategoryTimeline, Profile

__all__ = ["encode_profile", "timeline_page"]


def encode_profile(profile: Profile, notes: Sequence[str] = ()) -> bytes:
    """Encode all timelines as `ipygpumem.snapshot.export.encode` does, with columns named ``0/time``, ``0/size``...

    Times are nanoseconds since the earliest start; ``source`` and ``target`` are -1 where there is none.
    """
    origin = min((timeline.start for timeline in profile.timelines), default=0)
    devices = [
        {
            "name": timeline.device,
            "base": timeline.base.tolist(),
            "start": 0,
            "end": timeline.end - origin,
            "count": len(timeline),
            "has_counters": timeline.allocated is not None,
        }
        for timeline in profile.timelines
    ]
    columns = (
        (f"{number}/{name}", column)
        for number, timeline in enumerate(profile.timelines)
        for name, column in _columns(timeline, origin)
    )
    return encode_columns({"version": 1, "notes": list(notes), "devices": devices}, columns)


def _columns(timeline: CategoryTimeline, origin: int) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "time", np.maximum(timeline.time - origin, 0)
    yield "source", timeline.source
    yield "target", timeline.target
    yield "size", timeline.size
    if timeline.allocated is not None and timeline.reserved is not None:
        yield "allocated", timeline.allocated
        yield "reserved", timeline.reserved


def timeline_page(profile: Profile, name: str, notes: Sequence[str] = (), *, theme: str = "auto") -> str:
    """Return the HTML of a page that shows a profile.

    Args:
        profile: Memory of at least one device.
        name: Title of the page.
        notes: Sentences above the chart.
        theme: ``"auto"`` (follows the system), ``"light"`` or ``"dark"``.

    Raises:
        OptionError: The theme is unknown.
    """
    data = PageData(name, encode_profile(profile, notes))
    return document("categories.js", "memory by category", [data], title=name, theme=theme)
