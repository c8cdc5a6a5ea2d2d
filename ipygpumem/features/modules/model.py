"""Memory of a model on one device: by phase of a training step, by kind and by module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ipygpumem.core.to_dict import PlainData

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
"""What an allocation was made for.

``activations`` are allocated in a module's forward and still in use when the outermost call returns, outputs included;
``forward, temporary`` is freed before that; ``recomputed`` is allocated in a forward during a backward pass (activation
checkpointing); ``backward`` and ``optimizer`` are allocated in these phases and are none of the former; ``other
threads`` is allocated meanwhile by threads that run no module."""

MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """All runs (``times``) of one phase of a training step. Bytes are allocated memory by the allocator's counter.

    Attributes:
        name: ``forward``, ``backward``, ``optimizer`` or ``other`` (everything between these).
        seconds: Total time on the host.
        change: Total change. The changes of all phases add up to what the measurement held.
        after: Allocated memory at the end of the last run.
        peak: Highest allocated memory during the runs; None if only an upper bound is known.
    """

    name: str
    times: int
    seconds: float
    change: int
    after: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class BytesByKind:
    """Requested bytes of one kind, at the peak and at the end."""

    kind: MemoryKind
    peak: int
    end: int


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module including its submodules. Requested bytes; None if they are unknown.

    ``parameters`` to ``activations`` are each taken when the whole model's are largest; ``optimizer`` is the state of
    optimizers.

    Attributes:
        path: Name in the model; empty for the model itself.
        type: Class name.
        depth: Level of nesting; 0 for the model itself.
        calls: Number of forward calls outside backward passes.
        temporary: The most that its forward used at one time and freed. Modules reach this at different times.
        peak: Its part of the device's peak, of all kinds.
        own: The part of ``peak`` that belongs to none of its submodules.
        note: For example that the module is compiled, or recomputed in the backward pass.
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
class ModuleTree(PlainData):
    """A model's memory on one device.

    Attributes:
        parts: Memory by kind; together with rounding and pending it adds up to the allocator's counters.
        rows: The modules, each before its submodules.
        rounding: Bytes that the allocator added, at the peak (None if only an upper bound is known) and at the end.
        pending: Minus the bytes of freed blocks that wait for a stream; as for rounding.
        allocated: The allocator's counter; as for rounding.
    """

    device: str
    phases: tuple[StepPhase, ...]
    parts: tuple[BytesByKind, ...]
    rows: tuple[ModuleRow, ...]
    rounding: tuple[int | None, int]
    pending: tuple[int | None, int]
    allocated: tuple[int | None, int]
    notes: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether the model uses memory on the device."""
        return any(row.peak or row.parameters or row.activations for row in self.rows)

    def row(self, path: str) -> ModuleRow:
        """Return the module with this path; without one, raise `KeyError`."""
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(f"no module {path!r}")
