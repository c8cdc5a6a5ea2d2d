"""Read torch.profiler's event tree, a private interface that no other module of this package uses.

The tree contains events for operators, allocations, frees and Python calls. Each outermost event that is an operator
with a schema, a function of a backward pass, an allocation or a free becomes a `DataFlowNode`, which includes all
events inside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from operator import mul
from typing import Any

from ipygpumem.core.introspection import attempt
from ipygpumem.features.profile.categories import DataFlow, DataFlowNode, UnmatchedEvent

_Event = tuple[int, Any, str, Any, int]  # timestamp, event, kind, fields, index of the enclosing event
_Writes = dict[int, set[bool | None]]  # whether operators write to a tensor (None: unknown), by tensor

_OPERATOR, _ALLOCATION, _CALL = "TorchOp", "Allocation", "PyCall"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_ACCUMULATED_BY = frozenset({"aten::detach", "aten::add_"})
_TENSOR, _OTHER = "tensor", "other"
_SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex", type(None): "none"}


def read_flow(result: Any) -> DataFlow:
    """Read operators and memory events. An event tree with an unexpected structure can cause any exception."""
    return _EventTreeReader().read(result.experimental_event_tree())


def read_allocations(result: Any) -> DataFlow:
    """Read only allocations and frees, for profiles that `read_flow` cannot read. Any exception can be raised."""
    events: list[UnmatchedEvent] = []
    for event in result.events():
        if event.name() == "[memory]":
            kind = str(event.device_type()).rpartition(".")[2].lower()
            index = event.device_index()
            device = kind if kind == "cpu" or index < 0 else f"{kind}:{index}"
            events.append(UnmatchedEvent(event.start_ns(), device, len(events), event.nbytes()))
    # without addresses, match each free with the latest allocation of the same size, which keeps the totals correct
    open_addresses: dict[tuple[str, int], list[int]] = {}
    flow = DataFlow()
    for event in sorted(events, key=lambda event: event.time):
        addresses = open_addresses.setdefault((event.device, abs(event.size)), [])
        if event.size > 0:
            addresses.append(event.address)
        is_matched = event.size < 0 and addresses
        flow.unmatched.append(event._replace(address=addresses.pop()) if is_matched else event)
    return flow


class _EventTreeReader:
    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        self._tensor_metadata: type = torch._C._profiler._TensorMetadata
        self._backward_scope = torch._C._profiler.RecordScope.BACKWARD_FUNCTION
        self._strided = torch.strided
        self._flow = DataFlow()
        self._tensor_numbers: dict[tuple[int, int, Any], int] = {}
        self._versions: list[int] = []

    def read(self, roots: list[Any]) -> DataFlow:
        events = list(_relevant_events(roots))
        flow = self._flow
        for time, _, kind, fields, _ in events:
            if kind == _ALLOCATION:
                self._add_memory_event(time, fields)
        for node, writes in sorted(self._outermost_operators(events), key=lambda operator: operator[0].time):
            self._add_versions(node, writes)
            if node.inputs or node.outputs or node.allocated:
                flow.nodes.append(node)
        if events:
            flow.span = min(event[0] for event in events), max(event[0] for event in events)
        return flow

    def _outermost_operators(self, events: list[_Event]) -> list[tuple[DataFlowNode, _Writes]]:
        operators: dict[int, tuple[DataFlowNode, _Writes]] = {}
        operator_of: list[int] = []  # index of the outermost operator that contains each event, or -1
        for index, (time, event, kind, fields, parent) in enumerate(events):
            outermost = operator_of[parent] if parent >= 0 else -1
            backward = False
            uses: list[tuple[int, bool | None]] = []
            if kind == _OPERATOR:
                backward = fields.scope == self._backward_scope
                has_schema, uses = self._tensor_arguments(fields)
                if outermost < 0 and (backward or has_schema):
                    outermost = index
                if backward:
                    self._add_accumulated_gradient(event, fields)
            elif kind == _ALLOCATION:
                outermost = index if outermost < 0 else outermost
            else:
                self._add_call(fields)
            operator_of.append(outermost)
            if outermost < 0:
                continue
            node, writes = operators.setdefault(outermost, (DataFlowNode(time, backward), {}))
            for tensor, written in uses:
                writes.setdefault(tensor, set()).add(written)
            if kind == _ALLOCATION and (number := self._memory_number(fields)) is not None:
                (node.allocated if fields.alloc_size > 0 else node.freed).add(number)
        return list(operators.values())

    def _index_of(self, identity: int | None, allocation: int | None, device: Any, address: int | None) -> int | None:
        """Return the index of a tensor, which is added if it is new. Return None if its storage was not identified."""
        if identity is None or allocation is None or address is None:
            return None
        key = identity, allocation, device
        number = self._tensor_numbers.get(key)
        if number is None:
            number = self._tensor_numbers[key] = len(self._tensor_numbers)
            self._flow.identities.append(identity)
            self._flow.devices.append(_device_name(device))
            self._flow.sizes.append(None)
            self._versions.append(0)
        return number

    def _memory_number(self, fields: Any) -> int | None:
        return self._index_of(fields.id, fields.allocation_id, fields.device, fields.ptr)

    def _add_memory_event(self, time: int, fields: Any) -> None:
        flow, size = self._flow, fields.alloc_size
        tensor, device = self._memory_number(fields), _device_name(fields.device)
        flow.counters.setdefault(device, []).append((time, fields.total_allocated, fields.total_reserved))
        if tensor is None:
            flow.unmatched.append(UnmatchedEvent(time, device, fields.ptr, size))
            return
        (flow.allocation_times if size > 0 else flow.free_times)[tensor] = time
        if flow.sizes[tensor] is None:
            flow.sizes[tensor] = abs(size)

    def _tensor_arguments(self, fields: Any) -> tuple[bool, list[tuple[int, bool | None]]]:
        """Return whether the schema of an operator is known, and an (index, writes) pair for each tensor argument.

        ``index`` is the index of the tensor. ``writes`` states whether the operator writes to the tensor; None if the
        schema is unknown.
        """
        signature: list[Any] = []
        tensors: list[tuple[int, int]] = []
        for position, argument in enumerate(fields.inputs):
            kinds = []
            for value in argument if isinstance(argument, list) else (argument,):
                if type(value) is self._tensor_metadata:
                    number = self._add_tensor(value)
                    kinds.append("none" if number is None else _TENSOR)
                    if number is not None:
                        tensors.append((position, number))
                else:
                    kinds.append(_SCALARS.get(type(value), _OTHER))
            signature.append(frozenset(kinds) if isinstance(argument, list) else kinds[0])
        written = _written_arguments(fields.name, tuple(signature))
        uses = [(number, None if written is None else written[position]) for position, number in tensors]
        return written is not None, uses

    def _add_tensor(self, tensor: Any) -> int | None:
        """Return the index of a tensor, or None if its storage was not identified.

        If neither the allocation nor the free of a strided tensor was recorded, the size of its storage is computed
        from the sizes and strides of the tensor.
        """
        number = self._index_of(tensor.id, tensor.allocation_id, tensor.device, tensor.storage_data_ptr)
        if number is None:
            return None
        flow = self._flow
        if number not in flow.allocation_times and number not in flow.free_times and tensor.layout == self._strided:
            elements = max(map(mul, tensor.sizes or (1,), tensor.strides or (1,)))
            flow.sizes[number] = max(flow.sizes[number] or 0, elements * tensor.dtype.itemsize)
        return number

    def _add_accumulated_gradient(self, event: Any, fields: Any) -> None:
        children = event.children if fields.name == _ACCUMULATE else ()
        if not children or children[0].name not in _ACCUMULATED_BY:
            return
        # the gradient is the first argument of the first operator
        kind, fields = children[0].typed
        if kind.name == _OPERATOR and fields.inputs and isinstance(fields.inputs[0], self._tensor_metadata):
            number = self._add_tensor(fields.inputs[0])
            if number is not None:
                self._flow.gradients.add(number)

    def _add_call(self, fields: Any) -> None:
        flow = self._flow
        tensors: list[tuple[set[int], Any]] = []
        if fields.module is not None:
            for _, parameter, gradient in fields.module.parameters:
                tensors += [(flow.parameters, parameter), (flow.gradients, gradient)]
        if fields.optimizer is not None:
            for parameter, gradient, state in fields.optimizer.parameters:
                tensors += [(flow.parameters, parameter), (flow.gradients, gradient)]
                tensors += [(flow.states, tensor) for _, tensor in state]
        for numbers, tensor in tensors:
            number = None if tensor is None else self._add_tensor(tensor)
            if number is not None:
                numbers.add(number)

    def _add_versions(self, node: DataFlowNode, writes: _Writes) -> None:
        for tensor in {*writes, *node.allocated, *node.freed}:
            version = self._versions[tensor]
            if tensor in node.allocated:
                if tensor not in node.freed:
                    node.outputs.append((tensor, 0))
                continue
            node.inputs.append((tensor, version))
            # if no schema is known, assume that the operator writes to the tensor
            written = writes.get(tensor, set())
            if tensor not in node.freed and (True in written or written == {None}):
                node.written.append((tensor, version))
                node.outputs.append((tensor, version + 1))
                self._versions[tensor] = version + 1


def _device_name(device: Any) -> str:
    return "cpu" if device.type == "cpu" else str(device)


def _relevant_events(roots: list[Any]) -> Iterator[_Event]:
    """Yield operators, allocations, frees, and calls of modules and optimizers. Parents precede their children."""
    kind_names: dict[Any, str] = {}
    pending = [(root, -1) for root in reversed(roots)]
    index = 0
    while pending:
        event, parent = pending.pop()
        try:
            tag, fields = event.typed
            kind = kind_names.get(tag) or kind_names.setdefault(tag, tag.name)
        except (RuntimeError, TypeError, ValueError):  # the kind has no Python type, for example out of memory
            kind, fields = "", None
        is_call = kind == _CALL and (fields.module is not None or fields.optimizer is not None)
        if is_call or kind in {_OPERATOR, _ALLOCATION}:
            yield event.start_time_ns, event, kind, fields, parent
            parent = index
            index += 1
        pending.extend((child, parent) for child in reversed(event.children))


@lru_cache(maxsize=4096)
def _written_arguments(name: str, signature: tuple[Any, ...]) -> tuple[bool, ...] | None:
    """Return, for each argument, whether the operator writes to it, or None if no overload has this ``signature``."""
    if "::" not in name:  # not an operator, so PyTorch would raise an error
        return None
    torch: Any = sys.modules["torch"]
    schemas = attempt(lambda: torch._C._jit_get_schemas_for_operator(name)) or ()
    matching_arguments = [
        schema.arguments
        for schema in schemas
        if len(schema.arguments) == len(signature)
        and all(map(lambda kind, argument: _matches(torch._C, kind, argument.type), signature, schema.arguments))
    ]
    if not matching_arguments:
        return None
    columns = zip(*matching_arguments, strict=True)
    return tuple(any(getattr(argument.alias_info, "is_write", False) for argument in column) for column in columns)


def _matches(c_module: Any, kind: Any, expected: Any) -> bool:
    if isinstance(expected, c_module.OptionalType):
        return kind == "none" or _matches(c_module, kind, expected.getElementType())
    if isinstance(expected, c_module.AnyType):
        return True
    if expected.isSubtypeOf(c_module.ListType.ofTensors()):
        return isinstance(kind, frozenset) and kind <= {_TENSOR}
    for schema_type, kinds in (
        (c_module.TensorType, {_TENSOR}),
        (c_module.NoneType, {"none"}),
        (c_module.BoolType, {"bool"}),
        (c_module.IntType, {"bool", "int"}),
        (c_module.FloatType, {"float"}),
        (c_module.ComplexType, {"complex"}),
        (c_module.NumberType, {"bool", "int", "float", "complex"}),
    ):
        if isinstance(expected, schema_type):
            return kind in kinds
    return kind == "none"  # type: ignore[no-any-return]  # the profiler does not record arguments of other types
