"""What each tensor is for: parameter, gradient, activation and so on, told from who uses it.

The rules are those of torch's own (and deprecated) memory timeline, so that both tell the same; see
``torch/profiler/_memory_profiler.py`` for where they come from. What is here needs one pass over the operators where
that needs many, and does not stop at a program that it does not understand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipygpumem.features.profile.flow import Flow, Node

__all__ = [
    "ACTIVATION",
    "AUTOGRAD",
    "CATEGORIES",
    "GRADIENT",
    "INPUT",
    "PARAMETER",
    "STATE",
    "TEMPORARY",
    "UNKNOWN",
    "Categories",
    "classify",
    "versions_of",
]

CATEGORIES = (
    "parameter",
    "optimizer state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd detail",
    "unknown",
)
"""In the order in which torch stacks them."""
PARAMETER, STATE, INPUT, TEMPORARY, ACTIVATION, GRADIENT, AUTOGRAD, UNKNOWN = range(len(CATEGORIES))

_FLOWS_ON = frozenset({INPUT, ACTIVATION})
_BESIDE = frozenset({INPUT, ACTIVATION, PARAMETER, TEMPORARY})
_Version = tuple[int, int]


class Categories:
    """Answers `of`: what a version of a tensor is for."""

    def __init__(self, flow: Flow) -> None:
        self._identities = flow.identities
        self._by_identity: dict[int, int] = {}
        self._temporary = {tensor for node in flow.nodes if node.died for tensor in node.born if tensor in node.died}
        self._by_version: dict[_Version, int] = {}
        self.named: set[int] = set()
        """Tensors whose category is that of their identity: each has a version 0, whether or not an operator saw it."""

    def of(self, tensor: int, version: int) -> int:
        """The category, as an index into `CATEGORIES`."""
        found = self._by_identity.get(self._identities[tensor])
        if found is not None:
            return found
        if tensor in self._temporary:
            return TEMPORARY
        return self._by_version.get((tensor, version), UNKNOWN)

    def name(self, tensors: set[int], category: int) -> None:
        """These, and whatever shares their identity, are of a category, whatever was said before."""
        self.named |= tensors
        self._by_identity.update((self._identities[tensor], category) for tensor in tensors)

    def suggest(self, versions: list[_Version] | set[_Version], category: int) -> None:
        """These are of a category, unless something was said before."""
        for version in versions:
            self._by_version.setdefault(version, category)


def classify(flow: Flow) -> Categories:
    """Categories of all tensors of a program."""
    categories = Categories(flow)
    categories.name(flow.gradients, GRADIENT)
    categories.name(flow.parameters, PARAMETER)
    learned = _learned(flow, categories)
    inputs = {one for one in _leads_to_gradients(flow, categories) if flow.identities[one[0]] not in learned}
    categories.suggest(inputs, INPUT)
    categories.name(_silent_parameters(flow, categories, learned), PARAMETER)
    _spread_activations(flow, categories)
    categories.name(flow.states, STATE)
    for node in flow.nodes:
        if node.backward:
            fresh = [
                (tensor, version)
                for tensor, version in node.outputs
                if version == 0 or categories.of(tensor, version - 1) in {UNKNOWN, AUTOGRAD}
            ]
            categories.suggest(fresh, AUTOGRAD)
    return categories


def versions_of(flow: Flow, categories: Categories) -> set[_Version]:
    """Every version of every tensor that something is known of."""
    found: set[_Version] = {(tensor, 0) for tensor in categories.named}
    for node in flow.nodes:
        found.update(node.inputs)
        found.update(node.outputs)
        found.update((tensor, 0) for tensor in node.born if tensor in node.died)
    return found


def _learned(flow: Flow, categories: Categories) -> set[int]:
    """Identities of tensors that depend on a gradient or a parameter, in any of their versions."""
    identities = flow.identities
    found: set[int] = set()
    known = {PARAMETER, GRADIENT}
    while True:
        before = len(found)
        for node in flow.nodes:
            reached = [
                identities[tensor]
                for tensor, version in node.inputs
                if identities[tensor] in found or categories.of(tensor, version) in known
            ]
            if reached:
                found.update(reached)
                found.update(identities[tensor] for tensor, _ in node.outputs)
        if len(found) == before:
            return found


def _leads_to_gradients(flow: Flow, categories: Categories) -> set[_Version]:
    """Versions that some gradient or parameter comes of; none that a backward pass made."""
    known = {PARAMETER, GRADIENT}
    found: set[_Version] = set()
    for node in reversed(flow.nodes):
        around = [*node.inputs, *node.outputs]
        if any(one in found or categories.of(*one) in known for one in around):
            found.update(around)
    for node in flow.nodes:
        if node.backward:
            found.difference_update(node.outputs)
    return found


def _silent_parameters(flow: Flow, categories: Categories, learned: set[int]) -> set[int]:
    """Parameters that no module or optimizer showed: used going forward, needed for a gradient and changed by one."""
    every = versions_of(flow, categories)
    forward = {one for one in every if categories.of(*one) == INPUT}
    candidates: set[_Version] = set()
    for node in flow.nodes:
        if node.backward or forward.isdisjoint(node.inputs) or _has_gradient(node, categories):
            continue
        forward.update(node.outputs)
        candidates.update(one for one in node.inputs if one not in forward)
    needed: set[_Version] = set()
    for node in reversed(flow.nodes):
        if any(one in needed or categories.of(*one) == GRADIENT for one in node.outputs):
            needed.update(node.inputs)
    chosen = {flow.identities[tensor] for tensor, _ in candidates & needed} & learned
    return {tensor for tensor, _ in every if flow.identities[tensor] in chosen} if chosen else set()


def _has_gradient(node: Node, categories: Categories) -> bool:
    return any(categories.of(*one) == GRADIENT for part in (node.inputs, node.outputs) for one in part)


def _spread_activations(flow: Flow, categories: Categories) -> None:
    """What is made of inputs and activations alone, or of these and parameters, is an activation."""
    for node in flow.nodes:
        if node.backward or not node.outputs:
            continue
        kinds = {categories.of(*one) for one in node.inputs}
        if kinds & _FLOWS_ON and kinds <= _BESIDE:
            categories.suggest(node.outputs, ACTIVATION)
