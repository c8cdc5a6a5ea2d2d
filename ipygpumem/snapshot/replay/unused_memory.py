"""Reserved memory that contains no requested bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.serialization import Serializable
from ipygpumem.snapshot.model.address_ranges import overlap, union
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.segment_history import AllocatorState
    from ipygpumem.snapshot.replay.run import ReplayRun


@dataclass(frozen=True, slots=True)
class UnusedMemory(Serializable):
    """Reserved memory that contains no requested bytes, at the peak of reserved memory. Sizes are in bytes.

    Attributes:
        event: Event of the peak.
        reserved: Reserved memory.
        requested: Requested bytes of the blocks in use. The request of a recorded out-of-memory error is included with
            its rounded size, because the file does not contain its requested size.
        rounding: Bytes that were added to requests by rounding.
        not_split: Remainders of blocks in use that were too small to be split off.
        used_later: Free memory that served a later request.
        never_used: Free memory that served no later request.
        uncertain: Maximum amount of free memory (``used_later`` and ``never_used``) that may belong to ``not_split``,
            because blocks from before the recording may be larger than in the replay.
    """

    event: int
    reserved: int
    requested: int
    rounding: int
    not_split: int
    used_later: int
    never_used: int
    uncertain: int


def unused_memory(run: ReplayRun, state: AllocatorState) -> UnusedMemory:
    """Return the reserved memory without requested bytes in ``state``, which is a result of `simulated_state`."""
    event, blocks, segments = state.event, state.blocks, state.segments
    sizes, addresses = np.asarray(run.sizes, np.int64), np.asarray(run.addresses, np.int64)
    requested, in_use = int(blocks["requested"].sum()), int(blocks["rounded"].sum())
    rounded = int(np.minimum(run.allocator.settings.round(blocks["requested"]), blocks["rounded"]).sum())
    later = np.flatnonzero((run.recording.allocations.start > event) & (sizes > 0))
    served = np.asarray([block for number, block in run.served.items() if number > event], np.int64).reshape(-1, 2)
    occupied = union(blocks["address"], blocks["rounded"])
    starts = np.concatenate([blocks["address"], addresses[later], served[:, 0]])
    either = union(starts, np.concatenate([blocks["rounded"], sizes[later], served[:, 1]]))
    used_later = overlap(either, segments) - overlap(occupied, segments)
    return UnusedMemory(
        event=event,
        reserved=state.reserved,
        requested=requested,
        rounding=rounded - requested,
        not_split=in_use - rounded,
        used_later=used_later,
        never_used=state.reserved - in_use - used_later,
        uncertain=SMALL * len(run.uncertain_rows.intersection(blocks["row"].tolist())),
    )
