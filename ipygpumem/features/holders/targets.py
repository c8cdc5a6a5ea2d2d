"""What a walk is about: the tensors and storages in the memory that was asked for, and whose they are.

Some tensors have no memory of their own: they are made of others (DTensor, torchao's, a class of the user's). They
count as far as those do, so that what is a parameter, a gradient, or an optimizer's state is called so.
"""

from __future__ import annotations

import types
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import attributes, isinstance_of, slots
from ipygpumem.features.holders.model import KINDS, Kind
from ipygpumem.sources.storages import mro, type_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ipygpumem.sources.storages import StorageLocation, TorchTypes

__all__ = ["Target", "Targets"]

_WRAPPERS = 5
"""Tensors in each other: a parameter that is distributed, of a quantized one, of a class of one's own, and one more."""


@dataclass(slots=True)
class Target:
    """A tensor, or a storage that Python has by itself, in the memory that is asked for.

    ``inner``: the tensors that one without memory of its own is made of.
    """

    thing: Any
    memory: list[StorageLocation]
    tensor: bool
    inner: list[Any]


class Targets:
    """The targets of one walk.

    Attributes:
        things: They, by id.
        kinds: Whose each storage is, by device and address, where it is somebody's.
        extra: References that the collector does not see: what a C object keeps, by the id of what is kept.
        gradients: The ids of gradients.
        bases: The ids of what others are views of.
    """

    def __init__(self, asked: TorchTypes, wanted: Callable[[str], bool], found: dict[str, list[Any]]) -> None:
        self._types = asked
        self._wanted = wanted
        self._hollow: dict[int, Any] = {}
        self._claims: dict[int, Kind] = {}
        self.things: dict[int, Target] = {}
        self.kinds: dict[tuple[str, int], Kind] = {}
        self.extra: dict[int, list[Any]] = {}
        self.gradients: set[int] = set()
        self.bases: set[int] = set()
        tensors = found.get("tensor", [])
        # each loop in a function of its own: a name that is left over would be a reference
        self._add_all(tensors, tensor=True)
        self._add_all(found.get("storage", []), tensor=False)
        self._gradients(tensors)
        self._bases()
        self._made()
        self._owned(found.get("module", []), found.get("optimizer", []))
        self._settle()

    def _add_all(self, things: list[Any], *, tensor: bool) -> None:
        for thing in things:
            self.add(thing, tensor=tensor)

    def add(self, thing: Any, *, tensor: bool, levels: int = _WRAPPERS) -> bool:
        """Whether there is some of the memory asked for in a thing."""
        key = id(thing)
        if key in self.things or key in self._hollow or not levels:
            return key in self.things
        memory = self._types.locations(thing) if tensor else self._types.storage_locations(thing)
        memory = [one for one in memory if self._wanted(one.device)]
        inner = self._inner(thing) if tensor and not memory else []
        if inner:
            self._hollow[key] = thing  # until something is found: it may hold itself
            inner = [one for one in inner if self.add(one, tensor=True, levels=levels - 1)]
        if memory or inner:
            self.things[key] = Target(thing, memory, tensor, inner)
            self._hollow.pop(key, None)
        return key in self.things

    def _gradients(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            gradient = self._types.gradient(tensor)
            if gradient is not None:
                self.add(gradient, tensor=True)
                self._call(gradient, "gradient")
                self.extra.setdefault(id(gradient), []).append(tensor)
                self.gradients.add(id(gradient))

    def _bases(self) -> None:
        """A view keeps the tensor that it is a view of, where the collector does not see it."""
        for key, target in list(self.things.items()):
            base = self._types.base(target.thing) if target.tensor else None
            if base is not None and id(base) != key:
                self.add(base, tensor=True)
                self.bases.add(id(base))
                self.extra.setdefault(id(base), []).append(target.thing)

    def _made(self) -> None:
        """What wrappers are made of knows nothing of the graph that the wrapper is in."""
        for target in self.things.values():
            if target.inner and self._types.grad_fn(target.thing) is not None:
                self._call(target.thing, "activation")

    def _owned(self, modules: list[Any], optimizers: list[Any]) -> None:
        kinds: tuple[tuple[str, Kind], ...] = (("_parameters", "parameter"), ("_buffers", "buffer"))
        for module in modules:
            own = attributes(module) or {}
            for name, kind in kinds:
                for tensor in _inside(own.get(name), 1):
                    self._call(tensor, kind)
        for optimizer in optimizers:
            own = attributes(optimizer) or {}
            for tensor in _inside(own.get("state"), 3):
                self._call(tensor, "optimizer state")
            for tensor in _inside(own.get("param_groups"), 3):
                self._call(tensor, "parameter")

    def _call(self, thing: Any, kind: Kind) -> None:
        """It is somebody's: a parameter before a buffer, a gradient, an optimizer's state."""
        key = id(thing)
        if key in self.things:
            self._claims[key] = min(kind, self._claims.get(key, "plain"), key=KINDS.index)

    def _settle(self) -> None:
        """Each storage is whose its tensor is; what a wrapper is made of is the wrapper's, unless it is somebody's."""
        for claimed, kind in self._claims.items():
            todo, seen = [claimed], set()
            while todo:
                key = todo.pop()
                seen.add(key)
                target = self.things[key]
                within = map(id, target.inner)
                todo += [one for one in within if one in self.things and one not in self._claims and one not in seen]
                for one in target.memory:
                    known = self.kinds.get((one.device, one.address), "plain")
                    self.kinds[one.device, one.address] = min(kind, known, key=KINDS.index)

    def _inner(self, tensor: Any) -> list[Any]:
        """The tensors that one without storage of its own is made of: those of its attributes that its class names.

        A class that torch.compile knows has ``__tensor_flatten__``, whose names stand in its code or beside it. Of any
        other class all attributes count.
        """
        if not self._types.dispatches(tensor):
            return []
        parts = list(dict.items(attributes(tensor) or {}))
        for base in mro(type(tensor)):
            parts += slots(tensor, base)
        names = _flattened(type(tensor))
        found = [(name, part) for name, part in parts if self._types.role(type(part)) == "tensor"]
        told = [part for name, part in found if type(name) is str and name in names]
        return told or [part for _, part in found]

    def held(self) -> Counter[int]:
        """How often each object is in the lists here."""
        things = self.things.values()
        inner = chain.from_iterable(target.inner for target in things)
        own = (target.thing for target in things)
        return Counter(map(id, chain(*self.extra.values(), inner, own, self._hollow.values())))


def _flattened(kind: type) -> set[str]:
    """What may be the names of the tensors that a class's instances are made of, without a call of it."""
    found: set[str] = set()
    for base in mro(kind):
        own = type_dict(base)
        flatten = own.get("__tensor_flatten__")
        if type(flatten) is types.FunctionType:
            found.update(_words(flatten.__code__.co_consts))
        for name in ("tensor_data_names", "optional_tensor_data_names"):  # torchao's classes have it written for them
            found.update(_words(own.get(name)))
    return found


def _words(thing: Any) -> list[str]:
    if type(thing) is str:
        return [thing]
    return [word for one in thing for word in _words(one)] if type(thing) is tuple or type(thing) is list else []


def _inside(thing: Any, levels: int) -> Iterable[Any]:
    """What lies in nested dicts, lists and tuples."""
    if isinstance_of(thing, dict):
        parts = list(dict.values(thing))
    elif isinstance_of(thing, list):
        parts = list(list.__iter__(thing))
    elif isinstance_of(thing, tuple):
        parts = list(tuple.__iter__(thing))
    else:
        return [thing]
    return [one for part in parts for one in _inside(part, levels - 1)] if levels else []
