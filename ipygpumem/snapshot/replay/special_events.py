"""Replay of recorded events other than allocations and frees: freed segments, and requests that failed."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.free_blocks import ADDRESS_MASK
from ipygpumem.snapshot.replay.missing_data import completes_free, pending_frees
from ipygpumem.snapshot.replay.recording import RELEASES, ReleasedSegments
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipygpumem.snapshot.replay.run import ReplayRun

_STEPS_PER_FAILED_REQUEST, _STEPS_PER_EVENT = 120, 100
"""Steps that are counted for a failed request, and for each event that is examined before it."""


def repeat_special(result: ReplayRun, operation: int, *, recorded: bool) -> None:
    """Free cached segments, or repeat the request of a recorded out-of-memory error.

    ``operation`` is an item of `Recording.operations` that refers to ``Recording.special``.
    """
    number = operation - len(result.recording.allocations)
    item = result.recording.special[number]
    if isinstance(item, int):
        _repeat_failed_request(result, item, operation, recorded=recorded)
    else:
        previous = result.recording.special[number - 1] if number else None
        is_counted = isinstance(previous, ReleasedSegments) and previous.request == item.request
        _release_again(result, item, operation, recorded=recorded, is_counted=is_counted)


def completion_of_pending_frees(result: ReplayRun, pools: Sequence[int]) -> Callable[[int], None]:
    """Return a function that completes pending frees before a retry, because a retry waits for all streams.

    ``pools`` contains the pool index of each allocation.
    """
    rows, requested, ends = pending_frees(result.recording)

    def complete(request: int) -> None:
        event = result.event_of(request)
        for row in rows[(requested < event) & (ends > event)].tolist():
            if row not in result.completed:
                result.completed[row] = event
                result.allocator.free(pools[row], result.addresses[row], result.sizes[row])

    return complete


def _release_again(
    result: ReplayRun, item: ReleasedSegments, operation: int, *, recorded: bool, is_counted: bool
) -> None:
    recording, allocator = result.recording, result.allocator
    trace, events = recording.trace, slice(item.first, item.first + item.count)
    partial = allocator.settings.max_split_size is not None or allocator.settings.collection_threshold > 0
    is_retry: bool | None = item.retry and not allocator.settings.throws
    if recorded and item.retry and partial and (trace.action[events] == Action.SEGMENT_FREE).all():
        addresses = trace.address[events].tolist()
        if is_retry:
            is_retry = _is_retry(result, addresses, item)
        allocator.release(addresses, operation)  # how much was needed depends on the limit
    elif recorded or not item.retry:
        allocator.release_cached(operation, item.private, only_private=item.only_private)
    is_failed = trace.action[item.request : item.request + 1].tolist() == [Action.OOM]
    if recorded and item.retry and not is_failed:
        allocator.skip_next_search()
    if recorded and not (is_failed or is_counted):  # `_repeat_failed_request` counts the retry of a failed request
        allocator.retries += is_retry is True
        result.unknown_retries += is_retry is None


def _is_retry(result: ReplayRun, addresses: list[int], item: ReleasedSegments) -> bool | None:
    """Return whether a request was tried again after the segments at ``addresses`` were freed; None if it is unknown.

    A retry frees all cached segments. Garbage collection, and the release of segments of at least ``max_split_size``,
    are not retries, but they can also free all cached segments.
    """
    recording, allocator = result.recording, result.allocator
    settings, threshold = allocator.settings, allocator.settings.collection_threshold
    # a retry need not free the segments of all pools; cross-stream frees are also completed within a retry
    completes_frees = item.request > item.first + item.count  # only a retry does so after segments were freed
    if recording.has_private_pools or completes_frees or _completed_frees(result, item.first):
        return (completes_frees and not recording.has_private_pools) or None
    cached = allocator.cached_segments()
    if {key & ADDRESS_MASK for _, key in cached} != set(addresses):
        result.shows_collection |= settings.max_split_size is None
        return False
    if any(allocator.pools[number].small for number, _ in cached):  # only a retry frees them
        return True
    row = next(iter(recording.operations[np.searchsorted(recording.events, item.request) :][:1].tolist()), -1)
    if not 0 <= row < len(recording.allocations):  # the request is not recorded
        return None
    (rounded,) = settings.round(recording.allocations.size[[row]]).tolist()
    if threshold > 0:
        return _is_retry_after_collection(result, cached, rounded)
    pool = int(recording.pool_of[row]) + (rounded <= SMALL)
    keys, is_enough = allocator.oversize(pool, rounded)
    return not is_enough or {(pool, key) for key in keys} != cached


def _is_retry_after_collection(result: ReplayRun, cached: set[tuple[int, int]], rounded: int) -> bool | None:
    recording, allocator = result.recording, result.allocator
    settings, (limit, upper) = allocator.settings, recording.limit
    if not (recording.by_fraction or result.shows_collection):
        return None
    if allocator.reserved + settings.segment_size(rounded) <= limit:
        return False
    is_known = settings.max_split_size is None and limit == upper and not len(recording.initial.blocks)
    return set(allocator.segments_to_collect(limit)) != cached if is_known else None


def _repeat_failed_request(result: ReplayRun, event: int, operation: int, *, recorded: bool) -> None:
    recording, allocator = result.recording, result.allocator
    allocator.work.count(_STEPS_PER_FAILED_REQUEST)
    pool, rounded = result.failed_request(event)
    is_last = event == recording.last_failed
    if recorded:
        is_retry = not allocator.settings.throws
        allocator.retries += is_retry
        # PyTorch does not retry while a CUDA graph is captured and, before PyTorch 2.12, while a MemPool is in use
        result.unknown_retries += is_retry and recording.has_private_pools
    fits = allocator.fits(pool, rounded)
    searches = fits and _fitted_before_retry(result, pool, rounded, event)
    if recorded and not searches:
        if is_last:
            result.fail(event, rounded)
        return
    if fits and not searches:
        allocator.skip_next_search()
    raises_limit, allocator.raises_limit = allocator.raises_limit, allocator.raises_limit and is_last
    try:
        block = allocator.allocate(pool, rounded, operation)
        allocator.free(pool, *block)
        result.served[event] = block
    except SimulatedOutOfMemoryError:
        if is_last:
            result.fail(event, rounded)
    allocator.raises_limit = raises_limit


def _completed_frees(result: ReplayRun, event: int) -> list[int]:
    """Return the sorted addresses of the blocks whose cross-stream frees were completed right before an event."""
    recording, trace = result.recording, result.recording.trace
    completed, end = [], event
    while event > 0 and trace.action[event - 1] in (Action.FREE_COMPLETED, *RELEASES):
        event -= 1
        if trace.action[event] == Action.FREE_COMPLETED:
            if not completes_free(trace, event):  # only one stream had used the block
                break
            operation = int(recording.operations[np.searchsorted(recording.events, event)])
            completed.append(result.addresses[~operation] if operation < 0 else 0)
    result.allocator.work.count(_STEPS_PER_EVENT * (end - event))
    return sorted(completed)


def _fitted_before_retry(result: ReplayRun, pool: int, rounded: int, event: int) -> bool:
    """Return whether a free block of sufficient size was already free before a request was tried again.

    A retry waits for cross-stream frees, but does not search the free blocks again.
    """
    completed = _completed_frees(result, event)
    if not completed:
        return True
    blocks = result.allocator.free_blocks(pool)
    result.allocator.work.count(10 * len(blocks))
    return any(
        size >= rounded and bisect_left(completed, start) == bisect_left(completed, start + size)
        for start, size in blocks
    )
