"""Reading what torch.profiler recorded: the only module that knows its private event tree.

The tree has an event for each operator, allocation, free and Python call. The operators that count are the topmost ones
with a schema, and the functions of a backward pass; what runs inside belongs to them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ipygpumem.features.profile.data_flow import AllocatorLevel, DataFlow, Node, UnmatchedEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Event = tuple[int, Any, str, Any, int]
    _Touched = list[tuple[int, bool | None]]

__all__ = ["read_allocations", "read_flow"]

_OPERATOR, _ALLOCATION, _CALL = "TorchOp", "Allocation", "PyCall"
_BACKWARD = "BACKWARD_FUNCTION"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_ACCUMULATED_BY = frozenset({"aten::detach", "aten::add_"})
_TENSOR, _OTHER = "tensor", "other"
_SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex", type(None): "none"}


def read_flow(result: Any) -> DataFlow:
    """The operators of a profile that had memory and shapes.

    Args:
        result: torch's ``_ProfilerResult``: a profiler's ``profiler.kineto_results``.

    Raises:
        Exception: This torch has another tree; `read_allocations` may still know something.
    """
    return _Reader().read(result.experimental_event_tree())


def read_allocations(result: Any) -> DataFlow:
    """Allocations and frees alone, of a result whose tree cannot be read.

    Raises:
        Exception: This torch tells not even these.
    """
    flow = DataFlow()
    types: dict[Any, str] = {}
    for event in result.events():
        if event.name() == "[memory]":
            kind = event.device_type()
            if kind not in types:
                types[kind] = str(kind).rpartition(".")[2].lower()
            index = event.device_index()
            device = types[kind] if types[kind] == "cpu" or index < 0 else f"{types[kind]}:{index}"
            # no address: a free is matched with whatever is there, which is the same for the sum
            flow.unmatched.append(UnmatchedEvent(event.start_ns(), device, len(flow.unmatched), event.nbytes()))
    flow.unmatched = _matched(flow.unmatched)
    return flow


def _matched(events: list[UnmatchedEvent]) -> list[UnmatchedEvent]:
    """Events without addresses get some: a free takes the latest allocation of its size."""
    open_: dict[tuple[str, int], list[int]] = {}
    found = []
    for event in sorted(events, key=lambda one: one.time):
        stack = open_.setdefault((event.device, abs(event.size)), [])
        if event.size > 0:
            stack.append(event.address)
        found.append(event._replace(address=stack.pop()) if event.size < 0 and stack else event)
    return found


@dataclass(slots=True)
class _Leaf:
    """An operator of the program's own: the tensors that it and what runs inside touched, what they allocated."""

    time: int
    backward: bool
    touched: _Touched = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)

    def add(self, touched: _Touched, memory: Any | None) -> None:
        """What an event inside it says."""
        self.touched += touched
        if memory is not None:
            self.memory.append(memory)


