"""Memory usage of a model on one device, by phase of a training step, by kind and by module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ipygpumem.core.serialization import PlainData

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
"""Purpose of an allocation.

``activations`` are allocated in a module's forward and are still in use when the outermost call returns. They include
outputs. ``forward, temporary`` is freed before the call returns. ``recomputed`` is allocated in a forward during a
backward pass (activation checkpointing). ``backward`` and ``optimizer`` are all other allocations in these phases.
``other threads`` is allocated in a phase by threads that run no module."""

MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """All runs of one phase of a training step. Sizes are in bytes, from the allocator's counter of allocated memory.

    Attributes:
        name: ``forward``, ``backward``, ``optimizer`` or ``other`` (all code outside these phases).
        count: Number of runs.
        seconds: Total time on the host.
        change: Total change in allocated memory. The changes of all phases add up to the measurement's ``held``.
        after: Allocated memory at the end of the last run.
        peak: Highest allocated memory during the runs; None if only an upper bound is known.
    """

    name: str
    count: int = field(metadata={"key": "times"})
    seconds: float
    change: int
    after: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class BytesByKind:
    """Requested bytes of one memory kind, at the peak and at the end."""

    kind: MemoryKind
    peak: int
    end: int


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Memory usage of a module including its submodules, in requested bytes. Unknown values are None.

    ``parameters`` to ``activations`` are each measured when the total of that kind for the whole model is highest.

    Attributes:
        path: Qualified name of the module; empty for the model itself.
        type: Class name.
        depth: Nesting depth; 0 for the model itself.
        calls: Number of forward calls outside backward passes.
        optimizer: Optimizer state.
        temporary: Peak of the memory that its forward allocated and freed. The peaks are reached at different times.
        peak: Memory of all kinds in use at the peak of the device.
        own: The part of ``peak`` that belongs to the module itself and not to its submodules.
        note: Additional information, for example that the module is compiled.
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
    """Memory usage of a model on one device. Sizes are in bytes.

    Attributes:
        parts: Memory by kind. The total, rounding and pending add up to the allocator's counter.
        rows: The modules, each before its submodules.
        rounding: Bytes added by rounding sizes up, at the peak (None if only an upper bound is known) and at the end.
        pending: Negative size of freed blocks that wait for a stream, at the peak and at the end.
        allocated: The allocator's counter of allocated bytes, at the peak and at the end.
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
        """Return the module with the given path; raise `KeyError` if there is none."""
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(f"no module {path!r}")
