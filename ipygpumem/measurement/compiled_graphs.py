"""Observers of calls to the graphs that torch.compile created.

torch.compile stores each graph as a global function in the namespace of the code that it compiled, and looks it up for
each call. The functions are wrapped while observers exist. No guard refers to them, so nothing is recompiled.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.measurement.runtime import EventPosition, current, event_position
from ipygpumem.snapshot.model.stacks import formatted_frames
from ipygpumem.sources.dynamo import skip_in_dynamo, without_dynamo
from ipygpumem.sources.pytorch import remove_own_frames

_PREFIX = "__compiled_fn_"
_OPTIMIZER_FILE = re.compile(r"[/\\]torch[/\\]optim[/\\]")


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Node of a graph, which represents an operation.

    Attributes:
        modules: Paths of the modules whose ``forward`` contains the operation, outermost first, as in ``L['self'].fc``.
        trace: Formatted stack of the operation, outermost call first.
    """

    modules: tuple[str, ...]
    trace: str

    @property
    def stack(self) -> list[tuple[str, int, str]]:
        return formatted_frames(self.trace)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGraph:
    """Graph of a compiled function or, if there are graph breaks, of a part of the function.

    Attributes:
        name: Compile ID as in PyTorch's logs, for example ``"0/1"``.
        inputs: For each input, the path of the innermost module that contains it; empty if there is none.
        file: File name, in stacks, of the Python code that torch.fx generated from the graph.
        node_of_line: Names of the nodes by line number in ``file``.
        optimizer: Whether the graph was compiled from the step of an optimizer.
    """

    name: str
    nodes: Mapping[str, GraphNode] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    file: str = ""
    node_of_line: Mapping[int, str] = field(default_factory=dict)
    optimizer: bool = False


class CompiledGraphObservers:
    """Observers of calls to compiled graphs.

    Before each call, the first callback of each observer is called with the graph and its inputs. After the call, the
    second callback is called with the graph.
    """

    def __init__(self) -> None:
        self._observers: list[tuple[Callable[..., None], Callable[..., None]]] = []
        self._wrapped: list[tuple[dict[str, Any], str, Any, Any]] = []

    def add(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._observers.append((before, after))
        with contextlib.suppress(Exception):
            self.wrap_new_graphs()

    def remove(self, before: Callable[..., None]) -> None:
        self._observers = [observer for observer in self._observers if observer[0] != before]
        if not self._observers:
            self.close()

    def close(self) -> None:
        wrapped, self._wrapped = self._wrapped, []
        for namespace, name, wrapper, function in wrapped:
            if namespace.get(name) is wrapper:
                namespace[name] = function

    def wrap_new_graphs(self) -> None:
        frames: Any = sys.modules.get("torch._dynamo.convert_frame")
        if not self._observers or frames is None:
            return
        codes = [reference() for reference in frames.input_codes.seen]
        files = {None, *(code.co_filename for code in codes if code is not None)}
        for module in list(sys.modules.values()) if codes else ():
            namespace = getattr(module, "__dict__", {})
            if module is not sys.modules.get("__main__") and namespace.get("__file__") not in files:
                continue
            for name in [name for name in list(namespace) if str(name).startswith(_PREFIX)]:
                function = namespace[name]
                if not hasattr(function, "_ipygpumem_graph"):
                    namespace[name] = wrapper = self._wrap(name, function)
                    self._wrapped.append((namespace, name, wrapper, function))

    def _wrap(self, name: str, function: Any) -> Any:
        graph = CompiledGraph(name.removeprefix(_PREFIX).partition("_")[0])
        with contextlib.suppress(Exception):  # a backend with other callables
            graph = _describe(graph.name, function)
        notify = without_dynamo(self._notify)

        def wrapper(*inputs: Any) -> Any:
            notify(0, graph, inputs)
            try:
                return function(*inputs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                notify(1, graph)

        wrapper._ipygpumem_graph = graph  # type: ignore[attr-defined]
        skip_in_dynamo(wrapper)
        return wrapper

    def _notify(self, position: int, *arguments: Any) -> None:
        for observer in tuple(self._observers):
            with contextlib.suppress(Exception):
                observer[position](*arguments)


def _describe(name: str, function: Any) -> CompiledGraph:
    while hasattr(function, "_torchdynamo_orig_callable"):
        function = function._torchdynamo_orig_callable
    # the function is a method of the graph, or AOTAutograd's, which has the graph's methods as attributes
    graph: Any = getattr(function, "named_parameters", function).__self__
    nodes = list(graph.graph.nodes)
    modules = {node.name: tuple(key for key, _ in (node.meta.get("nn_module_stack") or {}).values()) for node in nodes}
    traces = [node.meta["stack_trace"] for node in nodes if node.meta.get("stack_trace")]
    lines = vars(graph).get("_lineno_map") or {}
    first = vars(graph).get("_prologue_start") or 0
    return CompiledGraph(
        str(graph.meta.get("dynamo_compile_id") or name),
        {node.name: GraphNode(modules[node.name], node.meta.get("stack_trace") or "") for node in nodes},
        tuple(modules[node.name][-1] if modules[node.name] else "" for node in nodes if node.op == "placeholder"),
        type(graph).forward.__code__.co_filename,
        {line + first: nodes[index].name for line, index in lines.items() if index is not None},
        optimizer=bool(traces) and all(_OPTIMIZER_FILE.search(trace) for trace in traces),
    )


@dataclass(frozen=True, slots=True)
class GraphCall:
    """Call to a graph, with its begin and end in the sequence of allocation events."""

    graph: CompiledGraph
    begin: EventPosition
    end: EventPosition


class GraphCallRecorder:
    """Observer that records the calls to compiled graphs between `start` and `stop`."""

    cost = 0.0

    def __init__(self) -> None:
        self.calls: list[GraphCall] = []
        self._running = threading.local()

    def start(self) -> None:
        current().state(CompiledGraphObservers).add(self._begin, self._end)

    def stop(self) -> None:
        current().state(CompiledGraphObservers).remove(self._begin)

    def _begin(self, graph: CompiledGraph, inputs: Any) -> None:  # noqa: ARG002 (an observer)
        vars(self._running).setdefault("positions", []).append(event_position())

    def _end(self, graph: CompiledGraph) -> None:
        self.calls.append(GraphCall(graph, self._running.positions.pop(), event_position()))
