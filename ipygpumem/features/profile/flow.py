"""The tensors of a profiled program, and the operators that made, changed and freed them.

A tensor here is one storage: its number stands for torch's identity of the tensor, of the allocation and the device. An
operator that writes into a tensor makes its next version; version 0 is what was allocated, or there before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Flow", "Level", "Nameless", "Node"]


class Level(NamedTuple):
    """What an allocator itself told at one of its events: bytes, and nanoseconds since 1970."""

    time: int
    allocated: int
    reserved: int


class Nameless(NamedTuple):
    """An allocation (``size`` above 0) or a free that no operator's tensor was seen with."""

    time: int
    device: str
    address: int
    size: int


@dataclass(slots=True)
class Node:
    """One operator of the program's own, with all that ran inside it; or an allocation or a free outside of any.

    Attributes:
        time: Its start, in nanoseconds since 1970.
        backward: Whether it belongs to a backward pass.
        inputs: Tensors that it read or freed, with the version that it found.
        outputs: Tensors that it made or wrote into, with the version that it left.
        born: Tensors that it allocated.
        died: Tensors that it freed.
        written: Tensors that it wrote into, with the version that it found; none that it allocated or freed.
    """

    time: int
    backward: bool
    inputs: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[tuple[int, int]] = field(default_factory=list)
    born: set[int] = field(default_factory=set)
    died: set[int] = field(default_factory=set)
    written: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Flow:
    """A profile as far as memory goes.

    Attributes:
        identities: By tensor: torch's number of it; several storages may share one over time.
        sizes: By tensor: bytes, None where nothing told.
        devices: By tensor: its device, as ``cpu`` or ``cuda:0``.
        nodes: In the order of their time.
        allocated: When a tensor was allocated, where that was seen.
        freed: When it was freed, where that was seen.
        gradients: Tensors seen as some parameter's gradient.
        parameters: Tensors seen as parameters of a module or an optimizer.
        states: Tensors seen in an optimizer's state.
        nameless: Memory that belongs to no tensor that was seen.
        levels: By device: what its allocator told, in the order of time.
        span: First and last nanosecond that was profiled.
    """

    identities: list[int] = field(default_factory=list)
    sizes: list[int | None] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    allocated: dict[int, int] = field(default_factory=dict)
    freed: dict[int, int] = field(default_factory=dict)
    gradients: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    nameless: list[Nameless] = field(default_factory=list)
    levels: dict[str, list[Level]] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
