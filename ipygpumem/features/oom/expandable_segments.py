"""A replay of an out-of-memory error with expandable segments, from the saved allocation history."""

from __future__ import annotations

import time
from pathlib import Path

from ipygpumem.core.units import size
from ipygpumem.features.oom.model import FailedAllocation
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.verification import verified

_SETTING = "expandable_segments:True"
_TIME_LIMIT = 0.5
"""Time in seconds after which the panel is shown without the result."""


def with_expandable_segments(path: Path, failure: FailedAllocation) -> str:
    """Return a sentence on whether expandable segments would have been enough; empty if this is unknown.

    ``path`` is the snapshot that was saved when the allocation failed.
    """
    started = time.perf_counter()
    reserved = None if failure.reading is None else failure.reading.reserved
    device = int(failure.device.removeprefix("cuda:"))
    snapshot = Snapshot.load(path)
    ooms = snapshot.timeline(device).trace.events(Action.OOM)
    loaded = time.perf_counter()
    if reserved is None or not len(ooms) or 2 * loaded - 2 * started > _TIME_LIMIT:
        return ""
    verification = verified(snapshot, device)
    now = time.perf_counter()
    if verification.difference or verification.recording.settings.expandable:
        return ""
    if (now - started) + (now - loaded) > _TIME_LIMIT:  # the next replay takes as long as the verification
        return ""
    capacity, event = reserved + failure.available, int(ooms[-1])
    replay = snapshot.replay(_SETTING, capacity, device)
    if event not in replay.served:
        return "expandable segments alone would not have been enough for this allocation"
    about = "" if replay.grade == "exact" else "about "
    left = size(capacity - int(replay.reserved.bytes[event + 1]))
    return f"with expandable segments, {about}{left} would have been left: set PYTORCH_ALLOC_CONF={_SETTING}"
