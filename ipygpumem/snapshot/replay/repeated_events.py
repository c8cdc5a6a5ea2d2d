"""Replay of recorded events other than allocations and frees: freed segments, and requests that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.free_blocks import ADDRESS_MASK
from ipygpumem.snapshot.replay.recording import RELEASES, ReleasedSegments
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.run import ReplayRun


def repeat_special(result: ReplayRun, operation: int, *, recorded: bool) -> None:
    """Free cached segments, or repeat the request of a recorded out-of-memory error.

    ``operation`` is an item of `Recording.operations` that refers to ``Recording.special``.
    """
    item = result.recording.special[operation - len(result.recording.allocations)]
    if isinstance(item, int):
        _repeat_failed_request(result, item, operation, recorded=recorded)
    else:
        _release_again(result, item, operation, recorded=recorded)


def _release_again(result: ReplayRun, item: ReleasedSegments, operation: int, *, recorded: bool) -> None:
    recording, allocator = result.recording, result.allocator
    trace, events = recording.trace, slice(item.first, item.first + item.count)
    partial = allocator.settings.max_split_size is not None or allocator.settings.collection_threshold > 0
    if recorded and item.retry and partial and (trace.action[events] == Action.SEGMENT_FREE).all():
        addresses = trace.address[events].tolist()
        is_retry = _is_retry(result, addresses, events.stop)
        allocator.release(addresses, operation)  # how much was needed depends on the limit
        allocator.retries += is_retry is True
        result.unknown_retries += is_retry is None
    elif recorded or not item.retry:
        allocator.release_cached(operation, item.private, only_private=item.only_private)
        allocator.retries += item.retry
    if recorded and item.retry and trace.action[events.stop] != Action.OOM:
        allocator.skip_next_search()


def _is_retry(result: ReplayRun, addresses: list[int], following: int) -> bool | None:
    """Return whether a request was tried again after the segments at ``addresses`` were freed; None if it is unknown.

    A retry frees all cached segments. Garbage collection, and the release of segments of at least ``max_split_size``,
    are not retries, but they can also free all of them.
    """
    recording, allocator = result.recording, result.allocator
    trace, settings, (limit, upper) = recording.trace, allocator.settings, recording.limit
    cached = allocator.cached_segments()
    if not {key & ADDRESS_MASK for key in cached}.issubset(addresses):
        return False
    if trace.action[following] == Action.OOM:
        return not settings.throws
    row = next(iter(recording.operations[np.searchsorted(recording.events, following) :][:1].tolist()), -1)
    if not 0 <= row < len(recording.allocations):  # the request is not recorded
        return None
    (rounded,) = settings.round(recording.allocations.size[[row]]).tolist()
    if settings.collection_threshold == 0:
        keys, is_enough = allocator.oversize(int(recording.pool_of[row]) + (rounded <= SMALL), rounded)
        return not is_enough or set(keys) != cached
    # collection lowers reserved memory to this share of the limit, or frees all cached segments, as a retry does
    if settings.segment_size(rounded) <= (1 - settings.collection_threshold) * limit:
        return False
    is_all = {key for _, key in allocator.segments_to_collect(limit)} == cached
    is_known = settings.max_split_size is None and (limit == upper or not is_all)
    return not is_all if is_known else None


def _repeat_failed_request(result: ReplayRun, event: int, operation: int, *, recorded: bool) -> None:
    recording, allocator = result.recording, result.allocator
    pool, rounded = recording.failed_request(event, allocator.settings)
    is_last = event == recording.last_failed
    if recorded and not allocator.fits(pool, rounded):
        if recording.trace.action[event - 1] not in RELEASES:
            allocator.retries += not allocator.settings.throws
        if is_last:
            result.fail(event, rounded)
        return
    raises_limit, allocator.raises_limit = allocator.raises_limit, allocator.raises_limit and is_last
    try:
        block = allocator.allocate(pool, rounded, operation)
        allocator.free(pool, *block)
        result.served[event] = block
    except SimulatedOutOfMemoryError:
        if is_last:
            result.fail(event, rounded)
    allocator.raises_limit = raises_limit
