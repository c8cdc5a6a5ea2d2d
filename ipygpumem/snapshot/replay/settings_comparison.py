"""Comparison of a recording with replays that use other settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.blockers.blocked_request import blocked_request
from ipygpumem.snapshot.replay.blockers.segment_blockers import BlockedRequestAnalysis, analyze_blocked_request
from ipygpumem.snapshot.replay.memory_limit import default_device, parse_capacity
from ipygpumem.snapshot.replay.missing_data import older_memory
from ipygpumem.snapshot.replay.result import replay
from ipygpumem.snapshot.replay.run import replay_errors
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.settings_result import SettingsResult, fits_within, largest_insufficient_limit
from ipygpumem.snapshot.replay.verification import ReplayVerification, cached_verification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.snapshot_data import SnapshotData

SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
"""Settings that are compared by default, in addition to PyTorch's default settings."""
_LARGE_SEGMENT_VERSION = (2, 11)
"""First version of PyTorch with ``large_segment_size_mb``."""
_RANK_BY_FITS = {True: 0, None: 1, False: 2}
_WORTHWHILE = 0.05
"""Smallest relative saving for which a setting is recommended."""


@dataclass(frozen=True, slots=True, eq=False)
class SettingsComparison:
    """Comparison of several settings of the allocator for a recording.

    Attributes:
        verification: Comparison of the recording with a replay that uses the recorded settings.
        recorded: Result with the recorded settings.
        alternatives: Results with other settings, from best to worst.
        equivalent: Dict from settings that were not replayed to equivalent settings, with which every request is served
            in the same way: ``"default settings"``, ``"recorded settings"``, or the settings of an alternative.
        limit: Bounds in bytes on the limit on reserved memory to which ``fits`` refers: the given capacity, the memory
            that was available when the last request failed, or the limit that the program had set. The bounds are
            equal if the limit is known. None if no upper bound is known.
        capacity: Given capacity in bytes; None if there was none.
        blockers: Blocks in use that prevented the last failed request from being served or, if no request failed,
            those that caused reserved memory to reach its peak. If a capacity was given within which a request fails,
            the blocks that prevent this request from being served. None if the requests that failed in the recording
            are served within the capacity, if at least 95% of the reserved memory was in use, or if the replay does
            not reproduce the recording.
    """

    name: str
    device: int
    verification: ReplayVerification
    recorded: SettingsResult
    alternatives: tuple[SettingsResult, ...]
    equivalent: dict[str, str]
    limit: tuple[int, int] | None
    capacity: int | None
    blockers: BlockedRequestAnalysis | None

    @property
    def failed(self) -> bool:
        """Whether a request failed in the recording, so that its reserved memory is not that of a complete run."""
        return len(self.verification.recording.trace.events(Action.OOM)) > 0

    @property
    def reached_limit(self) -> bool:
        """Whether memory ran short, so that the recording does not show the memory reserved without a limit."""
        recording = self.verification.recording
        if recording.settings.collection_threshold and not self.failed:  # segments are also freed earlier
            return self.verification.run.allocator.retries + self.verification.run.unknown_retries > 0
        return recording.reached_limit

    @property
    def recommended(self) -> SettingsResult | None:
        """Best alternative that prevents the recorded failure or saves at least 5% of the reserved memory.

        If memory ran short in the recording, the alternative must lower the smallest sufficient limit by at least 5%.
        None if there is no such alternative, or if the error of the replay with the recorded settings is larger than
        the advantage.
        """
        return next(filter(self._is_worthwhile, self.alternatives), None)

    @property
    def may_be_worthwhile(self) -> bool:
        """Whether an alternative may be worthwhile, depending on memory reserved before the recording began."""
        if not older_memory(self.verification.recording):
            return False
        uncertain = (
            self.reached_limit
            or not item.replay.is_short
            or (item.baseline is not None and item.peaks[0] <= (1 - _WORTHWHILE) * item.baseline)
            for item in self.alternatives
        )
        return any(uncertain)

    def _is_worthwhile(self, item: SettingsResult) -> bool:
        error = self.verification.largest_error
        if item.replay.failure is not None or item.fits is False:
            return False
        if self.limit is not None and self.recorded.fits != item.fits:
            return item.fits is True and item.replay.smallest_capacity + error <= self.limit[0]
        baseline, value = item.baseline, item.peaks[1]
        if self.reached_limit:
            baseline, value = self.recorded.replay.smallest_capacity, item.replay.smallest_capacity
        saving = 0 if baseline is None else max(_WORTHWHILE * baseline, error)
        if baseline is None or baseline - value < saving:
            return False
        # without older memory, `smallest_capacity` has shown that this limit is sufficient
        is_certain = not (self.reached_limit and older_memory(self.verification.recording))
        return is_certain or item.replay.fits(int(baseline - saving)) is True

    @property
    def missing(self) -> int:
        """Number of bytes by which the limit would have to be raised for at least one of the settings to be sufficient.

        If only bounds on the limit are known, the value refers to the lower bound. It is 0 if `limit` is None or if at
        least one of the settings may be sufficient within the limit.
        """
        items = (self.recorded, *self.alternatives)
        if self.limit is None or any(item.fits is not False for item in items):
            return 0
        return max(min(item.replay.smallest_capacity for item in items) - self.limit[0], 0)

    def to_dict(self) -> dict[str, Any]:
        recommended = self.recommended
        return {
            "device": self.device,
            "exact": not self.verification.difference,
            "difference": self.verification.difference,
            "limit": None if self.limit is None else list(self.limit),
            "missing": self.missing,
            "blockers": None if self.blockers is None else self.blockers.to_dict(),
            "recommended": None if recommended is None else recommended.settings,
            "recorded": self.recorded.to_dict(),
            "equivalent": self.equivalent,
            "alternatives": [alternative.to_dict() for alternative in self.alternatives],
        }


