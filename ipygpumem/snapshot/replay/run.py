"""Replay of a recording, whose requests are served in order by a simulated allocator."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import IpyGpuMemError
from ipygpumem.core.units import many
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.timeline import BEFORE
from ipygpumem.snapshot.replay.allocator import SimulatedAllocator, SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.missing_data import largest_sizes
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings
from ipygpumem.snapshot.replay.simulated_state import UNKNOWN_TOTAL, add_initial_state, address_chooser, fits_initially
from ipygpumem.snapshot.replay.special_events import completion_of_pending_frees, repeat_special
from ipygpumem.snapshot.replay.work_limit import WorkLimitExceededError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.replay.recording import Recording

_PART = 4096
_MANY_FAILED = 0.1
"""Fraction of operations from which failed requests are stated as the cause of long replays."""


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """Request that the simulated allocator could not serve. Sizes are in bytes.

    Attributes:
        event: Event of the request; -1 if the segments with the blocks in use before the first event exceed the limit.
        size: Rounded size of the request; the total size of these blocks if ``event`` is -1.
        segment: Size of the segment that would have been needed; the total size of these segments if ``event`` is -1.
        reserved: Total size of the segments when the request failed.
        allocated: Total size of the blocks in use when the request failed. This size is a lower bound, and ``free`` an
            upper bound, if the sizes of some blocks are uncertain: see `Replay.allocated_range`.
        free: Total size of the free blocks when the request failed.
    """

    event: int
    size: int
    segment: int
    reserved: int
    allocated: int
    free: int


@dataclass(slots=True, eq=False)
class ReplayRun:
    """Result of replaying a recording once.

    Attributes:
        allocator: Allocator after the last request.
        addresses: Simulated address of each allocation.
        sizes: Size in bytes of the block of each allocation; 0 for an allocation that was not replayed.
        failure: Request at which the replay ended, because it failed although the recording served it. If there is
            none, the last recorded out-of-memory error if its request failed again; otherwise None.
        served: Address and size of the block of each recorded out-of-memory error whose request was served, by event.
            The block is freed right after this event, because it is unknown how the program would have used it.
        unknown_retries: Number of requests in a replay with the recorded settings for which the recording does not show
            whether they were tried again.
        shows_collection: Whether segments were freed that only garbage collection frees. PyTorch collects only if
            ``set_per_process_memory_fraction`` limits the memory.
        uncertain_rows: Rows of allocations from before the recording whose blocks may be up to 1 MiB larger than in
            ``sizes``.
        completed: Events of the requests for which cross-stream frees were completed earlier than in the recording, by
            row of the allocation.
        end: Number of events that were replayed; -1 if the segments from before the recording exceed the limit.
        cost: Approximate duration of the replay in seconds.
    """

    recording: Recording
    allocator: SimulatedAllocator
    addresses: array[int]
    sizes: array[int]
    failure: FailedRequest | None = None
    served: dict[int, tuple[int, int]] = field(default_factory=dict)
    unknown_retries: int = 0
    shows_collection: bool = False
    uncertain_rows: set[int] = field(default_factory=set)
    completed: dict[int, int] = field(default_factory=dict)
    end: int = 0
    cost: float = 0.0
    _failed_requests: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    def failed_request(self, event: int) -> tuple[int, int]:
        """Return the pool index and the rounded size in bytes of a request that failed in the recording."""
        if not self._failed_requests:  # determined together, because a recording can contain many such requests
            self._failed_requests = self.recording.failed_requests(self.allocator.settings)
        return self._failed_requests[event]

    def event_of(self, request: int) -> int:
        recording = self.recording
        if request < len(recording.allocations):
            return int(recording.allocations.start[request])
        item = recording.special[request - len(recording.allocations)]
        return item if isinstance(item, int) else item.first

    def reserved(self, *, recorded: bool = False) -> Ints:
        """Return the reserved memory in bytes before the first event and after each event.

        ``recorded``: Whether segments change at the recorded events of their requests, if such events exist.
        Otherwise, all segments of a request change at once.
        """
        recording = self.recording
        change = np.zeros(len(recording.trace) + 1, np.int64)
        simulated = np.asarray(self.allocator.events, np.int64).reshape(-1, 4)
        events = np.asarray([self.event_of(request) for request in simulated[:, 3].tolist()], np.int64)
        if recorded:
            events = _recorded_events(recording, simulated, events)
        is_added = np.isin(simulated[:, 0], (Action.SEGMENT_ALLOC, Action.MAP))
        np.add.at(change, events + 1, np.where(is_added, simulated[:, 2], -simulated[:, 2]))
        change[0] += self.allocator.reserved - int(change.sum())
        return np.cumsum(change, out=change)

    def allocated(self, *, largest: bool = False) -> Ints:
        """Return the total size in bytes of the blocks in use before the first event and after each event.

        ``largest``: Whether the blocks in ``uncertain_rows`` have their largest possible sizes.

        After a failure that ended the replay, the size is constant.
        """
        sizes = np.asarray(self.sizes, np.int64)
        if largest:
            sizes = largest_sizes(sizes, np.asarray(sorted(self.uncertain_rows), np.int64))
        values = self.recording.allocations.in_use(sizes, len(self.recording.trace))
        for event, (_, size) in self.served.items():
            values[event + 1] += size
        for row, event in self.completed.items():
            values[event + 1 : int(self.recording.allocations.end[row]) + 1] -= sizes[row]
        end = max(self.end, 0)
        values[end + 1 :] = values[end]
        return values

    def fail(self, event: int, rounded: int, segment: int | None = None) -> None:
        if self.failure is not None:
            return
        allocator, free = self.allocator, self.allocator.total_free()
        segment = allocator.settings.segment_size(rounded) if segment is None else segment
        allocated = allocator.reserved - free
        self.failure = FailedRequest(event, rounded, segment, allocator.reserved, allocated, free)


def _recorded_events(recording: Recording, simulated: Ints, events: Ints) -> Ints:
    """Replace the events of simulated segment events by recorded events that change the same segment for a request.

    ``simulated`` contains rows with the columns of `SegmentEvent`, and ``events`` the event of each row.
    """
    recorded = np.asarray(recording.segment_events, np.int64).reshape(-1, 4)
    keys = np.concatenate([recorded, simulated])
    keys[:, 3] = recording.following[np.append(recorded[:, 3], events)]
    # sorted, because the hash of integers is predictable: a file could fill a dict so that each access is slow
    _, numbers = np.unique(keys, axis=0, return_inverse=True)
    numbers = numbers.reshape(-1)
    recorded_events = np.full(len(keys), -1, np.int64)
    recorded_events[numbers[: len(recorded)]] = recorded[:, 3]
    recorded_events = recorded_events[numbers[len(recorded) :]]
    return np.where(recorded_events >= 0, recorded_events, events)


def run(
    recording: Recording,
    settings: AllocatorSettings,
    *,
    limit: int | None = None,
    by_fraction: bool = False,
    recorded: bool = False,
    recorded_addresses: bool = False,
    keep_older: bool = True,
    descending: bool = False,
    raises_limit: bool = False,
    end: int | None = None,
    operations: NDArray[Any] | None = None,
    run_ends: Iterable[int] = (),
) -> ReplayRun:
    """Replay a recording.

    Args:
        recording: Recording whose requests are replayed.
        settings: Settings of the simulated allocator.
        limit: Limit on reserved memory in bytes; None for no limit.
        by_fraction: As in `SimulatedAllocator`.
        recorded: Whether to reproduce the recording: segments are freed whenever they were freed in the recording.
        recorded_addresses: Whether new segments get their recorded addresses, as with ``recorded``.
        keep_older: Whether the blocks that are older than the first event keep their recorded addresses. Otherwise, the
            simulated allocator allocates them first, in the order of their addresses.
        descending: Whether new segments get descending addresses.
        raises_limit: As in `SimulatedAllocator`.
        end: Number of events to replay; by default all.
        operations: Changed requests; by default those of the recording.
        run_ends: Indices in ``operations`` at which the runs of a repeated step end. The replay stops after the first
            run that does not increase the peak of reserved memory.

    Raises:
        ReplayError: The events contradict each other, the requests exceed the address space, or the replay takes too
            long.
    """
    rounded_sizes = settings.round(recording.allocations.size)
    pools = _array(recording.pool_of + (rounded_sizes <= SMALL))
    rounded = _array(rounded_sizes)
    choose = address_chooser(recording, recorded=recorded or recorded_addresses, descending=descending)
    allocator = SimulatedAllocator(
        settings,
        recording.pools,
        limit=limit,
        by_fraction=by_fraction,
        total=recording.total or UNKNOWN_TOTAL,
        choose_address=lambda size: choose(allocator, size),
    )
    allocator.raises_limit = raises_limit
    allocator.releases_ranges = recorded or recorded_addresses
    work = allocator.work = recording.work_limit
    rows = len(rounded)
    result = ReplayRun(recording, allocator, array("q", bytes(8 * rows)), array("q", bytes(8 * rows)))
    addresses, sizes, completed = result.addresses, result.sizes, result.completed
    if limit is not None and not recorded and operations is None:
        allocator.before_retry = completion_of_pending_frees(result, pools)
    operations = recording.operations if operations is None else operations
    result.end = len(recording.trace) if end is None else end
    operations = operations[: int(np.searchsorted(recording.events, result.end))] if end is not None else operations
    operation, allocate, free = 0, allocator.allocate, allocator.free
    with work.limited(), replay_errors(recording):
        work_before = work.left
        try:
            if keep_older:
                add_initial_state(result)
                if not fits_initially(result):
                    result.end, operations = BEFORE, operations[:0]
            else:
                allocator.count_requests(len(recording.initial.blocks))
                for operation in recording.initial.blocks["row"].tolist():
                    addresses[operation], sizes[operation] = allocate(pools[operation], rounded[operation], operation)
            for operation in chain.from_iterable(_parts(operations, allocator, run_ends)):
                if operation < 0:
                    row = ~operation
                    if row not in completed:
                        free(pools[row], addresses[row], sizes[row])
                elif operation < rows:
                    addresses[operation], sizes[operation] = allocate(pools[operation], rounded[operation], operation)
                else:
                    repeat_special(result, operation, recorded=recorded)
        except SimulatedOutOfMemoryError:
            result.end = result.event_of(operation)
            result.fail(result.end, rounded[operation])
        result.cost = work_before - work.left
    return result


@contextmanager
def replay_errors(recording: Recording) -> Iterator[None]:
    """Raise `ReplayError` instead of `WorkLimitExceededError` and of exceptions that invalid events can cause."""
    try:
        yield
    except IpyGpuMemError:
        raise
    except WorkLimitExceededError as error:
        failed = sum(isinstance(item, int) for item in recording.special)
        has_many = failed > _MANY_FAILED * len(recording.operations)
        cause = f"{many(failed, 'request')} failed" if has_many else "requests search many free blocks"
        problem = f"replays would take too long, because {cause}: make a shorter recording"
        raise recording.error(problem) from error
    except (KeyError, IndexError, ValueError, ArithmeticError) as error:
        raise recording.error("the events contradict each other") from error


def _array(values: Ints) -> array[int]:
    result = array("q")
    result.frombytes(np.ascontiguousarray(values, np.int64).view(np.uint8).data)
    return result


def _parts(operations: NDArray[Any], allocator: SimulatedAllocator, run_ends: Iterable[int]) -> Iterator[list[int]]:
    """Yield the requests in several lists, because a single list would need more memory than the recording.

    With ``run_ends``, stop after the first run of a step that did not increase the peak of reserved memory.
    """
    first, peak = 0, -1
    for end in (*run_ends, len(operations)):
        for start in range(first, end, _PART):
            part = operations[start : min(start + _PART, end)].tolist()
            allocator.count_requests(len(part))
            yield part
        if allocator.peak == peak:
            return
        first, peak = end, allocator.peak