class _Reader:
    """One tree."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        self._torch = torch
        self._metadata: type = torch._C._profiler._TensorMetadata
        self._backward = getattr(torch._C._profiler.RecordScope, _BACKWARD)
        self._flow = DataFlow()
        self._numbers: dict[tuple[int, int, Any], int] = {}
        self._devices: dict[Any, str] = {}
        self._versions: list[int] = []
        self._strided = torch.strided
        self._widths: dict[Any, int] = {}

    def read(self, roots: list[Any]) -> DataFlow:
        events = list(_preorder(roots))
        flow = self._flow
        for time, _, kind, fields, _ in events:
            if kind == _ALLOCATION:
                self._allocation(time, fields)
        leaves = self._leaves(events)
        nodes = map(self._node, sorted(leaves, key=lambda one: one.time))
        flow.nodes = [node for node in nodes if node is not None]
        for levels in flow.allocator_levels.values():
            levels.sort()
        flow.span = (min(one[0] for one in events), max(one[0] for one in events)) if events else (0, 0)
        return flow

    def _leaves(self, events: list[_Event]) -> list[_Leaf]:
        """The operators of the program's own, and what is outside of any."""
        leaves: dict[int, _Leaf] = {}
        whose: list[int] = []  # by event: the leaf that it belongs to
        for number, (time, event, kind, fields, parent) in enumerate(events):
            leaf = whose[parent] if parent >= 0 else -1
            inside = False
            touched: _Touched = []
            if kind == _OPERATOR:
                inside = fields.scope == self._backward
                known, touched = self._arguments(fields)
                leaf = number if leaf < 0 and (inside or known) else leaf
                self._accumulated(event, fields, inside=inside)
            elif kind == _ALLOCATION:
                leaf = number if leaf < 0 else leaf
            else:
                self._called(fields)
            whose.append(leaf)
            if leaf >= 0:
                leaves.setdefault(leaf, _Leaf(time, inside)).add(touched, fields if kind == _ALLOCATION else None)
        return list(leaves.values())

    def _tensor(self, identity: int | None, allocation: int | None, device: Any, address: int | None) -> int | None:
        """The number of a storage; None where torch does not know it again."""
        if identity is None or allocation is None or address is None:
            return None
        key = identity, allocation, device
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            flow = self._flow
            flow.identities.append(identity)
            flow.devices.append(self._device(device))
            flow.sizes.append(None)
            self._versions.append(0)
        return number

    def _device(self, device: Any) -> str:
        name = self._devices.get(device)
        if name is None:
            kind, index = device.type, device.index
            name = self._devices[device] = kind if kind == "cpu" or index is None else f"{kind}:{index}"
        return name

    def _seen(self, tensor: Any) -> int | None:
        return self._tensor(tensor.id, tensor.allocation_id, tensor.device, tensor.storage_data_ptr)

    def _allocation(self, time: int, fields: Any) -> None:
        flow, size = self._flow, fields.alloc_size
        device = fields.device
        tensor = self._tensor(fields.id, fields.allocation_id, device, fields.ptr)
        name = self._device(device)
        level = AllocatorLevel(time, fields.total_allocated, fields.total_reserved)
        flow.allocator_levels.setdefault(name, []).append(level)
        if tensor is None:
            flow.unmatched.append(UnmatchedEvent(time, name, fields.ptr, size))
            return
        (flow.allocation_times if size > 0 else flow.free_times)[tensor] = time
        if flow.sizes[tensor] is None:
            flow.sizes[tensor] = abs(size)

    def _arguments(self, fields: Any) -> tuple[bool, _Touched]:
        """Whether an operator is known, and the tensors among its arguments: is each written, None where unknown."""
        signature: list[Any] = []
        seen: list[tuple[int, int]] = []
        for place, one in enumerate(fields.inputs):
            kinds = []
            for part in one if isinstance(one, list) else (one,):
                if type(part) is self._metadata:
                    number = self._size_of(part)
                    kinds.append("none" if number is None else _TENSOR)
                    if number is not None:
                        seen.append((place, number))
                else:
                    kinds.append(_SCALARS.get(type(part), _OTHER))
            signature.append(frozenset(kinds) if isinstance(one, list) else kinds[0])
        known, writes = _mutability(fields.name, tuple(signature))
        return known, [(number, writes[place] if known else None) for place, number in seen]

    def _size_of(self, tensor: Any) -> int | None:
        """A storage has at least the bytes that its tensors reach; where it was seen to be allocated, these."""
        number = self._seen(tensor)
        if number is None:
            return None
        flow = self._flow
        if number not in flow.allocation_times and number not in flow.free_times and tensor.layout == self._strided:
            reach = max(map(_times, tensor.sizes or (1,), tensor.strides or (1,)))
            kind = tensor.dtype
            width = self._widths.get(kind)
            if width is None:
                width = self._widths[kind] = kind.itemsize
            flow.sizes[number] = max(flow.sizes[number] or 0, reach * width)
        return number

    def _accumulated(self, event: Any, fields: Any, *, inside: bool) -> None:
        """The function that adds to a parameter's gradient shows it: by its first operator's first argument."""
        children = event.children if inside and fields.name == _ACCUMULATE else ()
        if not children or children[0].name not in _ACCUMULATED_BY:
            return
        kind, fields = children[0].typed
        if kind.name != _OPERATOR:
            return
        inputs = fields.inputs
        if inputs and isinstance(inputs[0], self._metadata):
            number = self._size_of(inputs[0])
            if number is not None:
                self._flow.gradients.add(number)

    def _called(self, fields: Any) -> None:
        """A call of a module or of an optimizer's step shows its tensors."""
        flow = self._flow
        found: list[tuple[set[int], Any]] = []
        if fields.module is not None:
            for _, parameter, gradient in fields.module.parameters:
                found += [(flow.parameters, parameter), (flow.gradients, gradient)]
        if fields.optimizer is not None:
            for parameter, gradient, state in fields.optimizer.parameters:
                found += [(flow.parameters, parameter), (flow.gradients, gradient)]
                found += [(flow.states, tensor) for _, tensor in state]
        for kind, tensor in found:
            number = None if tensor is None else self._size_of(tensor)
            if number is not None:
                kind.add(number)

    def _node(self, leaf: _Leaf) -> Node | None:
        """An operator with all that ran inside it; None where no tensor of it is known."""
        touched: dict[int, set[bool | None]] = {}
        for tensor, written in leaf.touched:
            touched.setdefault(tensor, set()).add(written)
        node = Node(leaf.time, leaf.backward)
        for fields in leaf.memory:
            one = self._tensor(fields.id, fields.allocation_id, fields.device, fields.ptr)
            if one is not None:
                (node.allocated if fields.alloc_size > 0 else node.freed).add(one)
        for tensor in {*touched, *node.allocated, *node.freed}:
            version = self._versions[tensor]
            if tensor in node.allocated:
                if tensor not in node.freed:
                    node.outputs.append((tensor, 0))
                continue
            node.inputs.append((tensor, version))
            how = touched.get(tensor, ())
            # written where some schema says so, or where none is known
            if tensor not in node.freed and (True in how or how == {None}):
                node.written.append((tensor, version))
                node.outputs.append((tensor, version + 1))
                self._versions[tensor] = version + 1
        return node if node.inputs or node.outputs or node.allocated else None


