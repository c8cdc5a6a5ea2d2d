"""Results of a comparison of allocator settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.snapshot.replay.run import run

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.replay.result import Replay

_SHARE = 1 / 64  # fraction of the work limit that replays within a range of limits may use


@dataclass(frozen=True, slots=True, eq=False)
class SettingsResult:
    """Result of replaying a recording with the recorded or with other allocator settings. Memory sizes are in bytes.

    Attributes:
        settings: Settings in the format of ``PYTORCH_ALLOC_CONF``; empty for the default and the recorded settings.
        replay: Replay without a limit, or within `SettingsComparison.limit` if the settings require a limit.
        peaks: Lowest and highest peak of reserved memory. For the recorded settings, both are the recorded peak. For
            other settings, they are the ``reserved_range`` of the replay. If the recording is long and the settings
            save less than 5%, both are the peak of the replay.
        fits: Whether all requests are served within the limit, that is, within each limit between the bounds of
            `SettingsComparison.limit`; None if this is unknown, for example because no limit is known.
        fits_reason: Reason why it is unknown whether all requests are served, or why a positive result is an estimate;
            otherwise empty.
        baseline: Peak with the recorded settings to which ``peaks`` are compared: the recorded peak or, if the settings
            require a limit and a capacity was given, the peak within this capacity. None if a request fails within
            this capacity with the recorded settings.
    """

    settings: str
    replay: Replay
    peaks: tuple[int, int]
    fits: bool | None
    fits_reason: str
    baseline: int | None

    @property
    def collects(self) -> bool:
        """Whether the settings contain ``garbage_collection_threshold``, which has no effect without a limit."""
        return self.replay.settings.collection_threshold > 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "fits": self.fits,
            "fits_reason": self.fits_reason,
            "peaks": list(self.peaks),
            "baseline": self.baseline,
            "replay": self.replay.to_dict(),
        }


def fits_within(result: Replay, bounds: tuple[int, int] | None) -> tuple[bool | None, str]:
    """Return `SettingsResult.fits` and `SettingsResult.fits_reason` for bounds on the limit in bytes.

    A replay serves all requests in the same way for each limit up to the next limit at which a comparison with the
    limit would have another result. Therefore, a few replays are sufficient for all limits between the bounds.
    """
    if bounds is None:
        return None, "no limit is known"
    low, high = bounds
    work = result.work_limit
    least = work.left - _SHARE * work.seconds
    first = current = result.fits_with_limits(low)
    if high not in first.limits:
        current = result.fits_with_limits(high)
    if current.fits == first.fits:
        current = first
    while current.fits == first.fits is not None and high not in current.limits:
        if work.left < least:
            return None, "not all limits tested"
        current = result.fits_with_limits(current.limits.stop)
    if first.fits is None or current.fits is None:
        return None, first.reason or current.reason
    if current.fits != first.fits:
        return None, "depends on limit"
    return first.fits, f"estimate: {result.limit_reason}" if result.is_estimate(low) and first.fits else ""


def largest_insufficient_limit(recording: Recording, bounds: tuple[int, int]) -> int:
    """Return the largest limit between bounds, in bytes, within which the recorded settings may not be sufficient.

    The result is the upper bound if replays do not show a smaller value, or if the program may have freed cached
    segments that the replays do not free.
    """
    low, high = bounds
    if recording.has_uncertain_retries:
        return high
    work, settings = recording.work_limit, recording.settings
    least = work.left - _SHARE * work.seconds
    by_fraction = recording.by_fraction or settings.collection_threshold > 0
    while work.left >= least:
        result = run(recording, settings, limit=high, by_fraction=by_fraction, recorded_addresses=True)
        if result.failure is not None:
            return high
        high = result.allocator.same_limits.start - 1
        if high < low:  # the replays do not agree with the bounds
            return bounds[1]
    return high
