"""The memory of a model's step: its phases, what stood at the peak, and the tree of its modules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["MEMORY_KINDS", "KindBytes", "MemoryKind", "ModuleRow", "ModuleTree", "StepPhase"]

MemoryKind = Literal[
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "activations",
    "forward, temporary",
    "recomputed",
    "backward",
    "optimizer",
    "other threads",
    "not the model's",
]
"""What an allocation was for. ``activations``: made in a module's forward, and still there when the outermost call had
returned (its outputs included); ``forward, temporary``: gone by then; ``recomputed``: made in a forward that ran inside
a backward pass (checkpointing); ``backward`` and ``optimizer``: made there and none of the former; ``other threads``:
made meanwhile by a thread that ran no module."""

MEMORY_KINDS: tuple[MemoryKind, ...] = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "activations",
    "forward, temporary",
    "recomputed",
    "backward",
    "optimizer",
    "other threads",
    "not the model's",
)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """One phase of a step, all its times together: bytes of the allocator's counter of allocated memory.

    Attributes:
        name: ``forward``, ``backward``, ``optimizer`` or ``other`` (whatever lies between).
        times: How often it ran.
        seconds: How long, all together, as the host saw it.
        change: What it added, all together: the changes of all phases add up to what the measurement held.
        after: Level at its last end.
        peak: Highest level while it ran; the highest of all phases is the measurement's. None where it is only a bound.
    """

    name: str
    times: int
    seconds: float
    change: int
    after: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Bytes of one kind, requested: at the peak, and at the end."""

    kind: MemoryKind
    peak: int
    end: int


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module with everything inside it. Requested bytes; None where nobody can tell.

    Attributes:
        path: Its name in the model; empty for the model itself.
        type: Its class.
        depth: 0 for the model itself.
        calls: How often its forward ran outside backward passes.
        parameters: Of its parameters. This and the next two: the most at one time, for the model as a whole.
        buffers: Of its buffers.
        gradients: Of its parameters' gradients.
        optimizer: Of what optimizers keep for its parameters.
        activations: Of its activations, at the instant when the model's were most.
        temporary: The most that its forward had at one time and did not keep. Modules reach this at different times.
        peak: Its part of the device's peak, of all kinds.
        own: The part of ``peak`` that is in none of its children.
        note: What a reader should know: compiled, recomputed, shared.
    """

    path: str
    type: str
    depth: int
    calls: int
    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    activations: int | None
    temporary: int | None
    peak: int | None
    own: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """A model's memory on one device.

    Attributes:
        device: Its name.
        phases: The phases that ran, and what lay between them.
        parts: What stood at the peak and at the end, by kind: with rounding and pending they add up to the counters.
        rows: The modules, each before its children.
        rounding: What the allocator added, at the peak (None where that is only a bound) and at the end.
        pending: Blocks that waited for a stream, at the peak and at the end (0 or below).
        allocated: The allocator's counter, at the peak and at the end.
        notes: Sentences for the reader.
    """

    device: str
    phases: tuple[StepPhase, ...]
    parts: tuple[KindBytes, ...]
    rows: tuple[ModuleRow, ...]
    rounding: tuple[int | None, int]
    pending: tuple[int | None, int]
    allocated: tuple[int | None, int]
    notes: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether the model has anything on the device."""
        return any(row.peak or row.parameters or row.activations for row in self.rows)

    def row(self, path: str) -> ModuleRow:
        """The module of that name.

        Raises:
            KeyError: There is none.
        """
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(f"no module {path!r}")

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)
