"""Tracking of a model during a measurement: module calls, phases of a training step and storage addresses.

Global PyTorch hooks report the start and end of each module's ``forward``. They do nothing during compilation. No
hooks are registered on the user's modules, because copies and saved files of the modules would contain these hooks.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import is_instance
from ipygpumem.features.modules.hooks import GlobalHooks, OptimizerStepObservers, running_optimizer, wrap_compiled_call
from ipygpumem.features.modules.phases import PhaseTracker
from ipygpumem.features.modules.storages import ModelStorages, StorageAddress, repeated_modules
from ipygpumem.measurement.compiled_graphs import CompiledGraph, CompiledGraphObservers
from ipygpumem.measurement.observers import BackwardPassObservers
from ipygpumem.measurement.runtime import EventPosition, current, event_position
from ipygpumem.sources import pytorch

_MAX_ADDRESSES = 2_000_000


@dataclass(frozen=True, slots=True)
class ModuleCallEvent:
    """The start or end of a call to a module's ``forward`` or to a compiled graph.

    Attributes:
        module: Index of the module; for a graph, of the module that calls it, or -1 if no module of the model calls it.
        enter: Whether this is the start of the call.
        root: Source file of the thread's outermost frame, which identifies the thread in a recording.
        at: Position in the recorded events.
        phases: Names of the running phases, outermost first.
        graph: The compiled graph; None for a call to a module.
        prefixes: Pairs of a path in the graph and the index of the corresponding module of the model.
    """

    module: int
    enter: bool
    thread: int
    root: str
    at: EventPosition
    phases: tuple[str, ...]
    graph: CompiledGraph | None = None
    prefixes: tuple[tuple[str, int], ...] = ()


class ModuleTracker:
    """Measurement observer that tracks the modules of a model.

    Attributes:
        modules: The modules, each before its submodules.
        calls: Starts and ends of module calls in chronological order.
        values: Addresses of the arguments and results of calls to modules that `repeated_modules` returns, by index in
            ``calls``.
        scans: Positions in the recorded events, each with the model's storage addresses at that position.
        spans: Name, start and end of each backward pass and optimizer step.
        problem: Reason why storage addresses are missing; empty if none are missing.

    Raises:
        OptionError: ``model`` is not a `torch.nn.Module`.
    """

    def __init__(self, model: Any, *, reset: bool = True) -> None:
        torch = pytorch.module()
        if torch is None or not is_instance(model, torch.nn.Module):
            raise OptionError(f"modules must be a torch.nn.Module, but got {type(model).__name__}")
        self.calls: list[ModuleCallEvent] = []
        self.values: dict[int, list[int]] = {}
        self.scans: list[tuple[EventPosition, list[StorageAddress]]] = []
        self.spans: list[tuple[str, EventPosition, EventPosition]] = []
        self.phases = PhaseTracker(reset=reset)
        self.problem = ""
        self._torch = torch
        self._storages = ModelStorages(torch, model)
        self.modules = self._storages.modules
        self._repeated = frozenset(repeated_modules(self.modules))
        self._undo = contextlib.ExitStack()
        self._thread_state = threading.local()
        self._open_spans: list[tuple[str, EventPosition]] = []
        self._address_count = 0
        self._lock = threading.RLock()
        self._running = False

    @property
    def cost(self) -> float:
        return self.phases.cost

    def start(self) -> None:
        self._running = True
        self._scan()
        hooks = current().state(GlobalHooks)
        handles = hooks.add(partial(self._on_forward, self._enter), partial(self._on_forward, self._leave))
        self._undo.callback(hooks.remove, handles)
        steps = current().state(OptimizerStepObservers)
        steps.add(self._before_step, partial(self._end_phase, "optimizer"))
        self._undo.callback(steps.remove, self._before_step)
        graphs = current().state(CompiledGraphObservers)
        graphs.add(self._enter_graph, self._leave_graph)
        self._undo.callback(graphs.remove, self._enter_graph)
        for module, index in self._storages.live_modules():
            unwrap = wrap_compiled_call(module, partial(self._enter, index, "compiled"), partial(self._leave, index))
            if unwrap is not None:
                self._undo.callback(unwrap)
        self.phases.begin()
        backward = current().state(BackwardPassObservers)
        backward.add(self._begin_backward, self._end_backward)
        self._undo.callback(backward.remove, self._begin_backward)

    def stop(self) -> None:
        if not self._running:
            return
        self._running = False
        self._undo.close()
        with contextlib.suppress(Exception), self._lock:
            self.phases.end()
            self._storages.find_optimizers()
            self._scan()

    # Module calls. Errors in the hooks are suppressed so that they cannot affect the model.

    def _on_forward(self, record: Callable[..., None], module: Any, *values: Any) -> None:
        if self._torch.compiler.is_compiling():
            return
        with contextlib.suppress(Exception):
            index = self._storages.index(module)
            if index is None and self._stack():
                with self._lock:
                    index = self._storages.index_of_running(module)
            if index is None and type(module).__name__ == "OptimizedModule":  # torch.compile(model)
                index = self._storages.index(module._modules["_orig_mod"])
                if index is not None and record == self._enter:
                    self._storages.set_compiled(index)
                    self._enter(index, "compiled")
                    return
            if index is not None:
                record(index)
                if index in self._repeated:
                    with self._lock, self.phases.not_counted():
                        self.values[len(self.calls) - 1] = self._storages.values_of_call(values[-1])

    def _stack(self) -> list[tuple[int, str]]:
        """Return the running calls of this thread, outermost first, as ``(module index, kind)``."""
        stack: list[tuple[int, str]] = vars(self._thread_state).setdefault("stack", [])
        return stack

    def _enter(self, index: int, kind: str = "") -> None:
        # PyTorch also calls hooks for the module whose compiled call is already recorded
        self._push(index, "repeated" if self._stack()[-1:] == [(index, "compiled")] else kind)

    def _push(self, index: int, kind: str, *graph: Any) -> None:
        stack = self._stack()
        if not stack:
            self._thread_state.root = _outermost_file()
            with self._lock:
                self.phases.enter("forward")
        stack.append((index, kind))
        if kind != "repeated":
            self._record_call(index, True, *graph)

    def _leave(self, index: int, *graph: Any) -> None:
        stack = self._stack()
        if index not in [running for running, _ in stack]:
            return
        while True:  # also end calls that an interrupt left open
            last, kind = stack.pop()
            if kind != "repeated":
                self._record_call(last, False, *graph)
            if last == index:
                break
        if not stack:
            with self._lock:
                self.phases.leave("forward")

    def _record_call(self, index: int, enter: bool, *graph: Any) -> None:
        thread, root = threading.get_ident(), self._thread_state.root
        with self._lock:
            now = event_position(), self.phases.running_phases
            self.calls.append(ModuleCallEvent(index, enter, thread, root, *now, *graph))

    # Calls to compiled graphs

    def _enter_graph(self, graph: CompiledGraph, inputs: Sequence[Any]) -> None:
        graphs = vars(self._thread_state).setdefault("graphs", [])
        stack = self._stack()
        prefixes = self._storages.prefixes(graph.inputs, inputs)
        if stack or prefixes:
            self._push(stack[-1][0] if stack else -1, "graph", graph, prefixes)
            graphs.append("forward")
        elif graph.optimizer and "optimizer" not in self.phases.running_phases:
            with self._lock:
                self._begin_phase("optimizer")
            graphs.append("optimizer")
        else:
            graphs.append("")

    def _leave_graph(self, graph: CompiledGraph) -> None:
        phase = self._thread_state.graphs.pop()
        if phase == "forward":
            self._leave(self._stack()[-1][0], graph)
        elif phase:
            self._end_phase(phase)

    # Backward passes and optimizer steps

    def _begin_backward(self) -> None:
        if not _tracing():
            with self._lock:
                self._begin_phase("backward")

    def _end_backward(self) -> None:
        if not _tracing():  # gradients are stored by now, so the scan includes them
            self._end_phase("backward", states=False)

    def _before_step(self) -> None:
        with self._lock:
            optimizer = running_optimizer()
            if optimizer is not None:
                self._storages.add_optimizer(optimizer)
            self._scan(states=False)
            self._begin_phase("optimizer")

    def _begin_phase(self, name: str) -> None:
        self._open_spans.append((name, event_position()))
        self.phases.enter(name)

    def _end_phase(self, name: str, *, states: bool = True) -> None:
        with self._lock:
            self.phases.leave(name)
            while self._open_spans:
                last_name, begin = self._open_spans.pop()
                if last_name == name:
                    self.spans.append((name, begin, event_position()))
                    break
            self._scan(states=states)

    def _scan(self, *, states: bool = True) -> None:
        if self._address_count > _MAX_ADDRESSES:
            count = f"{self._address_count:,}"
            self.problem = f"only {count} storage addresses were recorded: measure fewer steps to record all"
            return
        with self.phases.not_counted():
            addresses = self._storages.addresses(states=states)
            self._address_count += len(addresses)
            self.scans.append((event_position(), addresses))


def _tracing() -> bool:
    """Return whether torch.compile is tracing code. Backward passes that it traces are not phases of a step."""
    guards: Any = sys.modules.get("torch._guards")
    return guards is not None and guards.TracingContext.try_get() is not None


def _outermost_file() -> str:
    file = ""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
    return file
