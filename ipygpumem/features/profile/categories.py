"""Determine the category of each tensor (parameter, gradient, activation, ...) from the operators that use it.

The rules and results are those of PyTorch's deprecated memory timeline (``torch/profiler/_memory_profiler.py``). This
implementation requires fewer passes over the operators and supports programs that PyTorch's implementation rejects.

In this module, a tensor is a storage, represented by its index in the lists of `DataFlow`. Each write to a tensor
creates its next version; version 0 is its state after the allocation or at the start of the profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class UnmatchedEvent(NamedTuple):
    """An allocation or free of memory that belongs to no known tensor.

    ``time`` is in nanoseconds since the Unix epoch. ``size`` is in bytes, and negative for a free.
    """

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
        inputs: Tensors that are used or freed, but not allocated, with their versions before the operator runs.
        outputs: Tensors that are allocated or written to, but not freed, with their versions after the operator ran.
        allocated, freed: Tensors that are allocated, and tensors that are freed.
        written: Tensors that are written to, but neither allocated nor freed, with their versions before the operator
            runs.
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
    """The operators and memory events of a profile. Times are in nanoseconds since the Unix epoch.

    Attributes:
        identities: ID that PyTorch's profiler assigned to each tensor. A later tensor may have the same ID.
        sizes: Size of each tensor in bytes; None if unknown.
        devices: Name of the device of each tensor.
        nodes: Operators, and allocations and frees outside operators, in chronological order.
        allocation_times: Time of each profiled allocation, by tensor.
        free_times: Time of each profiled free, by tensor.
        gradients: Tensors known to be gradients of parameters.
        parameters: Tensors known to be parameters.
        states: Tensors known to be optimizer state.
        unmatched: Allocations and frees that belong to no known tensor.
        counters: Tuples ``(time, allocated, reserved)`` of the allocator's counters in bytes, by device name.
        span: Start times of the first and the last event; ``(0, 0)`` if they are unknown.
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


CATEGORIES = (
    *("parameter", "optimizer state", "input", "temporary", "activation", "gradient"),
    *("autograd detail", "unknown"),
)
"""Names of the categories in the stacking order of PyTorch's memory timeline."""
PARAMETER, STATE, INPUT, TEMPORARY, ACTIVATION, GRADIENT, AUTOGRAD, UNKNOWN = range(len(CATEGORIES))

_ACTIVATION_SOURCES = frozenset({INPUT, ACTIVATION})
_ACTIVATION_OPERANDS = frozenset({INPUT, ACTIVATION, PARAMETER, TEMPORARY})
_LEARNED = frozenset({PARAMETER, GRADIENT})
_Version = tuple[int, int]


class TensorCategories:
    def __init__(self, flow: DataFlow) -> None:
        self._identities = flow.identities
        self._temporary = {tensor for node in flow.nodes for tensor in node.allocated & node.freed}
        self._by_identity: dict[int, int] = {}
        self._by_version: dict[_Version, int] = {}
        self.assigned: set[int] = set()  # tensors whose versions all have the same category

    def category_of(self, tensor: int, version: int) -> int:
        category = self._by_identity.get(self._identities[tensor])
        if category is not None:
            return category
        return TEMPORARY if tensor in self._temporary else self._by_version.get((tensor, version), UNKNOWN)

    def assign(self, tensors: set[int], category: int) -> None:
        self.assigned |= tensors
        self._by_identity.update((self._identities[tensor], category) for tensor in tensors)

    def assign_default(self, versions: Iterable[_Version], category: int) -> None:
        for version in versions:
            self._by_version.setdefault(version, category)

    def any_in(self, versions: Iterable[_Version], categories: frozenset[int]) -> bool:
        return any(self.category_of(*version) in categories for version in versions)


def classify(flow: DataFlow) -> TensorCategories:
    categories = TensorCategories(flow)
    categories.assign(flow.gradients, GRADIENT)
    categories.assign(flow.parameters, PARAMETER)
    learned = _depending_on_learned(flow, categories)
    required = _required_for_learned(flow, categories)
    categories.assign_default({version for version in required if flow.identities[version[0]] not in learned}, INPUT)
    categories.assign(_inferred_parameters(flow, categories, learned), PARAMETER)
    _assign_activations(flow, categories)
    categories.assign(flow.states, STATE)
    for node in flow.nodes:
        if node.backward:
            new_data = [
                (tensor, version)
                for tensor, version in node.outputs
                if version == 0 or categories.category_of(tensor, version - 1) in {UNKNOWN, AUTOGRAD}
            ]
            categories.assign_default(new_data, AUTOGRAD)
    return categories


def all_versions(flow: DataFlow, categories: TensorCategories) -> set[_Version]:
    """Return all tensor versions that operators use or create, and version 0 of tensors in `categories.assigned`."""
    versions: set[_Version] = {(tensor, 0) for tensor in categories.assigned}
    for node in flow.nodes:
        versions.update(node.inputs, node.outputs)
        versions.update((tensor, 0) for tensor in node.allocated & node.freed)
    return versions


def _depending_on_learned(flow: DataFlow, categories: TensorCategories) -> set[int]:
    identities = flow.identities
    dependent: set[int] = set()
    while True:
        count = len(dependent)
        for node in flow.nodes:
            inputs = [
                identities[tensor]
                for tensor, version in node.inputs
                if identities[tensor] in dependent or categories.category_of(tensor, version) in _LEARNED
            ]
            if inputs:
                dependent.update(inputs)
                dependent.update(identities[tensor] for tensor, _ in node.outputs)
        if len(dependent) == count:
            return dependent


def _required_for_learned(flow: DataFlow, categories: TensorCategories) -> set[_Version]:
    """Return the tensor versions that occur together with parameters or gradients, directly or through later operators.

    Outputs of backward passes are excluded.
    """
    required: set[_Version] = set()
    for node in reversed(flow.nodes):
        versions = [*node.inputs, *node.outputs]
        if not required.isdisjoint(versions) or categories.any_in(versions, _LEARNED):
            required.update(versions)
    for node in flow.nodes:
        if node.backward:
            required.difference_update(node.outputs)
    return required


def _inferred_parameters(flow: DataFlow, categories: TensorCategories, learned: set[int]) -> set[int]:
    versions = all_versions(flow, categories)
    gradient = frozenset({GRADIENT})
    forward = {version for version in versions if categories.category_of(*version) == INPUT}
    candidates: set[_Version] = set()
    for node in flow.nodes:
        if node.backward or forward.isdisjoint(node.inputs):
            continue
        if categories.any_in([*node.inputs, *node.outputs], gradient):
            continue
        forward.update(node.outputs)
        candidates.update(version for version in node.inputs if version not in forward)
    required: set[_Version] = set()
    for node in reversed(flow.nodes):
        if not required.isdisjoint(node.outputs) or categories.any_in(node.outputs, gradient):
            required.update(node.inputs)
    identities = {flow.identities[tensor] for tensor, _ in candidates & required} & learned
    return {tensor for tensor, _ in versions if flow.identities[tensor] in identities}


def _assign_activations(flow: DataFlow, categories: TensorCategories) -> None:
    for node in flow.nodes:
        if not node.backward and node.outputs:
            operands = {categories.category_of(*version) for version in node.inputs}
            if operands & _ACTIVATION_SOURCES and operands <= _ACTIVATION_OPERANDS:
                categories.assign_default(node.outputs, ACTIVATION)