def _times(size: int, stride: int) -> int:
    return size * stride


def _preorder(roots: list[Any]) -> Iterator[_Event]:
    """Each event that matters, parents first: time, event, kind, facts, number of the nearest of these around it."""
    names: dict[Any, str] = {}
    waiting = [(root, -1) for root in reversed(roots)]
    number = 0
    while waiting:
        event, parent = waiting.pop()
        try:
            tag, fields = event.typed
            kind = names.get(tag) or names.setdefault(tag, tag.name)
        except (RuntimeError, TypeError, ValueError):  # of a kind that Python does not know, as running out of memory
            kind, fields = "", None
        here = parent
        if kind in {_OPERATOR, _ALLOCATION} or (
            kind == _CALL and (fields.module is not None or fields.optimizer is not None)
        ):
            yield event.start_time_ns, event, kind, fields, parent
            here = number
            number += 1
        waiting.extend((child, here) for child in reversed(event.children))


@lru_cache(maxsize=4096)
def _mutability(name: str, signature: tuple[Any, ...]) -> tuple[bool, tuple[bool, ...]]:
    """Whether an operator with such arguments is known, and which of them one of its overloads writes into."""
    if "::" not in name:  # torch refuses to look for what cannot be an operator
        return False, ()
    torch: Any = sys.modules["torch"]
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
    except RuntimeError:
        return False, ()
    fitting = [
        schema.arguments
        for schema in schemas
        if len(schema.arguments) == len(signature)
        and all(_fits(torch._C, given, wanted.type) for given, wanted in zip(signature, schema.arguments, strict=True))
    ]
    columns = zip(*fitting, strict=True)
    writes = tuple(any(getattr(one.alias_info, "is_write", False) for one in column) for column in columns)
    return bool(fitting), writes


def _fits(c: Any, given: Any, wanted: Any) -> bool:
    """Whether an argument of a kind may stand where a schema has a type; what a profiler does not record is None."""
    if isinstance(wanted, c.OptionalType):
        return given == "none" or _fits(c, given, wanted.getElementType())
    if isinstance(wanted, c.AnyType):
        return True
    if wanted.isSubtypeOf(c.ListType.ofTensors()):
        return isinstance(given, frozenset) and given <= {_TENSOR}
    for kind, names in (
        (c.TensorType, {_TENSOR}),
        (c.NoneType, {"none"}),
        (c.BoolType, {"bool"}),
        (c.IntType, {"bool", "int"}),
        (c.FloatType, {"float"}),
        (c.ComplexType, {"complex"}),
        (c.NumberType, {"bool", "int", "float", "complex"}),
    ):
        if isinstance(wanted, kind):
            return given in names
    return given == "none"  # type: ignore[no-any-return]
