"""Replays with other allocator settings, as additional columns of an encoded snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.timeline import BEFORE
from ipygpumem.snapshot.replay.recording import ReplayError
from ipygpumem.snapshot.replay.result import Replay, replay
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings
from ipygpumem.snapshot.replay.verification import cached_verification

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.replay.run import ReplayRun
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_CHANGE = ("event", "action", "segment", "bytes", "pool")


@dataclass(frozen=True, slots=True, eq=False)
class EncodedReplay:
    """Replay of a device, encoded for the viewer.

    Attributes:
        header: ``settings``, ``reason`` (why the replay is not exact), ``end`` (number of replayed events), ``served``
            (events of recorded out-of-memory errors whose requests are served, with their sizes in bytes) and ``pools``
            (index of the private pool, stream, and whether the pool is for small blocks). If the device cannot be
            replayed: ``settings`` and ``problem``.
        columns: ``address`` and ``size`` of the block of each allocation, ordered by start event. The other columns
            describe the segments that existed before the first event (event -1) and all later changes: ``event``,
            ``action``, ``segment`` (its address), ``bytes``, and ``pool``, an index in ``pools`` (-1 for freed
            segments). Sizes are in bytes.
    """

    header: dict[str, Any]
    columns: dict[str, Ints]


def encode_replays(snapshot: SnapshotData, settings: str) -> dict[int, EncodedReplay]:
    parsed = AllocatorSettings.parse(settings)
    if parsed.collection_threshold or parsed.fraction is not None:
        name = "garbage_collection_threshold" if parsed.collection_threshold else "per_process_memory_fraction"
        raise OptionError(f"{name} requires a memory limit: use ipygpumem whatif --capacity SIZE")
    encoded: dict[int, EncodedReplay] = {}
    problem = "the recording contains no events"
    for timeline in snapshot.timelines:
        if not len(timeline.trace):
            continue
        device = timeline.device
        try:
            limit = cached_verification(snapshot, device).recording.work_limit
            with limit.limited(limit.replay_seconds):
                encoded[device] = _encode(replay(snapshot, device, settings), settings)
        except ReplayError as error:
            problem = str(error).removeprefix(f"{snapshot.name}: ")
            encoded[device] = EncodedReplay({"settings": settings, "problem": problem}, {})
    if not any(item.columns for item in encoded.values()):
        raise ReplayError(f"{snapshot.name}: {problem}")
    return encoded


def _encode(result: Replay, settings: str) -> EncodedReplay:
    run = result._run  # noqa: SLF001 (the blocks and segments of the result)
    recording = run.recording
    order = np.argsort(recording.allocations.start, kind="stable")
    changes = np.asarray(list(_changes(run, result.settings)), np.int64).reshape(-1, len(_CHANGE))
    header = {
        "settings": settings or "default settings",
        "reason": result.reason,
        "end": run.end,
        "served": [[event, recording.trace.size[event].item()] for event in run.served],
        "pools": [[pool.id, pool.stream, int(pool.small)] for pool in recording.pools],
    }
    blocks = {"address": np.asarray(run.addresses, np.int64)[order], "size": np.asarray(run.sizes, np.int64)[order]}
    return EncodedReplay(header, {**blocks, **dict(zip(_CHANGE, changes.T, strict=True))})


def _changes(run: ReplayRun, settings: AllocatorSettings) -> Iterator[tuple[int, ...]]:
    recording, ranges = run.recording, run.allocator.ranges
    starts = sorted(ranges)
    initial = recording.initial.segments
    for segment, pool in zip(initial, recording.segment_pools.tolist(), strict=True):
        address, nbytes = int(segment["address"]), int(segment["size"])
        if segment["expandable"]:
            yield BEFORE, Action.MAP, address, nbytes, ranges[starts[bisect_right(starts, address) - 1]][1]
        else:
            yield BEFORE, Action.SEGMENT_ALLOC, address, nbytes, pool + (int(segment["small"]) > 0)
    pools = (recording.pool_of + (settings.round(recording.allocations.size) <= SMALL)).tolist()
    for action, address, nbytes, request in run.allocator.events:
        event, pool = run.event_of(request), -1
        if action in (Action.MAP, Action.UNMAP):
            pool = ranges[starts[bisect_right(starts, address) - 1]][1]
        elif action == Action.SEGMENT_ALLOC and request < len(pools):
            pool = pools[request]
        elif action == Action.SEGMENT_ALLOC:  # the request of a recorded out-of-memory error
            pool, _ = run.failed_request(event)
        yield event, action, address, nbytes, pool
