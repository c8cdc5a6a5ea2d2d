"""What a thing is called inside the thing that refers to it: ``.weight``, ``[3]``, ``["image"]``, ``(closure x)``.

All is read below the level at which a class could answer with code of its own: the dicts and slots themselves, the base
classes' iterators, the C members of functions.
"""

from __future__ import annotations

import collections
import functools
import gc
import types
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ipygpumem.features.holders.arrays import base_of, has_objects, items
from ipygpumem.features.holders.frames import locals_of
from ipygpumem.sources.storages import mro, type_dict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = [
    "Label",
    "Style",
    "attributes",
    "global_names",
    "is_one_of",
    "isinstance_of",
    "labels",
    "name_of",
    "passed_by",
    "slots",
    "unnamed",
]

Style = Literal["object", "names", "items", "attributes", "module", "members"]
"""How a dict's keys are written: as bare names, as items, as attributes; of a module, of its parameters."""

_LONGEST = 40
_MEMBERS = {"_parameters", "_buffers", "_modules"}
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
_LRU = type(functools.lru_cache(lambda: None))
name_of = type.__dict__["__name__"].__get__
"""A class's name, whatever its metaclass says."""
_module_dict: Any = vars(types.ModuleType)["__dict__"].__get__
_OF_EXCEPTIONS = [
    type_dict(BaseException)[name].__get__ for name in ("__traceback__", "__cause__", "__context__", "args")
]
_TRACES = (types.TracebackType, types.FrameType)
_LAZY = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class Label(NamedTuple):
    """What is written for one reference, and how the child's own dict keys are written below it.

    ``key``: the id of a tensor that is the key; it is written by its own name once that is known. ``far``: the child is
    not referred to directly, but through a cell. ``late``: any other name is better.
    """

    text: str
    style: Style = "object"
    key: int | None = None
    far: bool = False
    late: bool = False


