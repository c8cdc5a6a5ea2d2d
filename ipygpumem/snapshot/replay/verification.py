"""Comparison of a recording with a replay that uses the recorded settings, and the accuracy of other replays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.units import many, size
from ipygpumem.snapshot.model.columns import Action, distinct
from ipygpumem.snapshot.replay.missing_data import depends_on_requested_size, older_memory, pending_frees
from ipygpumem.snapshot.replay.recording import RELEASES, Recording, ReplayError
from ipygpumem.snapshot.replay.run import ReplayRun, replay_errors, run
from ipygpumem.snapshot.replay.settings import AllocatorSettings

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_PRIME = 1_000_003
_UNCERTAIN_RETRIES = (
    "without the stacks of frees, torch.cuda.empty_cache() cannot be distinguished from the retry of a request"
)
_SEGMENT_EVENTS = (Action.SEGMENT_ALLOC, Action.MAP, *RELEASES)


@dataclass(frozen=True, slots=True)
class ReplayVerification:
    """Comparison of a recording with a replay that uses the recorded settings.

    Attributes:
        difference: Description of the first difference; empty if there is none.
        largest_error: Largest difference in reserved memory in bytes, over all events.
    """

    recording: Recording
    run: ReplayRun
    difference: str
    largest_error: int


def verify(recording: Recording) -> ReplayVerification:
    result = run(recording, recording.settings, recorded=True)
    pools = (
        " in the default pool, but its pool is unknown" * recording.may_be_private(event) for event in result.served
    )
    differences: list[tuple[int, str]] = [
        (event, f"the failed request would succeed{pool}") for event, pool in zip(result.served, pools, strict=True)
    ]
    allocations, trace = recording.allocations, recording.trace
    addresses = np.asarray(result.addresses, np.int64)
    wrong = np.flatnonzero(addresses != allocations.address)
    if len(wrong):
        row = wrong[np.argmin(allocations.start[wrong])]
        amount = size(int(allocations.size[row]))
        differences.append((int(allocations.start[row]), f"an allocation of {amount} has a different address"))
    recorded_events, simulated = _ordered(recording.segment_events), _ordered(result.allocator.events)
    for (action, address, nbytes, event), simulated_event in zip(recorded_events, simulated, strict=False):
        if (action, address, nbytes) != simulated_event[:3]:
            differences.append((event, f"a segment of {size(nbytes)} is allocated or freed differently"))
            break
    else:
        if len(recorded_events) != len(simulated):
            event = (
                recorded_events[len(simulated)][3]
                if len(recorded_events) > len(simulated)
                else result.event_of(simulated[-1][3])
            )
            differences.append(
                (event, f"the number of segment events differs by {abs(len(recorded_events) - len(simulated)):,}")
            )
    sizes = np.asarray(result.sizes, np.int64)
    final = allocations.block >= 0
    if (sizes[final] != recording.snapshot.blocks.size[allocations.block[final]]).any():
        differences.append((len(trace) - 1, "the sizes of the blocks at the end differ"))
    curve = recording.timeline.reserved
    error = first = 0
    if curve is not None:
        departure = result.reserved(recorded=True)
        departure -= curve.bytes
        error = int(np.abs(departure, out=departure).max())
        first = max(int((departure > 0).argmax()) - 1, 0)
    if not differences and error:
        differences.append((first, f"reserved memory differs by up to {size(error)}"))
    event, text = min(differences, default=(0, ""))
    return ReplayVerification(recording, result, f"event {event:,}: {text}" if text else "", error)


def _ordered(events: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    groups = groupby(events, lambda event: event[0] in RELEASES)
    return [event for released, group in groups for event in (sorted(group) if released else group)]


def expected_seconds(timeline: Timeline) -> float:
    """Return an estimate of the duration of a replay in seconds, which is usually too high.

    A replay takes a long time if a file has very many blocks or segments. Each allocation or free moves items in a list
    of free blocks. Each release of segments and each failed request examines the free blocks of all pools.
    """
    allocations, trace = timeline.allocations, timeline.trace
    pools = 2 * len(distinct(trace.stream * _PRIME + trace.pool))
    change = np.zeros(len(trace) + 2, np.int64)
    np.add.at(change, allocations.start + 1, 1)
    np.subtract.at(change, np.minimum(allocations.end, len(trace)) + 1, 1)
    live = int(np.cumsum(change).max())
    segments = len(trace.events(*_SEGMENT_EVENTS, Action.OOM))
    return 1e-6 * len(allocations) + 4e-10 * len(allocations) * live + 2e-7 * segments * (segments + live + pools)


def cached_verification(snapshot: SnapshotData, device: int, seconds: float | None = None) -> ReplayVerification:
    """Return the verification of a device's recording, which is computed once.

    ``seconds`` is the approximate limit of the duration, by default `WorkLimit.replay_seconds`. Raises `ReplayError` if
    the recording cannot be replayed.
    """
    if device not in snapshot.verifications:
        recording = Recording(snapshot, device)
        if recording.problem:
            raise recording.error(recording.problem)
        limit = recording.work_limit
        try:
            with replay_errors(recording), limit.limited(limit.replay_seconds if seconds is None else seconds):
                snapshot.verifications[device] = verify(recording)
        except ReplayError as error:  # a failed verification is not repeated either
            snapshot.verifications[device] = error
    result = snapshot.verifications[device]
    if isinstance(result, ReplayError):
        raise result.with_traceback(None)
    return result


def _unknown_of_failed_request(recording: Recording, settings: AllocatorSettings) -> list[str]:
    reasons = []
    if recording.last_failed is not None and recording.may_be_private(recording.last_failed):
        reasons.append("the file does not contain the pool of the failed request, which may be a private pool")
    if depends_on_requested_size(recording, settings):
        reasons.append("the size of the failed request is known only as rounded by the recorded settings")
    return reasons


def reason_of_unknown_retries(verification: ReplayVerification) -> str:
    recording = verification.recording
    if verification.difference:
        return "the replay with the recorded settings differs from the recording"
    if recording.has_uncertain_retries:
        return _UNCERTAIN_RETRIES
    if verification.run.unknown_retries == 0:
        return ""
    if recording.has_private_pools:
        return "there are private pools, and PyTorch does not always try a request again while they are used"
    return "the recording does not show whether other rules of the allocator freed all cached segments"


def grade_of_replay(
    recording: Recording, verification: ReplayVerification, settings: AllocatorSettings
) -> tuple[str, str]:
    if verification.difference:
        error = size(verification.largest_error)
        reason = f"the recorded settings do not reproduce the recording ({verification.difference}; "
        return "approximate", f"{reason}reserved memory differs by up to {error})"
    reasons = []
    if older := older_memory(recording):
        reasons.append(f"the recording began after {size(older)} had been reserved")
    if pending := len(pending_frees(recording)[0]):
        reasons.append(f"{many(pending, 'free')} waited for another stream for an unknown time")
    if recording.has_private_pools:
        reasons.append("there are private pools, whose use by CUDA graphs or a MemPool is unknown")
    reasons += _unknown_of_failed_request(recording, settings)
    if recording.has_uncertain_retries:
        reasons.append(_UNCERTAIN_RETRIES)
    if any(not isinstance(item, int) and not item.retry for item in recording.special):
        reasons.append("calls to torch.cuda.empty_cache() that freed no memory are not recorded")
    if reasons:
        return "approximate", "; ".join(reasons)
    if settings.expandable:
        return "exact", ""
    return "range", "the addresses of new segments are unknown"
