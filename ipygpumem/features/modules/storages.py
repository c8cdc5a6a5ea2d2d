"""Find the storages of a model and its optimizers, which are referenced weakly so that they can be freed."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ipygpumem.core.introspection import instance_dict, is_instance, mro, slot_values
from ipygpumem.sources.storages import StorageInspector

_MAX_DEPTH = 5
_LISTS = ("ModuleList", "ModuleDict", "Sequential")
_TENSOR_TABLES = (("parameters", "_parameters"), ("buffers", "_buffers"))


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module of the model.

    Attributes:
        path: Qualified name of the module; empty for the model itself.
        type: Class name of the module.
        parent: Index of the parent module; -1 for the model itself.
        compiled: ``"compiled"``, ``"scripted"``, ``"inside"`` (part of a compiled module) or empty.
    """

    path: str
    type: str
    parent: int
    compiled: str = ""


class StorageAddress(NamedTuple):
    """The address of a storage, its memory kind (see `MemoryKind`), and the index of the module that owns it."""

    kind: str
    device: str
    address: int
    module: int


class ModelStorages:
    """The modules of a model and the addresses of their storages.

    Attributes:
        modules: The modules at the start of the measurement, each before its submodules. Module indices are positions
            in this list. A module that later replaces another one is assigned the same index.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self.modules: list[ModuleInfo] = []
        self.types = StorageInspector(torch)
        self._torch = torch
        self._model = weakref.ref(model)
        self._index_by_path: dict[str, int] = {}
        self._module_refs: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._tensor_refs: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._other_modules: dict[int, weakref.ref[Any]] = {}
        self._update(first=True)

    def _update(self, *, first: bool = False) -> None:
        """Find the model's current modules and tensors. A shared tensor belongs to the first module that uses it."""
        self._tensor_refs = {key: entry for key, entry in self._tensor_refs.items() if entry[0]() is not None}
        visited: set[int] = set()
        pending = [(self._model(), "", -1, False)]
        while pending:
            module, path, parent, inside_compiled = pending.pop()
            if id(module) in visited or not is_instance(module, self._torch.nn.Module):
                continue
            visited.add(id(module))
            members = object.__getattribute__(module, "__dict__")
            compiled = _compiled(module, members)
            index = self._assign_index(module, path, parent, "inside" if inside_compiled else compiled, first=first)
            for kind, table in _TENSOR_TABLES:
                for tensor in list((members.get(table) or {}).values()):
                    entry = self._tensor_refs.get(id(tensor))
                    if tensor is not None and (entry is None or entry[0]() is not tensor):
                        self._tensor_refs[id(tensor)] = weakref.ref(tensor), kind, index
            children = [
                (child, f"{path}.{name}" if path else name, index, inside_compiled or bool(compiled))
                for name, child in list((members.get("_modules") or {}).items())
            ]
            pending += reversed(children)

    def _assign_index(self, module: Any, path: str, parent: int, compiled: str, *, first: bool) -> int:
        """Return the index of a module.

        A module that is added later has the index of the module that it replaces, or otherwise that of its parent.
        """
        class_name = type(module).__name__
        index = self.index(module)
        if index is not None:
            return index
        if first:
            self._index_by_path[path] = index = len(self.modules)
            self.modules.append(ModuleInfo(path, class_name, parent, compiled))
        else:
            index = self._index_by_path.get(path)
            if index is None:
                return max(parent, 0)
            info = self.modules[index]
            if not info.type.endswith(class_name):
                self.modules[index] = replace(info, type=f"{info.type}, then {class_name}")
        self._module_refs[id(module)] = weakref.ref(module), index
        return index

    def index(self, module: Any) -> int | None:
        entry = self._module_refs.get(id(module))
        return None if entry is None or entry[0]() is not module else entry[1]

    def index_of_running(self, module: Any) -> int | None:
        """Unlike `index`, this method searches the model again if the module is unknown."""
        index, reference = self.index(module), self._other_modules.get(id(module))
        if index is None and (reference is None or reference() is not module):
            self._update()
            index = self.index(module)
            if index is None:
                self._other_modules[id(module)] = weakref.ref(module)
        return index

    def live_modules(self) -> Iterator[tuple[Any, int]]:
        for reference, index in list(self._module_refs.values()):
            module = reference()
            if module is not None:
                yield module, index

    def set_compiled(self, index: int) -> None:
        path = self.modules[index].path
        for number, module in enumerate(self.modules[index:], index):
            if number == index or not path or module.path.startswith(path + "."):
                self.modules[number] = replace(module, compiled="compiled" if number == index else "inside")

    def prefixes(self, paths: Sequence[str], inputs: Sequence[Any]) -> tuple[tuple[str, int], ...]:
        """Return pairs of a path in a compiled graph and the index of the corresponding module.

        The pairs are determined from the model's parameters among ``inputs``, whose paths in the graph are ``paths``.
        """
        result: dict[str, int] = {}
        for path, value in zip(paths, inputs, strict=False):
            reference, _, index = self._tensor_refs.get(id(value), (None, "", -1))
            if not path or reference is None or reference() is not value:
                continue
            prefix, _, name = path.rpartition(".")
            while prefix and index > 0 and name == self.modules[index].path.rpartition(".")[2]:
                index = self.modules[index].parent
                prefix, _, name = prefix.rpartition(".")
            result.setdefault(f"{prefix}.{name}" if prefix else name, index)
        return tuple(result.items())

    def add_optimizer(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def find_optimizers(self) -> None:
        """Add all existing optimizers, including those that have not run a step yet."""
        roles: dict[int, str | None] = {}  # by id, because the metaclass of a class can define __hash__
        for value in gc.get_objects():
            kind = type(value)
            if id(kind) not in roles:
                roles[id(kind)] = self.types.role(kind)
            if roles[id(kind)] == "optimizer":
                self.add_optimizer(value)

    def addresses(self, *, states: bool) -> list[StorageAddress]:
        self._update()
        with self.types.without_overrides():
            return list(self._addresses(states=states))

    def _addresses(self, *, states: bool) -> Iterator[StorageAddress]:
        for reference, kind, index in list(self._tensor_refs.values()):
            tensor = reference()
            if tensor is not None:
                yield from self._addresses_of(kind, tensor, index)
                if kind == "parameters":
                    yield from self._addresses_of("gradients", self.types.related(tensor)[0], index)
        for optimizer in [reference() for reference in self._optimizers.values()] if states else ():
            if optimizer is None:
                continue
            for parameter, state in list(object.__getattribute__(optimizer, "__dict__").get("state", {}).items()):
                entry = self._tensor_refs.get(id(parameter))
                if entry is not None and entry[0]() is parameter and isinstance(state, dict):
                    yield from self._addresses_of("optimizer state", state, entry[2])

    def _addresses_of(self, kind: str, value: Any, index: int) -> Iterator[StorageAddress]:
        for tensor in self._tensors_in(value, _MAX_DEPTH):
            for _, location in self.types.storages(tensor):
                if location.device.startswith("cuda"):
                    yield StorageAddress(kind, location.device, location.address, index)

    def values_of_call(self, value: Any) -> list[int]:
        with self.types.without_overrides():
            return [location.address for location in self._addresses_of("activations", value, 0)]

    def _tensors_in(self, value: Any, depth: int) -> Iterator[Any]:
        cls = type(value)
        parts: Iterable[Any] = ()
        if self.types.role(cls) == "tensor":
            yield value
            if self.types.defines_torch_dispatch(value):
                in_slots = (item for base in mro(cls) for _, item in slot_values(value, base))
                parts = [*(instance_dict(value) or {}).values(), *in_slots]
        elif cls in {list, tuple}:
            parts = value
        elif is_instance(value, dict):
            parts = dict.values(value)
        for part in parts if depth else ():
            yield from self._tensors_in(part, depth - 1)


def repeated_modules(modules: Sequence[ModuleInfo]) -> list[int]:
    """Return the indices of the outermost repeated modules, such as the layers of a transformer.

    A module is repeated if it has submodules, is not compiled, and is in a container, such as `torch.nn.ModuleList`,
    that contains another module of the same class.
    """
    siblings = Counter((module.parent, module.type) for module in modules)
    parents = {module.parent for module in modules}
    result: list[int] = []
    inside: set[int] = set()
    for index, module in enumerate(modules):  # the indices of submodules follow the index of their parent
        in_list = module.parent >= 0 and modules[module.parent].type in _LISTS
        if module.parent in inside:
            inside.add(index)
        elif in_list and index in parents and siblings[module.parent, module.type] > 1 and not module.compiled:
            inside.add(index)
            result.append(index)
    return result


def _compiled(module: Any, members: dict[str, Any]) -> str:
    if members.get("_compiled_call_impl") is not None or type(module).__name__ == "OptimizedModule":
        return "compiled"
    return "scripted" if any(base.__name__ == "ScriptModule" for base in mro(type(module))) else ""
