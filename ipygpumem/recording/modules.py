"""A model under watch: when each module ran, and where its parameters, gradients and optimizer state lie.

PyTorch's global hooks tell when a module begins and ends: nothing is put onto the user's modules, so that copies and
files of them stay clean. Compiled code is never looked into: a hook that is being compiled does nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.errors import OptionError
from ipygpumem.probes import pytorch
from ipygpumem.probes.storages import Types, mro
from ipygpumem.recording.backward import BACKWARD
from ipygpumem.recording.marks import Mark, mark
from ipygpumem.recording.phases import Phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

__all__ = ["Address", "Call", "ModuleFacts", "ModuleWatch", "Scan"]

_MOST_ADDRESSES = 2_000_000
_DEEPEST = 4


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One module: its path, class, the number of its parent (-1 for the model itself), and how it is compiled."""

    path: str
    type: str
    parent: int
    compiled: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A module's forward began, or (``enter`` False) ended. ``root``: the outermost file of the thread's stack."""

    module: int
    enter: bool
    thread: int
    root: str
    at: Mark
    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """A storage that a module owns: what it is, where it lies, whose it is."""

    kind: str
    device: str
    address: int
    module: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Storages as they lay at one moment."""

    at: Mark
    found: tuple[Address, ...]


class _GlobalHooks:
    """Our global hooks among those of others. torch.compile warns of global hooks: not of ours, which it never sees."""

    _ASKED = "_has_any_global_hook"
    _TABLES = (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._theirs: Any = None

    def add(self, before: Any, after: Any) -> list[Any]:
        """Put two hooks in place; their handles take them back."""
        home: Any = sys.modules["torch.nn.modules.module"]
        handles = [
            home.register_module_forward_pre_hook(before),
            home.register_module_forward_hook(after, always_call=True),
        ]
        self._ids.update(handle.id for handle in handles)
        if self._theirs is None and hasattr(home, self._ASKED):
            self._theirs = getattr(home, self._ASKED)
            setattr(home, self._ASKED, self._any_other)
        return handles

    def remove(self, handles: list[Any]) -> None:
        """Take them back."""
        home: Any = sys.modules["torch.nn.modules.module"]
        for handle in handles:
            handle.remove()
            self._ids.discard(handle.id)
        if not self._ids and self._theirs is not None and getattr(home, self._ASKED) == self._any_other:
            setattr(home, self._ASKED, self._theirs)
            self._theirs = None

    def _any_other(self) -> bool:
        home = sys.modules["torch.nn.modules.module"]
        return any(key not in self._ids for name in self._TABLES for key in getattr(home, name, ()))


_HOOKS = _GlobalHooks()


class ModuleWatch:
    """An observer of a measurement that watches one model.

    Raises:
        OptionError: What is to be watched is no module.
    """

    def __init__(self, model: Any, *, reset: bool = True) -> None:
        torch = pytorch.module()
        if torch is None or not any(base is torch.nn.Module for base in mro(type(model))):
            raise OptionError(f"modules takes a torch.nn.Module, not {type(model).__name__}")
        self.modules: list[ModuleFacts] = []
        self.calls: list[Call] = []
        self.scans: list[Scan] = []
        self.spans: list[tuple[str, Mark, Mark]] = []
        self.phases = Phases(reset=reset)
        self.lost = ""
        self._torch = torch
        self._types = Types(torch)
        self._numbers: dict[int, int] = {}
        self._owned: list[tuple[str, Any, int]] = []
        self._parameters: dict[int, int] = {}
        self._optimizers: dict[int, Any] = {}
        self._hooks: list[Any] = []
        self._handles: list[Any] = []
        self._compiled: list[tuple[Any, Any, Any]] = []
        self._wrapped: set[int] = set()
        self._local = threading.local()
        self._open: list[tuple[str, Mark]] = []
        self._count = 0
        self._lock = threading.RLock()
        self._running = False
        self._walk(model)

    def _walk(self, model: Any) -> None:
        """Number the modules; each parameter and buffer belongs to the first module that has it."""
        named = [(model, "", -1, False)]
        kept: set[int] = set()
        while named:
            module, path, parent, inside = named.pop(0)
            if id(module) in self._numbers or not any(base is self._torch.nn.Module for base in mro(type(module))):
                continue
            facts = object.__getattribute__(module, "__dict__")
            number = self._numbers[id(module)] = len(self.modules)
            own = _compiles(module, facts)
            self.modules.append(ModuleFacts(path, type(module).__name__, parent, "inside" if inside else own))
            self._kept_modules().append(module)
            for kind, table in (("parameters", facts.get("_parameters")), ("buffers", facts.get("_buffers"))):
                for tensor in (table or {}).values():
                    if tensor is not None and id(tensor) not in kept:
                        kept.add(id(tensor))
                        self._owned.append((kind, tensor, number))
                        if kind == "parameters":
                            self._parameters[id(tensor)] = number
            children = facts.get("_modules") or {}
            named = [
                *(
                    (child, f"{path}.{name}" if path else name, number, inside or bool(own))
                    for name, child in children.items()
                    if child is not None
                ),
                *named,
            ]

    def _kept_modules(self) -> list[Any]:
        """The modules themselves: an id means nothing once its object is gone."""
        kept: list[Any] = vars(self).setdefault("_alive", [])
        return kept

    def start(self) -> None:
        """Hook in, and look where everything lies."""
        self._running = True
        self.phases.begin()
        self.scan()
        self._hooks = _HOOKS.add(self._before, self._after)
        optimizers = sys.modules.get("torch.optim.optimizer")
        for name, hook in (
            ("register_optimizer_step_pre_hook", self._step_begins),
            ("register_optimizer_step_post_hook", self._step_ends),
        ):
            if hasattr(optimizers, name):
                self._handles.append(getattr(optimizers, name)(hook))
        for module in self._kept_modules():
            self._wrap_compiled(module)
        BACKWARD.join(self)

    def stop(self) -> None:
        """Take everything back, and look once more. A second time is nothing."""
        if not self._running:
            return
        self._running = False
        BACKWARD.leave(self)
        _HOOKS.remove(self._hooks)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module, ours, theirs in self._compiled:
            if vars(module).get("_compiled_call_impl") is ours:
                module._compiled_call_impl = theirs
        self._compiled.clear()
        with contextlib.suppress(Exception):
            self._find_optimizers()
            self.scan()
        self.phases.end()
        for release in (self._optimizers, self._parameters, self._numbers):
            release.clear()
        self._owned.clear()
        self._kept_modules().clear()

    # modules

    def _wrap_compiled(self, module: Any) -> None:
        """A module that compiled itself is called past its hooks: stand before the compiled code."""
        theirs = vars(module).get("_compiled_call_impl")
        if theirs is None:
            return

        number = self._numbers[id(module)]

        def ours(*arguments: Any, **options: Any) -> Any:
            self._quietly(self._enter, number)
            try:
                return theirs(*arguments, **options)
            finally:
                self._quietly(self._leave, number)

        ours._torchdynamo_disable = True  # type: ignore[attr-defined]
        module._compiled_call_impl = ours
        self._compiled.append((module, ours, theirs))
        self._wrapped.add(number)

    def _before(self, module: Any, arguments: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        if not self._torch.compiler.is_compiling():
            self._called(self._enter, module)

    def _after(self, module: Any, arguments: Any, result: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        if not self._torch.compiler.is_compiling():
            self._called(self._leave, module)

    def _called(self, what: Callable[[int], None], module: Any) -> None:
        number = self._numbers.get(id(module))
        # where the compiler gives up, a module that compiled itself comes to its hooks after all
        if number is not None and number not in self._wrapped and self.modules[number].compiled != "inside":
            self._quietly(what, number)

    @staticmethod
    def _quietly(what: Callable[[int], None], number: int) -> None:
        with contextlib.suppress(Exception):  # never in the place of what the model does
            what(number)

    def _stack(self) -> list[int]:
        stack: list[int] = vars(self._local).setdefault("stack", [])
        return stack

    def _enter(self, number: int) -> None:
        stack = self._stack()
        if not stack:
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
            self.calls.append(Call(number, enter, threading.get_ident(), self._local.root, mark(), self.phases.inside))

    # phases

    def backward_begins(self) -> None:
        """A backward pass begins."""
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
            self._optimizers.setdefault(id(optimizer), optimizer)
            self.scan(states=False)
            self._open.append(("optimizer", mark()))
            self.phases.enter("optimizer")

    def _step_ends(self, optimizer: Any, arguments: Any, options: Any) -> None:  # noqa: ARG002 (PyTorch's signature)
        with contextlib.suppress(Exception), self._lock:
            self.phases.leave("optimizer")
            self._span("optimizer")
            self.scan()

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
        with self._types.quiet():
            found = tuple(self._addresses(states=states))
        self._count += len(found)
        self.scans.append(Scan(mark(), found))

    def _addresses(self, *, states: bool) -> Iterator[Address]:
        for kind, tensor, number in self._owned:
            yield from self._of(kind, tensor, number)
            gradient = self._types.gradient(tensor) if kind == "parameters" else None
            if gradient is not None:
                yield from self._of("gradients", gradient, number)
        for optimizer in tuple(self._optimizers.values()) if states else ():
            for parameter, state in list(object.__getattribute__(optimizer, "__dict__").get("state", {}).items()):
                owner = self._parameters.get(id(parameter))
                if owner is not None and isinstance(state, dict):
                    for tensor in self._tensors(state.values(), _DEEPEST):
                        yield from self._of("optimizer state", tensor, owner)

    def _of(self, kind: str, tensor: Any, number: int) -> Iterator[Address]:
        for one in self._tensors([tensor], _DEEPEST):
            for memory in self._types.storages(one):
                if memory.device.startswith("cuda"):
                    yield Address(kind, memory.device, memory.address, number)

    def _tensors(self, values: Iterable[Any], depth: int) -> Iterator[Any]:
        """Tensors, and those that tensors, lists and dicts are made of: DTensors and quantized ones hold others."""
        for value in values:
            kind = type(value)
            if self._types.role(kind) == "tensor":
                yield value
                if depth and self._types.dispatches(value):
                    yield from self._tensors(_attributes(value), depth - 1)
            elif depth and kind in {list, tuple}:
                yield from self._tensors(value, depth - 1)
            elif depth and kind is dict:
                yield from self._tensors(value.values(), depth - 1)

    def _find_optimizers(self) -> None:
        """Optimizers that did not step meanwhile, but keep state for this model."""
        import gc

        optimizer = self._torch.optim.Optimizer
        kinds: dict[type, bool] = {}
        for thing in gc.get_objects():
            kind = type(thing)
            known = kinds.get(kind)
            if known is None:
                known = kinds[kind] = any(base is optimizer for base in mro(kind))
            if known:
                self._optimizers.setdefault(id(thing), thing)


def _compiles(module: Any, facts: dict[str, Any]) -> str:
    """How a module is compiled; empty where it is not."""
    if facts.get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule":
        return "compiled"
    return "scripted" if any(base.__name__ == "ScriptModule" for base in mro(type(module))) else ""


def _attributes(thing: Any) -> list[Any]:
    """What stands in an object's dict and slots, read without its own code."""
    found = []
    with contextlib.suppress(AttributeError):
        found += list(object.__getattribute__(thing, "__dict__").values())
    for base in mro(type(thing)):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                found.append(object.__getattribute__(thing, name))
    return found


def _outermost() -> str:
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None:
        name = frame.f_code.co_filename
        frame = frame.f_back
    return name
