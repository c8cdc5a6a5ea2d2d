"""Attribution of recorded allocations to memory kinds and modules."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.features.modules.model import MEMORY_KINDS, MemoryKind
from ipygpumem.features.modules.storages import ModuleInfo
from ipygpumem.features.modules.tracker import ModuleCallEvent, ModuleTracker
from ipygpumem.features.recording_analysis import THREAD_FILE, CompiledCode, EventLookup, outermost_files
from ipygpumem.measurement.compiled_graphs import CompiledGraph, GraphNode
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.timeline import Ints, Timeline

Mask = NDArray[np.bool_]

DDP = "DistributedDataParallel"
_KIND_CODES: dict[MemoryKind, int] = {kind: code for code, kind in enumerate(MEMORY_KINDS)}
_FORWARD = len(MEMORY_KINDS)  # provisional: becomes activation or temporary, depending on whether it outlives the call
_OTHER_CODE = _KIND_CODES["outside the model"]


class AttributedAllocations:
    """The allocations of one device, each with its memory kind and the module that owns it.

    If the modules that use the memory of a compiled graph are unknown, the graph is listed as a submodule.

    Attributes:
        modules: The modules and graphs, each before its submodules.
        calls: Number of calls to each of ``modules`` outside backward passes.
        recomputed: Number of calls to each of ``modules`` during backward passes.
        kind: Index into `MEMORY_KINDS` for each allocation.
        module: Index into ``modules`` for each allocation; -1 for allocations that belong to no module.
        resolved: Indices of the modules that called compiled graphs whose memory was attributed to modules.
    """

    def __init__(self, snapshot: Snapshot, timeline: Timeline, places: EventLookup, tracker: ModuleTracker) -> None:
        self._timeline = timeline
        self._places = places
        self._tracker = tracker
        self._code = CompiledCode(snapshot)
        self._index_by_path = {module.path: index for index, module in enumerate(tracker.modules)}
        self._graphs: dict[tuple[int, CompiledGraph], int] = {}  # module index by caller and graph
        self.resolved: set[int] = set()
        allocations = timeline.allocations
        self.kind = np.full(len(allocations), _OTHER_CODE, np.int64)
        self.module = np.full(len(allocations), -1, np.int64)
        event_kind, event_module, call_end = self._attribute_events(outermost_files(snapshot)[timeline.trace.stack])
        has_event = allocations.start >= 0
        start = allocations.start[has_event]
        self.kind[has_event], self.module[has_event] = event_kind[start], event_module[start]
        outlives_call = np.zeros(len(allocations), np.bool_)
        outlives_call[has_event] = allocations.end[has_event] > call_end[start]
        forward = self.kind == _FORWARD
        self.kind[forward] = _KIND_CODES["forward, temporary"]
        self.kind[forward & outlives_call] = _KIND_CODES["activations"]
        # allocations of DistributedDataParallel itself are gradient buckets
        wrappers = [index for index, module in enumerate(tracker.modules) if module.type == DDP]
        buckets = forward & outlives_call & np.isin(self.module, wrappers)
        self.kind[buckets], self.module[buckets] = _OTHER_CODE, -1
        self._attribute_by_address(f"cuda:{timeline.device}")
        self._list_graphs()

    def _attribute_events(self, roots: NDArray[Any]) -> tuple[Ints, Ints, Ints]:
        count = len(self._timeline.trace)
        kind = np.full(count, _OTHER_CODE, np.int64)
        module = np.full(count, -1, np.int64)
        call_end = np.full(count, count, np.int64)
        calls = self._tracker.calls
        in_thread = np.asarray([root is not None and root.endswith(THREAD_FILE) for root in roots], np.bool_)
        model_in_thread = any(call.root.endswith(THREAD_FILE) for call in calls)
        for name, begin, end in self._tracker.spans:
            span = slice(self._places.event(begin) + 1, self._places.event(end) + 1)
            kind[span] = _KIND_CODES["backward" if name == "backward" else "optimizer"]
            if not model_in_thread:
                kind[span][in_thread[span]] = _KIND_CODES["other threads"]
        stacks: dict[int, list[ModuleCallEvent]] = {}  # by thread
        outermost_start: dict[int, int] = {}  # by thread
        starts = self._places.events([call.at for call in calls]) + 1
        for call, first, last in zip(calls, starts.tolist(), [*starts[1:].tolist(), count], strict=False):
            stack = stacks.setdefault(call.thread, [])
            if call.enter:
                if not stack:
                    outermost_start[call.thread] = first
                stack.append(call)
            elif stack:
                stack.pop()
                if not stack:
                    during = slice(outermost_start[call.thread], first)
                    call_end[during][(module[during] >= 0) & (roots[during] == call.root)] = first - 1
            running_calls = [thread_stack[-1] for thread_stack in stacks.values() if thread_stack]
            self._attribute_span(running_calls, slice(first, last), roots, kind, module)
        return kind, module, call_end

    def _attribute_span(
        self, running_calls: list[ModuleCallEvent], span: slice, roots: NDArray[Any], kind: Ints, module: Ints
    ) -> None:
        if running_calls and not any("backward" in call.phases for call in running_calls):
            # a forward pass runs in a single thread; while it is recomputed, PyTorch's backward threads also run
            kind[span] = _KIND_CODES["other threads"]
        thread_roots = [call.root for call in running_calls]
        for call in running_calls:
            if thread_roots.count(call.root) == 1:  # otherwise the threads cannot be distinguished
                events = np.flatnonzero(roots[span] == call.root) + span.start
                kind[events] = _KIND_CODES["recomputed"] if "backward" in call.phases else _FORWARD
                module[events] = call.module
                if call.graph is None:
                    continue
                stacks = self._timeline.trace.stack[events]
                for stack in np.unique(stacks).tolist():
                    module[events[stacks == stack]] = owner = self._owner(call, call.graph, stack)
                    if owner < 0:
                        kind[events[stacks == stack]] = _OTHER_CODE

    def _owner(self, call: ModuleCallEvent, graph: CompiledGraph, stack: int) -> int:
        owners = {self._module_of(node, call) for node in self._code.operations(graph, stack)}
        caller = call.module if call.module >= 0 else reduce(self._common_parent, [index for _, index in call.prefixes])
        if not owners or None in owners:
            return self._graphs.setdefault((caller, graph), len(self._tracker.modules) + len(self._graphs))
        self.resolved.add(caller)
        return reduce(self._common_parent, [owner for owner in owners if owner is not None and owner >= 0] or [-1])

    def _module_of(self, node: GraphNode, call: ModuleCallEvent) -> int | None:
        for prefix, index in sorted(call.prefixes, reverse=True) if node.modules else ():  # the longest prefix first
            prefix_path = self._tracker.modules[index].path
            for path in reversed(node.modules):
                if path == prefix or path.startswith(f"{prefix}."):
                    node_index = self._index_by_path.get(f"{prefix_path}{path.removeprefix(prefix)}".removeprefix("."))
                    if node_index is not None:
                        return node_index
        return None if node.modules and call.module >= 0 else call.module

    def _list_graphs(self) -> None:
        modules = list(self._tracker.modules)
        for parent, graph in self._graphs:
            name = f"compiled graph {graph.name}"
            path = modules[parent].path
            modules.append(ModuleInfo(f"{path}.{name}" if path else name, "operations of unknown modules", parent))
        children: dict[int, list[int]] = {}
        for index in reversed(range(len(modules))):
            children.setdefault(modules[index].parent, []).append(index)
        order, pending = [], children[-1].copy()
        while pending:
            order.append(pending.pop())
            pending += children.get(order[-1], ())
        position = np.full(len(modules) + 1, -1, np.int64)  # the last element is for index -1
        position[order] = np.arange(len(modules))
        self.modules = [replace(modules[index], parent=int(position[modules[index].parent])) for index in order]
        self.module = position[self.module]
        self.resolved = {int(position[index]) for index in self.resolved}
        self.calls, self.recomputed = np.zeros((2, len(modules)), np.int64).tolist()
        for call in self._tracker.calls:
            index = call.module if call.graph is None else self._graphs.get((call.module, call.graph), -1)
            if call.enter and index >= 0:
                (self.recomputed if "backward" in call.phases else self.calls)[position[index]] += 1

    def _attribute_by_address(self, device: str) -> None:
        allocations = self._timeline.allocations
        if not len(allocations):
            return
        # sorted by address, then by start, so that the allocation at an address and event can be found by bisection
        order = np.lexsort((allocations.start, allocations.address))
        addresses, rank = np.unique(allocations.address[order], return_inverse=True)
        stride = len(self._timeline.trace) + 2
        keys = rank * stride + allocations.start[order] + 1
        owners: dict[int, tuple[int, int]] = {}
        for position, scanned in self._tracker.scans:
            storages = [storage for storage in scanned if storage.device == device]
            address = np.asarray([storage.address for storage in storages], np.int64)
            event = self._places.event(position)
            place = np.minimum(np.searchsorted(addresses, address), len(addresses) - 1)
            row = order[np.searchsorted(keys, place * stride + event + 1, side="right") - 1]
            valid = (allocations.address[row] == address) & (allocations.end[row] > event)
            for storage, allocation in zip(storages, np.where(valid, row, -1).tolist(), strict=True):
                if allocation < 0:
                    continue
                code = _KIND_CODES[storage.kind]  # type: ignore[index]
                previous = owners.get(allocation)
                if previous is None or code < previous[0]:
                    owners[allocation] = code, storage.module
                elif code == previous[0] and storage.module != previous[1]:  # several modules share the storage
                    owners[allocation] = code, self._common_parent(previous[1], storage.module)
        for allocation, (code, index) in owners.items():
            self.kind[allocation], self.module[allocation] = code, index

    def _common_parent(self, first: int, second: int) -> int:
        while first != second:  # a parent has a lower index than its submodules
            first, second = min(first, second), self._tracker.modules[max(first, second)].parent
        return first

    def of_kind(self, *kinds: MemoryKind) -> Mask:
        return np.isin(self.kind, [_KIND_CODES[kind] for kind in kinds])

    def alive(self, event: int) -> Mask:
        allocations = self._timeline.allocations
        return (allocations.start <= event) & (allocations.end > event)

    def total(self, rows: Mask) -> int:
        return int(self._timeline.allocations.size[rows].sum())

    def by_module(self, rows: Mask) -> list[int]:
        """Return the requested sizes of the selected allocations by module, in bytes, excluding submodules."""
        sums = np.zeros(len(self.modules), np.int64)
        owned = rows & (self.module >= 0)
        np.add.at(sums, self.module[owned], self._timeline.allocations.size[owned])
        totals: list[int] = sums.tolist()
        return totals

    def highest(self, rows: Mask) -> tuple[int, int]:
        """Return the event and the size in bytes of the selected allocations' peak; (-1, 0) if none are selected."""
        if not rows.any():
            return -1, 0
        allocations = self._timeline.allocations
        size = allocations.size[rows]
        events, step = np.unique(np.concatenate([allocations.start[rows], allocations.end[rows]]), return_inverse=True)
        changes = np.zeros(len(events), np.int64)
        np.add.at(changes, step, np.concatenate([size, -size]))
        usage = np.cumsum(changes)
        peak = int(np.argmax(usage))
        return int(events[peak]), int(usage[peak])