def attributes(thing: Any) -> dict[Any, Any] | None:
    """An object's own ``__dict__``, unless its class has put something else in that place."""
    if isinstance_of(thing, types.ModuleType):
        space: dict[Any, Any] = _module_dict(thing)
        return space
    for base in mro(type(thing)):
        found = type_dict(base).get("__dict__")
        if found is not None:
            if not is_one_of(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                return None
            try:
                space = found.__get__(thing)
            except Exception:
                return None
            return space if isinstance_of(space, dict) else None
    return None


def is_one_of(thing: Any, kinds: tuple[type, ...]) -> bool:
    """Whether an object is exactly of one of these classes. A set of classes would ask their metaclass for a hash."""
    kind = type(thing)
    return any(kind is one for one in kinds)


def isinstance_of(thing: Any, kind: type) -> bool:
    """``isinstance`` by the real type alone: ``__class__`` and ``__instancecheck__`` are not asked."""
    own = type(thing)
    return own is kind or any(base is kind for base in mro(own))


def global_names(thing: Any) -> tuple[Any, ...]:
    """What a function or a frame refers to only because it was defined there: no holder's business."""
    if type(thing) is types.FunctionType:
        return (thing.__globals__, getattr(thing, "__builtins__", None))
    if type(thing) is types.FrameType:
        return (thing.f_globals, thing.f_builtins)
    return ()


def slots(thing: Any, base: type) -> Iterator[tuple[str, Any]]:
    """(name, value) of the slots that one of an object's classes has given it, without the empty ones."""
    for name, slot in list(type_dict(base).items()):
        if type(slot) is types.MemberDescriptorType and type(name) is str:
            try:
                yield name, slot.__get__(thing)
            except Exception:  # noqa: S112 (an empty slot)
                continue


def labels(
    thing: Any, style: Style, tensors: Collection[int], wanted: Collection[int] | None = None
) -> Iterator[tuple[int, Label]]:
    """(id, label) of what a thing refers to, as far as it has names.

    ``tensors``: ids of those that may be keys; ``wanted``: the ids that are asked for, None for all. More may come.
    """
    kind = type(thing)
    base = next((base for base in mro(kind) if id(base) in _BASES), object)
    if base is dict:
        yield from _of_dict(thing, style, tensors, wanted)
    else:
        yield from _BASES.get(id(base), _of_nothing)(thing)
    special = _SPECIAL.get(id(kind))
    if special is not None:
        yield from special(thing)
    elif base is not type and (base is not kind or kind is BaseException):  # plain dicts and lists are but themselves
        yield from _of_object(thing, wanted)


def _of_dict(
    thing: dict[Any, Any], style: Style, tensors: Collection[int], wanted: Collection[int] | None = None
) -> Iterator[tuple[int, Label]]:
    for key, value in list(dict.items(thing)):
        if id(key) in tensors:
            yield id(value), Label("", key=id(key))
            yield id(key), Label(" (key)", late=True)
            continue
        plain = type(key) is str or is_one_of(key, _PLAIN_KEYS)
        if plain and wanted is not None and id(value) not in wanted:
            continue
        if style == "module" and type(key) is str and key in _MEMBERS:
            yield id(value), Label("", "members")
        elif style == "names" and type(key) is str:
            yield id(value), Label(key)
        elif style in {"attributes", "module", "members"} and type(key) is str:
            yield id(value), Label(f"[{key}]" if style == "members" and key.isdecimal() else f".{key}")
        else:
            yield id(value), Label(f"[{_key(key)}]")
        if not plain:
            yield id(key), Label(" (key)", late=True)


def _key(key: Any) -> str:
    if type(key) is str:
        text = f'"{key}"' if key.isprintable() and '"' not in key else repr(key)
    elif is_one_of(key, _PLAIN_KEYS) or (type(key) is tuple and all(is_one_of(one, _PLAIN_KEYS) for one in key)):
        try:
            text = repr(key)
        except ValueError:  # Python does not write whole numbers of more than 4,300 digits
            text = f"<{name_of(type(key))}>"
    else:
        text = f"<{name_of(type(key))}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _of_sequence(thing: Any) -> Iterator[tuple[int, Label]]:
    base: Any = tuple if isinstance_of(thing, tuple) else list
    names = None
    if base is tuple and type(thing) is not tuple:
        fields = next((type_dict(one).get("_fields") for one in mro(type(thing)) if "_fields" in type_dict(one)), None)
        names = fields if type(fields) is tuple and all(type(one) is str for one in fields) else None
    for i, one in enumerate(list(base.__iter__(thing))):
        yield id(one), Label(f".{names[i]}" if names and i < len(names) else f"[{i}]")


def _of_array(thing: Any) -> Iterator[tuple[int, Label]]:
    if has_objects(thing):
        yield from ((id(one), Label(text)) for text, one in items(thing))
        yield id(base_of(thing)), Label(".base")
    else:  # the tensor whose memory it shares has its name
        yield id(base_of(thing)), Label("")


def _of_set(thing: Any) -> Iterator[tuple[int, Label]]:
    base: Any = set if isinstance_of(thing, set) else frozenset
    yield from ((id(one), Label("{...}")) for one in list(base.__iter__(thing)))


def _of_deque(thing: Any) -> Iterator[tuple[int, Label]]:
    yield from ((id(one), Label(f"[{i}]")) for i, one in enumerate(list(collections.deque.__iter__(thing))))


def _of_exception(thing: Any) -> Iterator[tuple[int, Label]]:
    yield from ((id(get(thing)), Label("")) for get in _OF_EXCEPTIONS)
    for base in mro(type(thing)):  # AttributeError.obj: what had no such attribute
        members = _members(thing, base) if "__slots__" not in type_dict(base) else ()
        yield from ((key, label._replace(late=True)) for key, label in members)  # the local that holds it says more


def _of_nothing(thing: Any) -> Iterator[tuple[int, Label]]:  # noqa: ARG001 (as the others)
    yield from ()


def _of_object(thing: Any, wanted: Collection[int] | None) -> Iterator[tuple[int, Label]]:
    own = attributes(thing)
    if own is not None:
        yield id(type(thing)), Label(".__class__")
        # a list first: a thread may change the dict
        parts = any(type(one) is str and one == "_parameters" for one in list(dict.keys(own)))
        parts = parts and not isinstance_of(thing, types.ModuleType)
        style: Style = "module" if parts else "attributes"
        yield id(own), Label("", style)
        yield from _of_dict(own, style, (), wanted)
    for base in mro(type(thing)):
        if "__slots__" in type_dict(base):
            yield from _members(thing, base)


def _members(thing: Any, base: type) -> Iterator[tuple[int, Label]]:
    yield from ((id(value), Label(f".{name}")) for name, value in slots(thing, base))


def _of_class(thing: Any) -> Iterator[tuple[int, Label]]:
    for name, value in list(type_dict(thing).items()):
        yield id(value), Label(f".{name}")
    yield from ((id(one), Label(f" (base {name_of(one)})")) for one in mro(thing)[1:])
    # gc sees the dict itself, which only a proxy shows
    yield from ((id(one), Label("", "attributes")) for one in _dicts(thing))


def _dicts(thing: Any) -> list[Any]:
    return [one for one in gc.get_referents(thing) if type(one) is dict]


def _of_function(thing: Any) -> Iterator[tuple[int, Label]]:
    for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
        yield id(cell), Label(f" (closure {name})", far=True)
    code, defaults = thing.__code__, thing.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    for name, one in zip(names, defaults, strict=False):
        yield id(one), Label(f" (default {name})", far=True)
    yield id(thing.__kwdefaults__), Label(" (default)", "items")
    yield id(thing.__dict__), Label("", "attributes")
    yield from _of_dict(thing.__dict__, "attributes", ())


def _of_cell(thing: Any) -> Iterator[tuple[int, Label]]:
    try:
        yield id(thing.cell_contents), Label("")
    except ValueError:  # an empty cell
        return


def _of_frame(thing: Any) -> Iterator[tuple[int, Label]]:
    # what holds a traceback holds the frames in it, which have names of their own
    yield from (
        (id(value), Label(f" {name}", far=True, late=is_one_of(value, _TRACES) or isinstance_of(value, BaseException)))
        for name, value in locals_of(thing)
    )
    yield id(thing.f_back), Label("")


def _of_lazy(thing: Any) -> Iterator[tuple[int, Label]]:
    """A generator's or a coroutine's locals; what it waits for itself."""
    prefix = {types.GeneratorType: "gi", types.CoroutineType: "cr", types.AsyncGeneratorType: "ag"}[type(thing)]
    frame = getattr(thing, f"{prefix}_frame")
    if frame is not None:
        yield from ((id(value), Label(f" (local {name})", far=True)) for name, value in locals_of(frame))
    awaited = getattr(thing, {"gi": "gi_yieldfrom", "cr": "cr_await", "ag": "ag_await"}[prefix])
    yield id(awaited), Label("")


def _of_partial(thing: Any) -> Iterator[tuple[int, Label]]:
    yield id(thing.args), Label(" (partial)")
    yield id(thing.keywords), Label(" (partial)")
    yield id(thing.func), Label("")
    yield id(thing.__dict__), Label("", "attributes")


def _of_lru(thing: Any) -> Iterator[tuple[int, Label]]:
    yield id(thing.__wrapped__) if "__wrapped__" in vars(thing) else 0, Label("")
    yield id(vars(thing)), Label("", "attributes")


def _of_method(thing: Any) -> Iterator[tuple[int, Label]]:
    yield id(thing.__self__), Label(".__self__")
    yield id(thing.__func__), Label("")


def _of_wrapper(thing: Any) -> Iterator[tuple[int, Label]]:
    yield id(thing.__func__), Label("")


def _of_proxy(thing: Any) -> Iterator[tuple[int, Label]]:
    yield from ((id(one), Label("")) for one in gc.get_referents(thing))


def _of_property(thing: Any) -> Iterator[tuple[int, Label]]:
    yield from ((id(one), Label("")) for one in (thing.fget, thing.fset, thing.fdel))


def _of_traceback(thing: Any) -> Iterator[tuple[int, Label]]:
    yield id(thing.tb_frame), Label("")
    yield id(thing.tb_next), Label("")


_BASES: dict[int, Any] = {
    id(dict): _of_nothing,  # has its own way above
    id(tuple): _of_sequence,
    id(list): _of_sequence,
    id(collections.deque): _of_deque,
    id(np.ndarray): _of_array,
    id(set): _of_set,
    id(frozenset): _of_set,
    id(type): _of_class,
    id(BaseException): _of_exception,
}
_SPECIAL: dict[int, Any] = {
    id(types.FunctionType): _of_function,
    id(types.CellType): _of_cell,
    id(types.FrameType): _of_frame,
    id(types.MethodType): _of_method,
    id(types.TracebackType): _of_traceback,
    id(staticmethod): _of_wrapper,
    id(classmethod): _of_wrapper,
    id(property): _of_property,
    id(types.MappingProxyType): _of_proxy,
    id(memoryview): _of_proxy,
    id(type(gc.get_referents(memoryview(b""))[0])): _of_proxy,  # what Python has between a view and its object
    id(functools.partial): _of_partial,
    id(_LRU): _of_lru,
    **dict.fromkeys(map(id, _LAZY), _of_lazy),
}


def passed_by(thing: Any, child: Any) -> bool:
    """Whether a reference only leads to what `labels` has named already: the cells of a function or a frame."""
    if type(thing) is types.FunctionType:
        return child is thing.__closure__ or child is thing.__defaults__
    if type(thing) is types.FrameType and type(child) is dict:
        return child is not thing.f_globals  # the copy of its locals that somebody has asked for
    return type(child) is types.CellType and is_one_of(thing, (types.FrameType, *_LAZY))


def unnamed(thing: Any) -> str:
    """What is written for a reference that has no name: whose it is."""
    if type(thing) is _LRU:
        return " (lru_cache)"
    return f" <{name_of(type(thing))}>"
