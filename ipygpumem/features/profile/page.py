"""Standalone HTML page that shows the profiled memory usage by category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.features.profile.timeline import CategoryTimeline
from ipygpumem.snapshot.export.encode import encode_columns
from ipygpumem.viewer.write import PageData, document


def encode_timelines(timelines: Sequence[CategoryTimeline], notes: Sequence[str] = ()) -> bytes:
    """Encode timelines in the format of `ipygpumem.snapshot.export.encode`.

    Column names begin with the index of the timeline, as in ``0/time``. Timestamps are nanoseconds since the start of
    the first timeline.
    """
    origin = min((timeline.start for timeline in timelines), default=0)
    devices = [
        {
            "name": timeline.device,
            "base": timeline.base.tolist(),
            "start": 0,
            "end": timeline.end - origin,
            "count": len(timeline),
            "has_counters": timeline.allocated is not None,
        }
        for timeline in timelines
    ]
    columns: list[tuple[str, NDArray[Any]]] = []
    for number, timeline in enumerate(timelines):
        columns.append((f"{number}/time", np.maximum(timeline.time - origin, 0)))
        names = ("source", "target", "size", *(() if timeline.allocated is None else ("allocated", "reserved")))
        columns += [(f"{number}/{name}", getattr(timeline, name)) for name in names]
    return encode_columns({"version": 1, "notes": list(notes), "devices": devices}, columns)


def timeline_page(timelines: Sequence[CategoryTimeline], name: str, notes: Sequence[str] = ()) -> str:
    """Return an HTML page with the notes and a chart of each timeline. At least one timeline is required."""
    data = PageData(name, encode_timelines(timelines, notes))
    return document("categories.js", "memory by category", [data], "auto")
