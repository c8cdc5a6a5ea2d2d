"""Data classes for the memory usage of a model on one device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ipygpumem.core.serialization import Serializable

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
    "outside the model",
]
"""Purpose of an allocation.

``activations`` are allocated by ``forward`` and still in use when the outermost call returns. They include the output.
``forward, temporary`` memory is freed before this call returns. ``recomputed`` memory is allocated by ``forward`` in a
backward pass (activation checkpointing). ``backward`` and ``optimizer`` are all other allocations in these phases.
``other threads`` is memory that threads without a running module allocate during a phase."""

MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)


@dataclass(frozen=True, slots=True)
class StepPhase:
    """One phase of a training step. Sizes are in bytes, from the allocator's counter of allocated memory.

    Attributes:
        name: ``forward``, ``backward``, ``optimizer`` or ``other`` (all code outside these phases).
        count: Number of times that the phase ran.
        seconds: Total duration in seconds, measured on the host.
        change: Total change in allocated memory. The changes of all phases add up to the measurement's ``held``.
        after: Allocated memory when the phase last ended.
        peak: Peak allocated memory during the phase; None if only an upper bound is known.
    """

    name: str
    count: int = field(metadata={"key": "times"})
    seconds: float
    change: int
    after: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class MemoryKindUsage:
    """Size of one kind of memory at the device's peak and at the end of the measurement, in requested bytes."""

    kind: MemoryKind
    peak: int
    end: int


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Memory usage of a module including its submodules, in requested bytes. Unknown values are None.

    Each attribute from ``parameters`` to ``activations`` is the size of one kind of memory at the peak of the whole
    model's memory of this kind.

    Attributes:
        path: Qualified name of the module; empty for the model itself.
        type: Class name of the module.
        depth: Number of modules that contain the module.
        calls: Number of calls to ``forward`` outside backward passes.
        optimizer: Size of the optimizer state for the parameters.
        temporary: Peak of the memory that the module's ``forward`` allocated and freed.
        peak: Memory of all kinds in use at the device's peak.
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
class ModuleTree(Serializable):
    """Memory usage of a model on one device. Sizes are in bytes.

    Attributes:
        parts: Memory usage by kind. The total of all kinds plus ``rounding`` and ``pending`` equals ``allocated``, if
            these values are known.
        rows: Memory usage by module; each module precedes its submodules.
        rounding: Memory added by rounding sizes up, at the peak (None if only an upper bound of the peak is known) and
            at the end.
        pending: Size of freed blocks that another stream still uses, as a negative number, at the peak (None if only an
            upper bound of the peak is known) and at the end.
        allocated: The allocator's counter of allocated memory, at the peak (None if only an upper bound of the peak is
            known) and at the end.
    """

    device: str
    phases: tuple[StepPhase, ...]
    parts: tuple[MemoryKindUsage, ...]
    rows: tuple[ModuleRow, ...]
    rounding: tuple[int | None, int]
    pending: tuple[int | None, int]
    allocated: tuple[int | None, int]
    notes: tuple[str, ...] = ()

    @property
    def uses_memory(self) -> bool:
        return any(row.peak or row.parameters or row.activations for row in self.rows)

    def row(self, path: str) -> ModuleRow:
        for row in self.rows:
            if row.path == path:
                return row
        raise KeyError(f"no module {path!r}")
