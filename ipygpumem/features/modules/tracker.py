"""Track a model during a measurement: module calls, phases of a training step and storage addresses.

Global PyTorch hooks report the start and end of each module's ``forward``. They do nothing during compilation.
No hooks are attached to the user's modules, because copies and saved files of the modules would contain these hooks.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import is_instance
from ipygpumem.features.modules.hooks import GlobalHooks, wrap_compiled_call
from ipygpumem.features.modules.phases import PhaseTracker
from ipygpumem.features.modules.storages import ModelStorages, StorageAddress
from ipygpumem.measurement.backward_passes import BackwardPassObservers
from ipygpumem.measurement.event_position import EventPosition, event_position
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

_MAX_ADDRESSES = 2_000_000


@dataclass(frozen=True, slots=True)
class ModuleCallEvent:
    """The start or end of a call to a module's ``forward``.

    Attributes:
        module: Index of the module.
        enter: Whether this is the start of the call.
        root: Source file of the thread's outermost frame, which identifies the thread in a recording.
        at: Position in the recorded events.
        phases: Names of the running phases, outermost first.
    """

    module: int
    enter: bool
    thread: int
    root: str
    at: EventPosition
    phases: tuple[str, ...]


class ModuleTracker:
    """Measurement observer that tracks the modules of a model.

    Attributes:
        modules: The modules, each before its submodules.
        calls: Starts and ends of module calls in chronological order.
        scans: Positions in the recorded events, each with the model's storage addresses at that position.
        spans: Name, start and end of each backward pass and optimizer step.
        phases: Memory usage and time by phase.
        problem: Reason why storage addresses are missing; empty if none are missing.
        failed_steps: Number of optimizer steps that raised an error.

    Raises:
        OptionError: ``model`` is not a `torch.nn.Module`.
    """

    def __init__(self, model: Any, *, reset: bool = True) -> None:
        torch = pytorch.module()
        if torch is None or not is_instance(model, torch.nn.Module):
            raise OptionError(f"modules must be a torch.nn.Module, not {type(model).__name__}")
        self.calls: list[ModuleCallEvent] = []
        self.scans: list[tuple[EventPosition, list[StorageAddress]]] = []
        self.spans: list[tuple[str, EventPosition, EventPosition]] = []
        self.phases = PhaseTracker(reset=reset)
        self.problem = ""
        self.failed_steps = 0
        self._torch = torch
        self._storages = ModelStorages(torch, model)
        self.modules = self._storages.modules
        self._undo = contextlib.ExitStack()
        self._wrapped: set[int] = set()
        self._thread_state = threading.local()
        self._open_spans: list[tuple[str, EventPosition]] = []
        self._running_steps: list[tuple[int, int]] = []
        self._address_count = 0
        self._lock = threading.RLock()
        self._running = False

    @property
    def cost(self) -> float:
        """Overhead of tracking in seconds."""
        return self.phases.cost

    def start(self) -> None:
        """Add all hooks and record the storage addresses."""
        self._running = True
        self._scan()
        hooks = current().state(GlobalHooks)
        handles = hooks.add(partial(self._on_forward, self._enter), partial(self._on_forward, self._leave))
        self._undo.callback(hooks.remove, handles)
        optimizers: Any = sys.modules["torch.optim.optimizer"]
        self._undo.callback(optimizers.register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.callback(optimizers.register_optimizer_step_post_hook(self._after_step).remove)
        for module, index in self._storages.live_modules():
            unwrap = wrap_compiled_call(module, partial(self._enter, index), partial(self._leave, index))
            if unwrap is not None:
                self._undo.callback(unwrap)
                self._wrapped.add(index)
        self.phases.begin()
        backward = current().state(BackwardPassObservers)
        backward.add(self._begin_backward, self._end_backward)
        self._undo.callback(backward.remove, self._begin_backward)

    def stop(self) -> None:
        """Remove all hooks and record the storage addresses again. Further calls do nothing."""
        if not self._running:
            return
        self._running = False
        with contextlib.suppress(Exception):
            self._end_failed_steps()
        self._undo.close()
        with contextlib.suppress(Exception), self._lock:
            self.phases.end()
            self._storages.find_optimizers()
            self._scan()

    # Module calls. Errors in the hooks are suppressed so that they cannot affect the model.

    def _on_forward(self, record: Callable[[int], None], module: Any, *_: Any) -> None:
        if self._torch.compiler.is_compiling():
            return
        with contextlib.suppress(Exception):
            index = self._storages.index(module)
            if index is None and self._stack():
                with self._lock:
                    index = self._storages.index_of_running(module)
            # after a graph break, hooks also run for compiled modules, which their wrappers already record
            if index is not None and index not in self._wrapped and self.modules[index].compiled != "inside":
                record(index)

    def _stack(self) -> list[int]:
        """Return the indices of the modules that are running in this thread, outermost first."""
        stack: list[int] = vars(self._thread_state).setdefault("stack", [])
        return stack

    def _enter(self, index: int) -> None:
        stack = self._stack()
        if not stack:
            self._end_failed_steps()
            _, self._thread_state.root = _running_frames()
            with self._lock:
                self.phases.enter("forward")
        stack.append(index)
        self._record_call(index, enter=True)

    def _leave(self, index: int) -> None:
        stack = self._stack()
        if index not in stack:
            return
        while True:  # also end calls that an interrupt left open
            last = stack.pop()
            self._record_call(last, enter=False)
            if last == index:
                break
        if not stack:
            with self._lock:
                self.phases.leave("forward")

    def _record_call(self, index: int, *, enter: bool) -> None:
        thread, root = threading.get_ident(), self._thread_state.root
        with self._lock:
            self.calls.append(ModuleCallEvent(index, enter, thread, root, event_position(), self.phases.inside))

    # Backward passes and optimizer steps

    def _begin_backward(self) -> None:
        self._end_failed_steps()
        with self._lock:
            self._begin_phase("backward")

    def _end_backward(self) -> None:
        with self._lock:  # gradients are stored by now, so the scan includes them
            self._end_phase("backward", states=False)

    def _before_step(self, optimizer: Any, arguments: Any, options: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        with contextlib.suppress(Exception), self._lock:
            self._end_failed_steps()
            self._running_steps.append((threading.get_ident(), id(sys._getframe(1))))
            self._storages.add_optimizer(optimizer)
            self._scan(states=False)
            self._begin_phase("optimizer")

    def _after_step(self, optimizer: Any, arguments: Any, options: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        with contextlib.suppress(Exception), self._lock:
            step = threading.get_ident(), id(sys._getframe(1))
            if step in self._running_steps:
                self._running_steps.remove(step)
            self._end_phase("optimizer")

    def _end_failed_steps(self) -> None:
        """End optimizer steps whose frames no longer exist. PyTorch runs no hook after a step that raises an error."""
        if not self._running_steps:
            return
        thread, (frames, _) = threading.get_ident(), _running_frames()
        with self._lock:
            for step in reversed(self._running_steps.copy()):
                if step[0] == thread and step[1] not in frames:
                    self._running_steps.remove(step)
                    self.failed_steps += 1
                    self._end_phase("optimizer")

    def _begin_phase(self, name: str) -> None:
        self._open_spans.append((name, event_position()))
        self.phases.enter(name)

    def _end_phase(self, name: str, *, states: bool = True) -> None:
        self.phases.leave(name)
        while self._open_spans:
            opened, begin = self._open_spans.pop()
            if opened == name:
                self.spans.append((name, begin, event_position()))
                break
        self._scan(states=states)

    def _scan(self, *, states: bool = True) -> None:
        if self._address_count > _MAX_ADDRESSES:
            self.problem = f"only {_MAX_ADDRESSES:,} storage addresses were recorded: measure fewer steps to record all"
            return
        with self.phases.not_counted():
            addresses = self._storages.addresses(states=states)
            self._address_count += len(addresses)
            self.scans.append((event_position(), addresses))


def _running_frames() -> tuple[set[int], str]:
    ids, file = set(), ""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        ids.add(id(frame))  # the frame itself would keep local variables alive
        file = frame.f_code.co_filename
    return ids, file
