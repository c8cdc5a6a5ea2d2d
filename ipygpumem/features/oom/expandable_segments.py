"""Replay of an out-of-memory error with expandable segments, based on the saved allocation history."""

from __future__ import annotations

import time

from ipygpumem.core.units import size
from ipygpumem.features.oom.model import FailedAllocation
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.missing_data import older_memory
from ipygpumem.snapshot.replay.result import replay
from ipygpumem.snapshot.replay.settings import settings_variable
from ipygpumem.snapshot.replay.verification import cached_verification

_SETTING = "expandable_segments:True"
_TIME_LIMIT = 0.5  # limit of the CPU time of all replays in seconds; replays that would take longer are omitted


class ReplayTimeLimit:
    """Limit on the CPU time of all replays for one report. Other programs affect the elapsed time, not the CPU time."""

    def __init__(self) -> None:
        self._started = time.thread_time()

    @property
    def used(self) -> float:
        return time.thread_time() - self._started

    @property
    def remaining(self) -> float:
        return max(_TIME_LIMIT - self.used, 0.0)

    def allows(self, seconds: float) -> bool:
        return self.used + seconds <= _TIME_LIMIT


def with_expandable_segments(snapshot: Snapshot, failure: FailedAllocation, replay_time: ReplayTimeLimit) -> str:
    """Return a sentence on whether expandable segments would have prevented a failure; empty if this is unknown.

    ``snapshot`` is the allocation history that was saved when the allocation failed. The time for loading it is
    part of ``replay_time``.
    """
    reserved = None if failure.reading is None else failure.reading.reserved
    device = int(failure.device.removeprefix("cuda:"))
    ooms = snapshot.timeline(device).trace.events(Action.OOM)
    loaded = replay_time.used
    if reserved is None or not len(ooms) or not replay_time.allows(loaded):
        return ""
    verification = cached_verification(snapshot, device, replay_time.remaining)
    if verification.difference or verification.recording.settings.expandable:
        return ""
    if not replay_time.allows(replay_time.used - loaded):  # the next replay takes as long as the verification
        return ""
    capacity, event, recording = reserved + failure.available, int(ooms[-1]), verification.recording
    started, older = replay_time.used, older_memory(recording)
    with recording.work_limit.limited(replay_time.remaining):
        result = replay(snapshot, device, _SETTING, capacity, by_fraction=recording.by_fraction)
    if event not in result.served and result.grade != "approximate":
        return "expandable segments alone would not have been enough for this allocation"
    peak = int(result.reserved.bytes[event + 1])
    if older and event in result.served and replay_time.allows(replay_time.used - started):
        with recording.work_limit.limited(replay_time.remaining):
            again = result.without_older_memory()
        is_enough, peak = event in again.served, max(peak, int(again.reserved()[event + 1]))
    else:  # if the replay fails, the request might still succeed, for example with other addresses of older blocks
        is_enough = event in result.served and not older
    if not is_enough:
        return ""
    about = "" if result.grade == "exact" else "about "
    remaining_size = size(max(capacity - peak, 0))
    variable = settings_variable(snapshot.own.torch_version)
    setting = f"set {variable}={_SETTING} before torch is imported"
    estimate = f" (estimated: recording began after {size(older)} had been reserved)" if older else ""
    return f"with expandable segments, {about}{remaining_size} would have been left{estimate}: {setting}"
