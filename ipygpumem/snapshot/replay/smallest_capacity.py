"""Search for the smallest limit of reserved memory under which a recording succeeds.

The limits that are sufficient need not form one range: with a larger limit, cached segments are freed at other times,
and the free blocks that remain may be less suitable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipygpumem.core.units import MIB

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.run import ReplayRun
    from ipygpumem.snapshot.replay.settings import AllocatorSettings
    from ipygpumem.snapshot.replay.work_limit import WorkLimit

_SHARE = 1 / 16  # fraction of the work limit that a search may use
STEP = 2 * MIB
"""Accuracy of the search in bytes. The sizes of almost all segments are multiples of it."""


class SmallestCapacity(NamedTuple):
    """Result of a search for the smallest limit of reserved memory. Sizes are in bytes.

    Attributes:
        limit: Smallest limit that was found to be sufficient.
        failing: Largest limit above it that was found to be insufficient; None if all tested limits were sufficient.
    """

    limit: int
    failing: int | None


def smallest_capacity(
    sufficient: Callable[[int], int | None],
    estimate: int,
    lowest: int,
    highest: Callable[[], int],
    *,
    probes: int | None,
    work: WorkLimit,
) -> SmallestCapacity:
    """Return the smallest limit that is sufficient. All limits are in bytes.

    Args:
        sufficient: Replays the requests within a limit, and returns the smallest limit for which this replay would be
            the same; None if a request fails.
        estimate: Limit that is probably sufficient.
        lowest: Lower bound of the bisection. Only a few limits below it are tested.
        highest: Returns a limit that is certainly sufficient.
        probes: Number of smaller limits, and of larger ones, that are tested after the search by bisection. None
            for a single test of ``estimate``.
        work: Limit on the work of replays. When a share of it has been used, the search ends with an upper bound.
    """
    with work.limited():
        least = work.left - _SHARE * work.seconds
        passing, failing = sufficient(estimate), lowest - 1
        if passing is None or probes is not None:
            end = highest()
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


def lowest_capacity(run: ReplayRun, settings: AllocatorSettings) -> int:
    """Return a lower bound of the sufficient limits in bytes: the peak of the total rounded size of the requests.

    ``run``: Replay with ``settings``.
    """
    recording, allocations = run.recording, run.recording.allocations
    rounded = np.minimum(settings.round(allocations.size), np.asarray(run.sizes, np.int64))
    in_use = allocations.in_use(rounded, len(recording.trace))
    last = recording.last_failed
    if last is not None and last in run.served:
        in_use[last + 1] += recording.failed_request(last, settings)[1]
    return int(in_use.max())
