"""Results of replays and their accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import parse_size
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import AllocatorState
from ipygpumem.snapshot.model.timeline import BEFORE, Curve
from ipygpumem.snapshot.replay.memory_limit import excess, parse_capacity
from ipygpumem.snapshot.replay.missing_data import older_memory
from ipygpumem.snapshot.replay.run import FailedRequest, ReplayRun, replay_errors, run
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.simulated_state import simulated_state, with_recorded_segments
from ipygpumem.snapshot.replay.smallest_capacity import (
    LimitedReplays,
    SmallestCapacity,
    lowest_capacity,
    replays_within,
    smallest_capacity,
)
from ipygpumem.snapshot.replay.unused_memory import UnusedMemory, unused_memory
from ipygpumem.snapshot.replay.verification import cached_verification, grade_of_replay, reason_of_unknown_retries

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.work_limit import WorkLimit
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_PROBES = 8  # maximum number of limits that are tested below, and above, the smallest limit that bisection finds
_SIMULATED: dict[str, Any] = {"recorded": False}
"""Option of replays that do not reproduce the recorded addresses."""
_LONG = 100_000
"""Number of events from which a comparison of settings omits replays that hardly change its result."""
_REPLAYS_PER_COMPARISON = 100
"""Number of replays, in addition to searches for the smallest limit, that a comparison of settings requires."""


@dataclass(frozen=True, eq=False)
class Replay:
    """Result of replaying a recording with given settings and a given capacity. Sizes are in bytes.

    Attributes:
        device: Device index.
        settings: Settings of the replay.
        capacity: Limit on reserved memory; None for no limit.
        grade: ``"exact"``, provided that the program did not call `torch.cuda.empty_cache` when there was nothing to
            free, which is not recorded; ``"range"`` if the result depends on the unknown addresses of new segments; or
            ``"approximate"``.
        reason: Reason for a grade other than ``"exact"``; empty for an exact replay.
        reserved_peak: Maximum of the reserved memory.
        allocated_peak: Maximum of the total size of the blocks in use, including the block of each request in
            ``served``; a lower bound if the two values of `allocated_range` differ.
        failure: Request at which the replay ended: it fails with these settings but succeeded in the recording. If
            there is none, the last recorded out-of-memory error, provided that it also occurs in the replay; otherwise
            None. Earlier recorded errors are not considered, because the program continued after them.
        served: Events of recorded out-of-memory errors that would not have occurred. The memory of each of these
            requests is in use only at its event.
        retries: Number of requests that were tried again after all cached segments were freed, as ``num_alloc_retries``
            in `torch.cuda.memory_stats`. None for a replay as recorded if the recording does not determine the number.
        retries_reason: Reason why ``retries`` is None; otherwise empty.
        cuda_mallocs: Number of segments or ranges that were allocated or mapped.
        cuda_frees: Number of segments or ranges that were freed or unmapped.
        limit_reason: Reason why `smallest_capacity` and results of `fits` can be estimates (see `is_estimate`). It is
            empty for the grade ``"range"`` and can be non-empty for an exact replay with the recorded settings.
    """

    device: int
    settings: AllocatorSettings
    capacity: int | None
    grade: str
    reason: str
    reserved_peak: int
    allocated_peak: int
    failure: FailedRequest | None
    served: tuple[int, ...]
    retries: int | None
    retries_reason: str
    cuda_mallocs: int
    cuda_frees: int
    limit_reason: str
    _run: ReplayRun = field(repr=False)
    _recorded: bool = field(repr=False)
    _by_fraction: bool = field(repr=False)
    _sufficient: list[int] = field(default_factory=list, repr=False)

    @cached_property
    def reserved(self) -> Curve:
        """Reserved memory after each event. After a failure that ended the replay, the curve is constant."""
        values = self._run.reserved(recorded=self._recorded)
        return Curve(self.device, "reserved", self._run.recording.trace.time, values)

    @cached_property
    def allocated(self) -> Curve:
        """Total size of the blocks in use after each event. After a failure that ended the replay, it is constant."""
        return Curve(self.device, "allocated", self._run.recording.trace.time, self._run.allocated())

    @cached_property
    def reserved_range(self) -> tuple[int, int]:
        """Lowest and highest peak of reserved memory for several possible addresses.

        These are increasing and decreasing addresses of new segments and, if memory was reserved before the recording
        began, new addresses of the blocks in this memory, without its free memory. Other addresses, which the driver
        can choose, may lead to other peaks. In an exact replay, both values are `reserved_peak`.
        """
        if self.grade == "exact":
            return self.reserved_peak, self.reserved_peak
        peaks = [self.reserved_peak]
        if any(event.action == Action.SEGMENT_ALLOC for event in self._run.allocator.events):
            peaks.append(self._run_again(**_SIMULATED, descending=True).allocator.peak)
        if older_memory(self._run.recording):
            peaks.append(self.without_older_memory().allocator.peak)
        return min(peaks), max(peaks)

    def without_older_memory(self) -> ReplayRun:
        """Replay again with new addresses of the blocks from before the recording, without free memory around them."""
        return self._run_again(**_SIMULATED, keep_older=False)

    @cached_property
    def allocated_range(self) -> tuple[int, int]:
        """Lowest and highest possible `allocated_peak`: blocks from before the recording may be up to 1 MiB larger."""
        return self.allocated_peak, int(self._run.allocated(largest=True).max())

    @property
    def is_short(self) -> bool:
        """Whether the recording is short enough for a comparison of settings to replay it many times."""
        recording = self._run.recording
        return len(recording.trace) < _LONG and _REPLAYS_PER_COMPARISON * self._run.cost < self.work_limit.seconds

    @property
    def smallest_capacity(self) -> int:
        """Smallest limit on reserved memory for which a replay served all requests.

        The limit can be below the peak of reserved memory, because PyTorch frees cached segments before a request
        fails. For most recordings of fewer than 100,000 events, replays confirmed that a limit that is 2 MiB lower, and
        a few limits below it, are not sufficient. For other recordings, the value is an upper bound. A larger limit is
        not always sufficient: see `failing_capacity`.
        """
        return min([self._capacities.limit, *self._sufficient])

    @property
    def failing_capacity(self) -> int | None:
        """Largest limit above `smallest_capacity` for which a replay failed; None if no tested limit failed."""
        return self._capacities.failing

    @cached_property
    def _capacities(self) -> SmallestCapacity:
        return smallest_capacity(
            partial(self._run_again, **_SIMULATED),
            self._sufficient,
            self._lowest_capacity,
            self.reserved_peak if self.is_as_recorded(self.reserved_peak) else None,
            probes=min(_PROBES, 2 * _LONG // len(self._run.recording.trace)) if self.is_short else None,
            work=self.work_limit,
        )

    def fits(self, capacity: int | str) -> bool | None:
        """Return whether all requests are served within ``capacity``, in bytes or as a string such as ``"24 GiB"``.

        The result is None if it depends on unknown addresses, on memory that was reserved before the recording began,
        or on the size of a failed request with ``roundup_power2_divisions``. If `is_short` is False, only one order of
        addresses is replayed. `is_estimate` returns whether the result is an estimate.
        """
        return self.fits_with_limits(parse_size(capacity)).fits

    def fits_with_limits(self, capacity: int) -> LimitedReplays:
        """Return the result of `fits`, the reason if it is unknown, and the limits for which the result is the same."""
        if self.is_as_recorded(capacity):
            return LimitedReplays(fits=True, reason="", limits=range(self.reserved_peak, 1 << 62))
        result = replays_within(
            self._run.recording,
            self.settings,
            capacity,
            self._lowest_capacity,
            recorded=self._recorded,
            by_fraction=self._by_fraction,
            all_orders=self.is_short,
        )
        if result.fits:
            self._sufficient.append(capacity)
        return result

    def is_estimate(self, capacity: int) -> bool:
        """Return whether the result of `fits` for a limit in bytes is an estimate."""
        return bool(self.limit_reason) and not self.is_as_recorded(capacity)

    @cached_property
    def _lowest_capacity(self) -> int:
        return lowest_capacity(self._run, self.settings) - excess(self.settings) * self._by_fraction

    @property
    def work_limit(self) -> WorkLimit:
        """Limit on the work of replays of the recording."""
        return self._run.recording.work_limit

    def is_as_recorded(self, capacity: int) -> bool:
        """Return whether it is known that all requests would be served within a limit at their recorded addresses."""
        by_fraction = self._by_fraction and (self.settings.expandable or self.settings.collection_threshold > 0)
        depends = by_fraction or self._run.recording.reached_limit
        return self._recorded and not self.reason and not depends and capacity >= self.reserved_peak

    @cached_property
    def waste(self) -> UnusedMemory:
        """Reserved memory that contains no requested bytes at the peak of reserved memory."""
        return unused_memory(self._run, self.state(int(self._run.reserved().argmax()) - 1))

    def state(self, event: int) -> AllocatorState:
        """Return the simulated segments and blocks right after an event, with the true sizes and pools.

        In an exact replay with the recorded settings, segments change at their own events. Otherwise, segments that
        were freed together are freed at the first event, and new segments appear with their block. The index of a pool
        deleted before the end of the recording is -1. A block whose ``row`` is -1 serves the request of a recorded
        out-of-memory error. After a failure that ended the replay, the state is constant.

        Raises `OptionError` if the device has no such event.
        """
        recording = self._run.recording
        if not BEFORE <= event < len(recording.trace):
            raise OptionError(f"device {self.device} has no event {event}")
        with replay_errors(recording):
            state = simulated_state(self._run_again(end=event + 1), event)
        if self._recorded and not self.reason and event >= 0 and recording.following[event] > event:
            return with_recorded_segments(state, recording)
        return state

    def to_dict(self) -> dict[str, Any]:
        """Return the results without the curves as JSON-serializable data."""
        failure = self.failure
        return {
            **{name: getattr(self, name) for name in ("device", "capacity", "grade", "reason", "reserved_peak")},
            **{name: getattr(self, name) for name in ("allocated_peak", "smallest_capacity", "failing_capacity")},
            **{name: getattr(self, name) for name in ("retries", "retries_reason", "cuda_mallocs", "cuda_frees")},
            "settings": self.settings.text(),
            "reserved_range": list(self.reserved_range),
            "allocated_range": list(self.allocated_range),
            "failure": None if failure is None else {name: getattr(failure, name) for name in failure.__slots__},
            "served": list(self.served),
            "waste": self.waste.to_dict(),
        }

    def _run_again(self, **options: Any) -> ReplayRun:
        defaults = {"limit": self.capacity, "by_fraction": self._by_fraction, "recorded": self._recorded}
        return run(self._run.recording, self.settings, **(defaults | options))


def replay(
    snapshot: SnapshotData,
    device: int | None = None,
    settings: str | None = None,
    capacity: int | str | None = None,
    *,
    by_fraction: bool = False,
) -> Replay:
    """Replay the recording of a device. See `Snapshot.replay` for all arguments except ``by_fraction``, and for errors.

    ``by_fraction``: Whether limits are set by ``set_per_process_memory_fraction``. This is always assumed if the
    settings contain ``garbage_collection_threshold``.
    """
    verification = cached_verification(snapshot, snapshot.timeline(device).device)
    recording = verification.recording
    limit = None if capacity is None else parse_capacity(capacity)
    allocator_settings = recording.settings if settings is None else AllocatorSettings.parse(settings)
    if settings is not None and allocator_settings.fraction is not None:
        raise OptionError("per_process_memory_fraction is not replayed: specify the capacity instead")
    if settings is not None and allocator_settings.collection_threshold and limit is None:
        raise OptionError("garbage_collection_threshold requires a memory limit: specify the capacity, such as 24 GiB")
    as_recorded = settings is None and limit is None
    by_fraction = by_fraction or allocator_settings.collection_threshold > 0
    result = (
        verification.run if as_recorded else run(recording, allocator_settings, limit=limit, by_fraction=by_fraction)
    )
    grade, reason = grade_of_replay(recording, verification, allocator_settings)
    limit_reason = reason if grade == "approximate" else ""
    if as_recorded and not verification.difference:
        grade, reason = "exact", ""
    unknown_retries = reason_of_unknown_retries(verification) if as_recorded else ""
    events = result.allocator.events
    mallocs = sum(event.action in (Action.SEGMENT_ALLOC, Action.MAP) for event in events)
    return Replay(
        device=recording.device,
        settings=allocator_settings,
        capacity=limit,
        grade=grade,
        reason=reason,
        reserved_peak=result.allocator.peak,
        allocated_peak=int(result.allocated().max()),
        failure=result.failure,
        served=tuple(result.served),
        retries=None if unknown_retries else result.allocator.retries,
        retries_reason=unknown_retries,
        cuda_mallocs=mallocs,
        cuda_frees=len(events) - mallocs,
        limit_reason=limit_reason,
        _run=result,
        _recorded=as_recorded,
        _by_fraction=by_fraction,
    )
