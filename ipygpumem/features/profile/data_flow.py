"""The tensors of a profiled program and the operators that allocated, modified and freed them.

In this module, a tensor is a storage, represented by its index in the lists of `DataFlow`. Each write to a tensor
creates its next version; version 0 is its state after the allocation or at the start of the profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class UnmatchedEvent(NamedTuple):
    """An allocation or free of memory that belongs to no known tensor. ``size`` is negative for a free."""

    time: int
    device: str
    address: int
    size: int


@dataclass(slots=True)
class DataFlowNode:
    """An outermost operator with the operators that it calls, or an allocation or free outside any operator.

    Attributes:
        time: Start time in nanoseconds since the Unix epoch.
        backward: Whether the operator belongs to a backward pass.
        inputs: Tensors that are read or freed, with their versions before the operator runs.
        outputs: Tensors that are allocated or written to, with their versions after the operator has run.
        written: Tensors that are only written to, not allocated or freed, with their versions before the operator runs.
    """

    time: int
    backward: bool
    inputs: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[tuple[int, int]] = field(default_factory=list)
    allocated: set[int] = field(default_factory=set)
    freed: set[int] = field(default_factory=set)
    written: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class DataFlow:
    """The operators and memory events of a profile.

    Attributes:
        identities: ID that PyTorch's profiler assigned to each tensor. A later tensor may have the same ID.
        sizes: Size of each tensor in bytes; None if unknown.
        nodes: Operators in chronological order.
        allocation_times: Timestamp of each profiled allocation, by tensor.
        free_times: Timestamp of each profiled free, by tensor.
        gradients: Tensors known to be gradients of parameters.
        parameters: Tensors known to be parameters of a module or an optimizer.
        states: Tensors known to belong to the state of an optimizer.
        unmatched: Allocations and frees that belong to no known tensor.
        counters: Tuples ``(time, allocated, reserved)`` of the allocator's counters in bytes, by device name.
        span: First and last timestamps of the profile.
    """

    identities: list[int] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    nodes: list[DataFlowNode] = field(default_factory=list)
    allocation_times: dict[int, int] = field(default_factory=dict)
    free_times: dict[int, int] = field(default_factory=dict)
    gradients: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    unmatched: list[UnmatchedEvent] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
