"""What a model owns, and where it lies: its modules, their parameters, buffers and gradients, its optimizers' state.

All by weak references: a step that replaces a module or a buffer frees the old one as it would without us.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.sources.storages import Types, mro

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ModelStorages", "ModuleFacts", "StorageAddress", "is_module"]

_DEEPEST = 4
_TABLES = (("parameters", "_parameters"), ("buffers", "_buffers"))


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One module: its path, class, the number of its parent (-1 for the model itself), and how it is compiled."""

    path: str
    type: str
    parent: int
    compiled: str = ""


@dataclass(frozen=True, slots=True)
class StorageAddress:
    """A storage that a module owns: what it is, where it lies, whose it is."""

    kind: str
    device: str
    address: int
    module: int


class ModelStorages:
    """The modules of one model and what they own, looked at again and again.

    Attributes:
        modules: The modules that were there at first, each before its children: a module's number is its place here.
            One that takes another's place later on has its number.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self.modules: list[ModuleFacts] = []
        self.types = Types(torch)
        self._torch = torch
        self._model = weakref.ref(model)
        self._paths: dict[str, int] = {}
        self._members: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._tensors: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._strangers: dict[int, weakref.ref[Any]] = {}
        self._kinds: dict[int, bool] = {}
        self.look(first=True)

    def look(self, *, first: bool = False) -> None:
        """See which modules and tensors there are now. Each belongs to the first module that has it."""
        self._tensors = {key: known for key, known in self._tensors.items() if known[0]() is not None}
        seen: set[int] = set()
        todo = [(self._model(), "", -1, False)]
        while todo:
            module, path, parent, inside = todo.pop()
            if module is None or id(module) in seen or not self._is_module(module):
                continue
            seen.add(id(module))
            facts = object.__getattribute__(module, "__dict__")
            own = _compiles(module, facts)
            number = self._number(module, path, parent, "inside" if inside else own, first=first)
            for kind, table in _TABLES:
                for tensor in list((facts.get(table) or {}).values()):
                    known = self._tensors.get(id(tensor))
                    if tensor is not None and (known is None or known[0]() is not tensor):
                        self._tensors[id(tensor)] = weakref.ref(tensor), kind, number
            children = [
                (child, f"{path}.{name}" if path else name, number, inside or bool(own))
                for name, child in list((facts.get("_modules") or {}).items())
            ]
            todo += reversed(children)

    def _number(self, module: Any, path: str, parent: int, compiled: str, *, first: bool) -> int:
        """A module's number; what was not there at first has that of its predecessor, or counts for its parent."""
        kind = type(module).__name__
        known = self.number(module)
        if known is not None:
            return known
        if first:
            self._paths[path] = number = len(self.modules)
            self.modules.append(ModuleFacts(path, kind, parent, compiled))
        else:
            found = self._paths.get(path)
            if found is None:
                return max(parent, 0)
            number, facts = found, self.modules[found]
            if not facts.type.endswith(kind):
                self.modules[number] = replace(facts, type=f"{facts.type}, then {kind}")
        self._members[id(module)] = weakref.ref(module), number
        return number

    def _is_module(self, thing: Any) -> bool:
        kind = type(thing)
        known = self._kinds.get(id(kind))
        if known is None:
            known = self._kinds[id(kind)] = is_module(self._torch, kind)
        return known

    def number(self, module: Any) -> int | None:
        """The number of a module; None for one that is not the model's."""
        known = self._members.get(id(module))
        return None if known is None or known[0]() is not module else known[1]

    def met(self, module: Any) -> int | None:
        """The number of a module that runs inside the model: it may have come into it just now."""
        number, stranger = self.number(module), self._strangers.get(id(module))
        if number is None and (stranger is None or stranger() is not module):
            self.look()
            number = self.number(module)
            if number is None:
                self._strangers[id(module)] = weakref.ref(module)
        return number

    def members(self) -> Iterator[tuple[Any, int]]:
        """Every module that is alive, and its number."""
        for known, number in list(self._members.values()):
            module = known()
            if module is not None:
                yield module, number

    def add_optimizer(self, optimizer: Any) -> None:
        """An optimizer, which may have state for this model."""
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def find_optimizers(self) -> None:
        """Optimizers that nobody told us of."""
        optimizer = self._torch.optim.Optimizer
        kinds: dict[type, bool] = {}
        for thing in gc.get_objects():
            kind = type(thing)
            known = kinds.get(kind)
            if known is None:
                known = kinds[kind] = any(base is optimizer for base in mro(kind))
            if known:
                self.add_optimizer(thing)

    def addresses(self, *, states: bool) -> list[StorageAddress]:
        """Where everything lies now; ``states`` of the optimizers, too."""
        self.look()
        with self.types.quiet():
            return list(self._addresses(states=states))

    def _addresses(self, *, states: bool) -> Iterator[StorageAddress]:
        for known, kind, number in list(self._tensors.values()):
            tensor = known()
            if tensor is None:
                continue
            yield from self._of(kind, tensor, number)
            gradient = self.types.gradient(tensor) if kind == "parameters" else None
            if gradient is not None:
                yield from self._of("gradients", gradient, number)
        for optimizer in [one() for one in self._optimizers.values()] if states else ():
            if optimizer is None:
                continue
            for parameter, state in list(object.__getattribute__(optimizer, "__dict__").get("state", {}).items()):
                owner = self._tensors.get(id(parameter))
                if owner is not None and owner[0]() is parameter and isinstance(state, dict):
                    for tensor in self._inside(state.values(), _DEEPEST):
                        yield from self._of("optimizer state", tensor, owner[2])

    def _of(self, kind: str, tensor: Any, number: int) -> Iterator[StorageAddress]:
        for one in self._inside([tensor], _DEEPEST):
            for memory in self.types.storages(one):
                if memory.device.startswith("cuda"):
                    yield StorageAddress(kind, memory.device, memory.address, number)

    def _inside(self, values: Iterable[Any], depth: int) -> Iterator[Any]:
        """Tensors, and those that tensors, lists and dicts are made of: DTensors and quantized ones hold others."""
        for value in values:
            kind = type(value)
            if self.types.role(kind) == "tensor":
                yield value
                if depth and self.types.dispatches(value):
                    yield from self._inside(_attributes(value), depth - 1)
            elif depth and kind in {list, tuple}:
                yield from self._inside(value, depth - 1)
            elif depth and kind is dict:
                yield from self._inside(value.values(), depth - 1)


def is_module(torch: Any, kind: type) -> bool:
    """Whether a class is one of modules."""
    return any(base is torch.nn.Module for base in mro(kind))


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
