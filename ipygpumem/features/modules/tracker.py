"""A model under watch: when each module ran, and where its parameters, gradients and optimizer state lie.

PyTorch's global hooks tell when a module begins and ends: nothing is put onto the user's modules, so that copies and
files of them stay clean. Compiled code is never looked into: a hook that is being compiled does nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.modules.hooks import HOOKS
from ipygpumem.features.modules.phases import PhaseTracker
from ipygpumem.features.modules.storages import ModelStorages, ModuleFacts, StorageAddress, is_module
from ipygpumem.measurement.backward_passes import BACKWARD
from ipygpumem.measurement.event_position import Mark, mark
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["ModuleCall", "ModuleFacts", "ModuleTracker", "StorageAddress", "StorageScan"]

_MOST_ADDRESSES = 2_000_000


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A module's forward began, or (``enter`` False) ended. ``root``: the outermost file of the thread's stack."""

    module: int
    enter: bool
    thread: int
    root: str
    at: Mark
    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StorageScan:
    """Storages as they lay at one moment."""

    at: Mark
    found: tuple[StorageAddress, ...]


class ModuleTracker:
    """An observer of a measurement that watches one model.

    Raises:
        OptionError: What is to be watched is no module.
    """

    def __init__(self, model: Any, *, reset: bool = True) -> None:
        torch = pytorch.module()
        if torch is None or not is_module(torch, type(model)):
            raise OptionError(f"modules takes a torch.nn.Module, not {type(model).__name__}")
        self.calls: list[ModuleCall] = []
        self.scans: list[StorageScan] = []
        self.spans: list[tuple[str, Mark, Mark]] = []
        self.phases = PhaseTracker(reset=reset)
        self.lost = ""
        self.raised = 0
        self._torch = torch
        self._owned = ModelStorages(torch, model)
        self._hooks: list[Any] = []
        self._handles: list[Any] = []
        self._compiled: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._wrapped: set[int] = set()
        self._local = threading.local()
        self._open: list[tuple[str, Mark]] = []
        self._steps: list[tuple[int, int]] = []
        self._count = 0
        self._lock = threading.RLock()
        self._running = False

    @property
    def modules(self) -> list[ModuleFacts]:
        """The modules, each before its children."""
        return self._owned.modules

    def start(self) -> None:
        """Hook in, and look where everything lies."""
        self._running = True
        self.scan()
        self._hooks = HOOKS.add(self._before, self._after)
        optimizers = sys.modules.get("torch.optim.optimizer")
        for name, hook in (
            ("register_optimizer_step_pre_hook", self._step_begins),
            ("register_optimizer_step_post_hook", self._step_ends),
        ):
            if hasattr(optimizers, name):
                self._handles.append(getattr(optimizers, name)(hook))
        for module, number in self._owned.members():
            self._wrap_compiled(module, number)
        self.phases.begin()
        BACKWARD.join(self)

    def stop(self) -> None:
        """Take everything back, and look once more. A second time is nothing."""
        if not self._running:
            return
        self._running = False
        self._quietly(self._end_raised)
        BACKWARD.leave(self)
        HOOKS.remove(self._hooks)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._unwrap_compiled()
        with contextlib.suppress(Exception), self._lock:
            self.phases.end()
            self._owned.find_optimizers()
            self.scan()

    # modules

    def _wrap_compiled(self, module: Any, number: int) -> None:
        """A module that compiled itself is called past its hooks: stand before the compiled code."""
        theirs = vars(module).get("_compiled_call_impl")
        if theirs is None:
            return

        def ours(*arguments: Any, **options: Any) -> Any:
            self._quietly(self._enter, number)
            try:
                return theirs(*arguments, **options)
            finally:
                self._quietly(self._leave, number)

        ours.__wrapped__ = theirs  # type: ignore[attr-defined]
        ours._torchdynamo_disable = True  # type: ignore[attr-defined]
        module._compiled_call_impl = ours
        self._compiled.append((weakref.ref(module), weakref.ref(ours)))
        self._wrapped.add(number)

    def _unwrap_compiled(self) -> None:
        for module, ours in ((known(), wrapper()) for known, wrapper in self._compiled):
            if module is not None and ours is not None and vars(module).get("_compiled_call_impl") is ours:
                module._compiled_call_impl = ours.__wrapped__
        self._compiled.clear()

    def _before(self, module: Any, arguments: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        if not self._torch.compiler.is_compiling():
            self._called(self._enter, module)

    def _after(self, module: Any, arguments: Any, result: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        if not self._torch.compiler.is_compiling():
            self._called(self._leave, module)

    def _called(self, what: Callable[[int], None], module: Any) -> None:
        with contextlib.suppress(Exception):  # never in the place of what the model does
            number = self._owned.number(module)
            if number is None and self._stack():
                with self._lock:
                    number = self._owned.met(module)
            # where the compiler gives up, a module that compiled itself comes to its hooks after all
            if number is not None and number not in self._wrapped and self.modules[number].compiled != "inside":
                what(number)

    @staticmethod
    def _quietly(what: Callable[..., None], *given: int) -> None:
        with contextlib.suppress(Exception):  # never in the place of what the model does
            what(*given)

    def _stack(self) -> list[int]:
        stack: list[int] = vars(self._local).setdefault("stack", [])
        return stack

    def _enter(self, number: int) -> None:
        stack = self._stack()
        if not stack:
            self._end_raised()
            self._local.root = _outermost()
            with self._lock:
                self.phases.enter("forward")
        stack.append(number)
        self._note(number, enter=True)

    def _leave(self, number: int) -> None:
        stack = self._stack()
        if number not in stack:
            return
        while True:  # what an interrupt left open ends, too
            last = stack.pop()
            self._note(last, enter=False)
            if last == number:
                break
        if not stack:
            with self._lock:
                self.phases.leave("forward")

    def _note(self, number: int, *, enter: bool) -> None:
        with self._lock:
            self.calls.append(
                ModuleCall(number, enter, threading.get_ident(), self._local.root, mark(), self.phases.inside)
            )

    # phases

    def backward_begins(self) -> None:
        """A backward pass begins."""
        self._end_raised()
        with self._lock:
            self._open.append(("backward", mark()))
            self.phases.enter("backward")

    def backward_ends(self) -> None:
        """It has ended: now the gradients lie where they will stay."""
        with self._lock:
            self.phases.leave("backward")
            self._span("backward")
            self.scan(states=False)

    def _step_begins(self, optimizer: Any, arguments: Any, options: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        with contextlib.suppress(Exception), self._lock:
            self._end_raised()
            self._steps.append((threading.get_ident(), id(sys._getframe(1))))
            self._owned.add_optimizer(optimizer)
            self.scan(states=False)
            self._open.append(("optimizer", mark()))
            self.phases.enter("optimizer")

    def _step_ends(self, optimizer: Any, arguments: Any, options: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        with contextlib.suppress(Exception), self._lock:
            here = threading.get_ident(), id(sys._getframe(1))
            if here in self._steps:
                self._steps.remove(here)
            self._end_step()

    def _end_step(self) -> None:
        self.phases.leave("optimizer")
        self._span("optimizer")
        self.scan()

    def _end_raised(self) -> None:
        """PyTorch does not tell of a step that raised: it has when its frame runs no more."""
        if not self._steps:
            return
        thread, running = threading.get_ident(), _running()
        with self._lock:
            for step in [one for one in reversed(self._steps) if one[0] == thread and one[1] not in running]:
                self._steps.remove(step)
                self.raised += 1
                self._end_step()

    def _span(self, name: str) -> None:
        while self._open:
            opened, begin = self._open.pop()
            if opened == name:
                self.spans.append((name, begin, mark()))
                return

    # storages

    def scan(self, *, states: bool = True) -> None:
        """Note where everything lies now; ``states`` of the optimizers, too."""
        if self._count > _MOST_ADDRESSES:
            self.lost = f"more than {_MOST_ADDRESSES:,} storages were looked at: measure fewer steps"
            return
        with self.phases.aside():
            found = tuple(self._owned.addresses(states=states))
            self._count += len(found)
            self.scans.append(StorageScan(mark(), found))


def _running() -> set[int]:
    """The frames of this thread, by id."""
    frame: FrameType | None = sys._getframe(1)
    found = set()
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


def _outermost() -> str:
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None:
        name = frame.f_code.co_filename
        frame = frame.f_back
    return name
