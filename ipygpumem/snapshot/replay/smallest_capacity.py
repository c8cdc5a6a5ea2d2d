"""Replays within limits of reserved memory, and search for the smallest limit within which all requests are served.

The limits that are sufficient need not form one range: with a larger limit, cached segments are freed at other times,
and the free blocks that remain may be less suitable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.timeline import BEFORE
from ipygpumem.snapshot.replay.missing_data import depends_on_requested_size, older_memory, with_smallest_requests
from ipygpumem.snapshot.replay.run import run as replay_requests

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.replay.run import ReplayRun
    from ipygpumem.snapshot.replay.settings import AllocatorSettings
    from ipygpumem.snapshot.replay.work_limit import WorkLimit

_SHARE = 1 / 16  # fraction of the work limit that a search may use
STEP = 2 * MIB
"""Accuracy of the search in bytes. The sizes of almost all segments are multiples of this value."""


class LimitedReplays(NamedTuple):
    """Result of replays within a limit on reserved memory.

    Attributes:
        fits: Whether all requests are served; None if it is unknown.
        reason: Reason why ``fits`` is None; otherwise empty.
        limits: Limits in bytes for which the result is the same.
    """

    fits: bool | None
    reason: str
    limits: range


class SmallestCapacity(NamedTuple):
    """Result of a search for the smallest limit on reserved memory. Sizes are in bytes.

    Attributes:
        limit: Smallest limit that was found to be sufficient.
        failing: Largest limit above ``limit`` that was found to be insufficient; None if no such limit was found.
    """

    limit: int
    failing: int | None


def smallest_capacity(
    replay_within: Callable[..., ReplayRun],
    sufficient_limits: list[int],
    lowest: int,
    recorded: int | None,
    *,
    probes: int | None,
    work: WorkLimit,
) -> SmallestCapacity:
    """Return the smallest limit that is sufficient. All limits are in bytes.

    Args:
        replay_within: Function that replays the requests with ``limit=...`` in bytes and other options of `run`.
        sufficient_limits: Limits that are known to be sufficient.
        lowest: Limit below which no limit is sufficient.
        recorded: Limit from which the requests are served at their recorded addresses; None if there is none.
        probes: Number of smaller limits, and of larger limits, that are tested after the search by bisection. If it is
            None, only an estimate is tested.
        work: Limit on the work of replays. When 1/16 of this limit has been used, the search ends with an upper bound.
    """

    def sufficient(limit: int) -> int | None:
        """Return a limit that is sufficient, or None if a request fails within ``limit``.

        The result is the smallest limit whose replay is identical to that with ``limit``.
        """
        if recorded is not None and limit >= recorded:
            return recorded
        if limit < lowest:
            return None
        limits, fits = replay_once(limit)
        return limits.start if fits else None

    replay_once = _replay_once(replay_within)

    # raising the limit at each failure is a good estimate, but cached segments were freed more often than necessary
    estimate = min([replay_within(limit=lowest, raises_limit=True).allocator.limit, *sufficient_limits])
    with work.limited():
        least = work.left - _SHARE * work.seconds
        passing, failing = sufficient(estimate), lowest - 1
        if passing is None or probes is not None:
            end = recorded if recorded is not None else replay_within(limit=None).allocator.same_limits.start
        if passing is None:
            passing, failing = end, estimate if estimate < end else failing
        if probes is None:
            return SmallestCapacity(passing, None)
        smaller: int | None = passing
        while smaller is not None:
            passing = smaller
            while passing - failing > STEP and work.left > least:
                middle = (passing + failing) // 2 // STEP * STEP
                middle = middle if failing < middle < passing else (passing + failing) // 2
                result = sufficient(middle)
                passing, failing = (passing, middle) if result is None else (result, failing)
            tested = [passing - number * STEP for number in range(1, probes + 1)]
            distance = (passing - lowest) // (probes + 1)
            far = ((passing - number * distance) // STEP * STEP for number in range(1, probes + 1))
            tested += [limit for limit in far if limit < passing - probes * STEP]
            smaller_limits = (sufficient(limit) for limit in tested if work.left > least)
            smaller, failing = next((limit for limit in smaller_limits if limit is not None), None), lowest - 1
        larger = {passing + number * STEP for number in range(1, probes + 1)}
        larger |= {passing + (end - passing) * number // (probes + 1) for number in range(1, probes + 1)}
        larger_first = sorted((limit for limit in larger if passing < limit < end), reverse=True)
        failing_limits = (limit for limit in larger_first if work.left > least and sufficient(limit) is None)
        return SmallestCapacity(passing, next(failing_limits, None))


def _replay_once(replay_within: Callable[..., ReplayRun]) -> Callable[[int], tuple[range, bool]]:
    """Return a function that replays the requests once for all limits for which the replays are identical.

    The function returns these limits, and whether they are sufficient.
    """
    known: list[tuple[range, bool]] = []

    def replay_once(limit: int) -> tuple[range, bool]:
        for limits, fits in known:
            if limit in limits:
                return limits, fits
        result = replay_within(limit=limit)
        known.append((result.allocator.same_limits, result.failure is None))
        return known[-1]

    return replay_once


def lowest_capacity(run: ReplayRun, settings: AllocatorSettings) -> int:
    """Return a lower bound on the sufficient limits in bytes: the peak of the total rounded size of blocks in use.

    ``run`` is a replay with ``settings``.
    """
    recording, allocations = run.recording, run.recording.allocations
    rounded = np.minimum(settings.round(allocations.size), np.asarray(run.sizes, np.int64))
    requested = np.where(allocations.free_requested >= BEFORE, allocations.free_requested + 1, allocations.end)
    ends = np.minimum(allocations.end, requested)  # a retry completes frees that wait for other streams
    in_use = replace(allocations, end=ends).in_use(rounded, len(recording.trace))
    last = recording.last_failed
    if last is not None and last in run.served:
        in_use[last + 1] += recording.failed_requests(settings)[last][1]
    return int(in_use.max())


def replays_within(
    recording: Recording,
    settings: AllocatorSettings,
    limit: int,
    lowest: int,
    *,
    recorded: bool,
    by_fraction: bool,
    all_orders: bool,
) -> LimitedReplays:
    """Replay a recording within a limit on reserved memory in bytes, with different possible addresses.

    Memory that was reserved before the recording began is kept in one replay. In another replay, only the blocks in use
    are allocated again, at new addresses. A failure is uncertain with settings other than those of the recording, or
    within less memory than was reserved at its start, because the blocks may have other addresses.

    Args:
        recording: Recording whose requests are replayed.
        settings: Settings of the allocator.
        limit: Limit in bytes.
        lowest: Lower bound on the sufficient limits in bytes.
        recorded: Whether the settings are those of the recording.
        by_fraction: As in `SimulatedAllocator`.
        all_orders: Whether new segments get increasing addresses in one replay, and decreasing addresses in another.
    """
    limits = range(lowest) if limit < lowest else range(lowest, 1 << 62)

    def serves(recording: Recording = recording, *, keep_older: bool = True, descending: bool = False) -> bool:
        nonlocal limits
        result = replay_requests(
            recording, settings, limit=limit, by_fraction=by_fraction, keep_older=keep_older, descending=descending
        )
        same = result.allocator.same_limits
        limits = range(max(limits.start, same.start), min(limits.stop, same.stop))
        return result.failure is None

    fits, reason = False, ""
    if limit >= lowest:
        fits = serves()
        if all_orders and not settings.expandable and serves(descending=True) != fits:
            reason = "depends on addresses"
        elif older := older_memory(recording):
            below = range(limits.start, min(limits.stop, older))
            limits = below if limit < older else range(max(limits.start, older), limits.stop)
            uncertain = not fits and (not recorded or limit < older)
            reason = "depends on older memory" * (uncertain or serves(keep_older=False) != fits)
    if not fits and not reason and depends_on_requested_size(recording, settings):
        reason = "depends on size" * serves(with_smallest_requests(recording))
    return LimitedReplays(None if reason else fits, reason, limits)