def compare_settings(
    snapshot: SnapshotData,
    device: int | None = None,
    settings: Sequence[str] = (),
    capacity: int | str | None = None,
) -> SettingsComparison:
    """Replay the recording of a device, by default `default_device`, with several settings.

    ``settings`` are in the format of ``PYTORCH_ALLOC_CONF``; by default, they are the default settings and `SETTINGS`.
    ``capacity`` is a limit on reserved memory in bytes or as a string such as ``"24 GiB"``.
    """
    verification = cached_verification(
        snapshot, default_device(snapshot) if device is None else snapshot.timeline(device).device
    )
    texts = list(settings) or ["", *(text for text in SETTINGS if _exists(text, snapshot.own.torch_version))]
    limit, work = None if capacity is None else parse_capacity(capacity), verification.recording.work_limit
    with replay_errors(verification.recording), work.limited(work.seconds * max(1, len(texts) / len(SETTINGS))):
        return _compare(snapshot, verification, texts, limit)


def _compare(
    snapshot: SnapshotData, verification: ReplayVerification, texts: list[str], capacity: int | None
) -> SettingsComparison:
    recording = verification.recording
    by_fraction = capacity is None and recording.by_fraction
    recorded, limit = _recorded(snapshot, verification, capacity, by_fraction=by_fraction)

    def baseline(*, collects: bool) -> int | None:
        if capacity is None or not collects:
            return recorded.peaks[1]
        limited = replay(snapshot, recording.device, recording.settings.text(), capacity)
        return None if limited.failure is not None else min(limited.reserved_peak, recorded.peaks[1])

    def alternative(text: str) -> SettingsResult:
        collects = AllocatorSettings.parse(text).collection_threshold > 0
        minimum = limit[0] if collects and limit else None
        result = replay(snapshot, recording.device, text, minimum, by_fraction=by_fraction)
        peak = result.reserved_peak
        all_peaks = result.is_short or peak <= (1 - _WORTHWHILE) * recorded.peaks[1]
        peaks = result.reserved_range if all_peaks else (peak, peak)
        return SettingsResult(text, result, peaks, *fits_within(result, limit), baseline(collects=collects))

    effective = {text: recording.effective(AllocatorSettings.parse(text)) for text in dict.fromkeys(texts)}
    unchanged = recording.effective(recording.settings)
    different: dict[AllocatorSettings, str] = {}
    for text, setting in effective.items():
        if setting != unchanged:
            different.setdefault(setting, text)
    alternatives = [alternative(text) for text in different.values()]
    alternatives.sort(key=lambda item: (_RANK_BY_FITS[item.fits], item.peaks[1], item.replay.smallest_capacity))
    blocked = blocked_request(verification, capacity, fits=recorded.fits)
    return SettingsComparison(
        snapshot.name,
        recording.device,
        verification,
        recorded,
        tuple(alternatives),
        _equivalent(recording, effective, different),
        limit,
        capacity,
        None if blocked is None else analyze_blocked_request(snapshot, recording, *blocked),
    )


def _recorded(
    snapshot: SnapshotData, verification: ReplayVerification, capacity: int | None, *, by_fraction: bool
) -> tuple[SettingsResult, tuple[int, int] | None]:
    recording = verification.recording
    result = replay(snapshot, recording.device, by_fraction=by_fraction)
    failed = capacity is None and len(recording.trace.events(Action.OOM)) > 0
    low, high = recording.limit if capacity is None else (capacity, capacity)
    if failed and high is not None and not verification.difference:
        high = largest_insufficient_limit(recording, (low, high))
    limit = None if high is None else (low, high)
    peak = recording.timeline.reserved_peak or 0
    if failed or (capacity is None and limit is not None):
        return SettingsResult("", result, (peak, peak), not failed, "", peak), limit
    return SettingsResult("", result, (peak, peak), *fits_within(result, limit), peak), limit


def _equivalent(
    recording: Recording, effective: dict[str, AllocatorSettings], different: dict[AllocatorSettings, str]
) -> dict[str, str]:
    labels = {setting: text or "default settings" for setting, text in different.items()}
    labels[recording.effective(recording.settings)] = "recorded settings"
    labels[AllocatorSettings()] = "default settings"
    listed_settings = {"", recording.settings.text(), *different.values()}
    return {text: labels[setting] for text, setting in effective.items() if text not in listed_settings}


def _exists(setting: str, version: tuple[int, ...] | None) -> bool:
    return version is None or not setting.startswith("large_segment") or version >= _LARGE_SEGMENT_VERSION
