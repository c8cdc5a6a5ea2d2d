"""The segments and blocks from which a predicted step starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipygpumem.snapshot.model.segment_history import AllocatorState
from ipygpumem.snapshot.replay.recording import Recording
from ipygpumem.snapshot.replay.verification import verified, with_block_sizes
from ipygpumem.snapshot.snapshot_data import SnapshotData


@dataclass(frozen=True, slots=True, eq=False)
class StartState:
    """The memory of a device at one moment, with the true sizes of all blocks.

    Attributes:
        snapshot: The snapshot that contains the state.
        recording: The recording of the device.
        state: Segments and blocks. The rounded sizes of all blocks are known.
    """

    snapshot: SnapshotData
    recording: Recording
    state: AllocatorState

    @classmethod
    def at(cls, snapshot: SnapshotData, device: int, event: int) -> StartState:
        """Return the state right after an event; -1 stands for the time before the first event.

        Raises:
            ReplayError: The recording cannot be replayed.
        """
        recording = verified(snapshot, device).recording
        state, replayed = with_block_sizes(snapshot, snapshot.history(device).at(event))
        if not replayed:
            blocks = state.blocks.copy()
            rounded = recording.settings.round(blocks["requested"])
            blocks["rounded"] = np.where(blocks["rounded"] > 0, blocks["rounded"], rounded)
            state = replace(state, blocks=blocks)
        return cls(snapshot, recording, state)
