"""The tensors of a profiled program, and the operators that allocated, modified and freed them.

A tensor here is one storage, identified by a number. An operator that writes to a tensor creates its next version;
version 0 is the state after the allocation or at the start of the profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class UnmatchedEvent(NamedTuple):
    """An allocation (``size`` above 0) or a free (below 0) that belongs to no tensor of an operator."""

    time: int
    device: str
    address: int
    size: int


@dataclass(slots=True)
class Node:
    """An operator called by the program, including the operators inside it; or an allocation or free outside of any.

    Attributes:
        time: Start in nanoseconds since 1970.
        backward: Whether it belongs to a backward pass.
        inputs: Tensors that it reads or frees, with their versions before it.
        outputs: Tensors that it allocates or writes to, with their versions after it.
        allocated: Tensors that it allocates.
        freed: Tensors that it frees.
        written: Tensors that it writes to but neither allocates nor frees, with their versions before it.
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
    """The memory events of a profile.

    Attributes:
        identities: For each tensor torch's id; storages that exist at different times may share one.
        sizes: For each tensor its bytes; None if unknown.
        devices: For each tensor its device, such as ``cpu`` or ``cuda:0``.
        nodes: Operators, by time.
        allocation_times: Time of each allocation that was profiled, by tensor.
        free_times: Time of each free that was profiled, by tensor.
        gradients: Tensors known to be gradients of parameters.
        parameters: Tensors known to be parameters of a module or an optimizer.
        states: Tensors known to be optimizer states.
        unmatched: Memory events that belong to no tensor.
        allocator_levels: For each device its allocator's counters after each event: nanoseconds since 1970, allocated
            bytes, reserved bytes.
        span: First and last nanosecond of the profile.
    """

    identities: list[int] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    allocation_times: dict[int, int] = field(default_factory=dict)
    free_times: dict[int, int] = field(default_factory=dict)
    gradients: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    unmatched: list[UnmatchedEvent] = field(default_factory=list)
    allocator_levels: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
