"""Observation of a step while it runs: calls to blocks of the model, and optimizer updates."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import attempt
from ipygpumem.features.modules.hooks import GlobalHooks
from ipygpumem.measurement.runtime import EventPosition, current, event_position
from ipygpumem.sources.storages import StorageInspector

if TYPE_CHECKING:
    from typing_extensions import Self

    from ipygpumem.features.fit.advice.model_blocks import ModelBlock


_MAX_NODES = 100
"""Maximum number of autograd nodes that are searched at the end of a call."""


@dataclass(slots=True)
class ObservedCall:
    """A call to a block of a model in a forward pass. IDs of storages are those of `StepObserver.storage_ids`.

    Attributes:
        block: Index of the block.
        begin: Position in the recorded events at the start of the call.
        end: Position at the end of the call.
        inputs: IDs of the storages of the arguments.
        outputs: IDs of the storages of the results.
        autocast: Whether autocast was enabled.
        seconds: Duration in seconds on the GPU, or on the host if there are no CUDA events. It is valid after the end
            of the step.
        events: CUDA events at the start and at the end of the call; empty after the end of the step.
        backward: Position at which the backward pass first needed a saved tensor of the block; None if it needed none.
    """

    block: int
    begin: EventPosition
    inputs: list[int]
    autocast: bool
    seconds: float
    events: list[Any]
    end: EventPosition = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    backward: EventPosition | None = None


@dataclass(slots=True)
class ObservedUpdate:
    """An optimizer update in a run of the step.

    Attributes:
        optimizer: Weak reference to the optimizer.
        begin: Position in the recorded events at the start of the update.
        gradients: IDs of the storages of the gradients.
        end: Position at the end of the update; None if it was not observed, for example because of an exception.
    """

    optimizer: weakref.ref[Any]
    begin: EventPosition
    gradients: list[int]
    end: EventPosition | None = None


class StepObserver:
    """Context manager that observes one run of a step. Errors in its hooks do not affect the step.

    Attributes:
        calls: Calls to the blocks, in the order in which they ended.
        updates: Optimizer updates in the order in which they started.
        seconds: Duration of the step in seconds.
    """

    def __init__(self, torch: Any, blocks: Iterable[ModelBlock]) -> None:
        self.calls: list[ObservedCall] = []
        self.updates: list[ObservedUpdate] = []
        self.seconds = 0.0
        self._torch = torch
        self._inspector = StorageInspector(torch)
        self._numbers = {id(block.module): number for number, block in enumerate(blocks)}
        self._running: list[ObservedCall] = []
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with DeferredInterrupts():
            hooks = current().state(GlobalHooks)
            handles = hooks.add(self._enter, self._leave)
            self._undo.callback(hooks.remove, handles)
            optimizers = import_module("torch.optim.optimizer")
            before, after = "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"
            self._undo.callback(getattr(optimizers, before)(self._before_update).remove)
            self._undo.callback(getattr(optimizers, after)(self._after_update).remove)
        self._events = [self._event()]
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.close()
        self.seconds = self._elapsed([*self._events, self._event()], self.seconds)
        for call in self.calls:
            call.seconds = self._elapsed(call.events, call.seconds)
            call.events.clear()
        self._events.clear()

    def close(self) -> None:
        """Remove the hooks. Call this method if an interrupt has prevented the call to `__exit__`."""
        with DeferredInterrupts():
            self._undo.close()

    def _enter(self, module: Any, arguments: Any) -> None:
        number = self._numbers.get(id(module))
        if number is None or self._is_inactive():
            return
        with contextlib.suppress(Exception):
            autocast = bool(self._torch._C._is_any_autocast_enabled())
            inputs = self.storage_ids(arguments)
            call = ObservedCall(number, self.position(), inputs, autocast, -time.perf_counter(), [self._event()])
            self._running.append(call)

    def _leave(self, module: Any, _: Any, result: Any) -> None:
        number = self._numbers.get(id(module))
        if number is None or not self._running or self._running[-1].block != number or self._is_inactive():
            return
        call = self._running.pop()
        with contextlib.suppress(Exception):
            call.seconds += time.perf_counter()
            call.events.append(self._event())
            call.end = self.position()
            call.outputs = self.storage_ids(result)
            for node in self._saving_nodes([self._inspector.related(tensor)[2] for tensor in self._tensors(result)]):
                node.register_prehook(lambda _: self._begin_backward(call))
            self.calls.append(call)

    def _saving_nodes(self, nodes: list[Any]) -> list[Any]:
        """Return the nearest autograd nodes with saved tensors. In checkpointing, the first to run recomputes them."""
        visited: dict[int, Any] = {}
        result = []
        for node in nodes:  # the loop appends the next nodes
            if node is None or id(node) in visited or len(visited) == _MAX_NODES:
                continue
            visited[id(node)] = node
            if any(name.startswith("_raw_saved_") for name in dir(type(node))):
                result.append(node)
            else:
                nodes += self._inspector.next_nodes(node)
        return result

    def _is_inactive(self) -> bool:
        """Return whether calls must be ignored because code is being compiled or a backward pass is running."""
        torch = self._torch
        return bool(torch.compiler.is_compiling()) or torch._C._current_graph_task_id() != -1

    def _begin_backward(self, call: ObservedCall) -> None:
        with contextlib.suppress(Exception):
            if call.backward is None:
                call.backward = self.position()

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        with contextlib.suppress(Exception):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            gradients = self.storage_ids([parameter.grad for parameter in parameters])
            reference = weakref.ref(optimizer)
            hash(reference)  # afterwards, the reference has a hash even if the optimizer no longer exists
            self.updates.append(ObservedUpdate(reference, self.position(), gradients))

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        with contextlib.suppress(Exception):
            if self.updates and self.updates[-1].optimizer() is optimizer:
                self.updates[-1].end = self.position()

    def position(self) -> EventPosition:
        return event_position()

    def _tensors(self, values: Any) -> list[Any]:
        leaves: Any = sys.modules["torch.utils._pytree"].tree_leaves(values)
        return [leaf for leaf in leaves if self._inspector.role(type(leaf)) == "tensor"]

    def storage_ids(self, values: Any) -> list[int]:
        """Return the IDs of the storages of all tensors in nested containers, as in `StepRecording.ids`."""
        with self._inspector.without_overrides():
            storages = [self._inspector.storages(tensor) for tensor in self._tensors(values)]
        return [location.address for pairs in storages for _, location in pairs]

    def _event(self) -> Any:
        """Record and return a CUDA event, or return None if this fails, for example because there is no GPU."""

        def record() -> Any:
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            return event

        return attempt(record)

    @staticmethod
    def _elapsed(events: list[Any], seconds: float) -> float:
        """Return the seconds between the first and the last CUDA event, or ``seconds`` if they cannot be measured."""

        def elapsed() -> float:
            events[-1].synchronize()
            return float(events[0].elapsed_time(events[-1])) / 1000

        result = attempt(elapsed)
        return seconds if result is None else result
