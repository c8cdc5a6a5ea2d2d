"""Replay of recorded events other than allocations and frees: freed segments, and requests that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.free_blocks import ADDRESS_BITS
from ipygpumem.snapshot.replay.recording import RELEASES, ReleasedSegments

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
        is_enough = allocator.settings.collection_threshold > 0 and _collection_is_enough(result, events.stop)
        allocator.release(trace.address[events].tolist(), operation)  # how much was needed depends on the limit
        allocator.retries += not is_enough and not allocator.has_cached_segments()
    elif recorded or not item.retry:
        allocator.release_cached(operation, item.private, only_private=item.only_private)
        allocator.retries += item.retry
    if recorded and item.retry and trace.action[events.stop] != Action.OOM:
        allocator.skip_next_search()


def _collection_is_enough(result: ReplayRun, following: int) -> bool:
    """Return whether garbage collection, without a retry, frees enough memory for the segment of the next event.

    If the limit is unknown, it is assumed to be the lower bound.
    """
    recording, allocator = result.recording, result.allocator
    trace, limit = recording.trace, recording.limit[0]
    collected = sum(key >> ADDRESS_BITS for _, key in allocator.segments_to_collect(limit))
    is_new = trace.action[following] == Action.SEGMENT_ALLOC
    return bool(is_new and allocator.reserved - collected + int(trace.size[following]) <= limit)


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
