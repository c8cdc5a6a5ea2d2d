"""Labels of references between objects, such as ``.weight``, ``[3]`` and `` (closure x)``.

The labels are read without running user code.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import types
from collections.abc import Collection, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from ipygpumem.core.introspection import (
    frame_locals,
    instance_dict,
    is_exactly,
    is_instance,
    mro,
    slot_values,
    type_dict,
    type_name,
)
from ipygpumem.features.holders.tracked_objects import array_base, array_items, has_objects

Style = Literal["object", "names", "items", "attributes", "module", "members"]
"""Format of the keys of a dict: ``["key"]`` for ``object`` and ``items``, ``key`` for ``names``, otherwise ``.key``.
``attributes`` is for the ``__dict__`` of an object, ``module`` for the ``__dict__`` of an ``nn.Module``, and
``members`` for a module's dicts of parameters, buffers and submodules. In ``members``, numeric keys are formatted as
``[0]``."""

_MAX_KEY_LENGTH = 40
_MODULE_DICTS = {"_parameters", "_buffers", "_modules"}
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
_LRU_CACHE = type(functools.lru_cache(lambda: None))
_CONTAINERS = (dict, list, tuple, types.CellType, types.TracebackType)
_TRACEBACK_TYPES = (types.TracebackType, types.FrameType)
_LAZY = {types.GeneratorType: "gi", types.CoroutineType: "cr", types.AsyncGeneratorType: "ag"}


class ReferenceLabel(NamedTuple):
    """Label of a reference from one object to another. The names of objects are composed of these labels.

    Attributes:
        text: The label, such as ``.weight``.
        style: Format of the keys if the referent is a dict.
        key_id: The id of the dict key if the key is a tensor. The name of the tensor is then used instead of ``text``.
        indirect: Whether the reference passes through an unlabeled object, such as a closure cell.
        last_resort: Whether the label is used only if the referent has no other name.
    """

    text: str
    style: Style = "object"
    key_id: int | None = None
    indirect: bool = False
    last_resort: bool = False


_new_label: Any = functools.partial(tuple.__new__, ReferenceLabel)  # three times as fast as the class


def global_namespaces(obj: Any) -> tuple[Any, ...]:
    if type(obj) is types.FunctionType:
        return (obj.__globals__, getattr(obj, "__builtins__", None))
    if type(obj) is types.FrameType:
        return (obj.f_globals, obj.f_builtins)
    return ()


def reference_labels(
    obj: Any, style: Style, tensor_ids: Collection[int], wanted_ids: Collection[int] | None = None
) -> Iterator[tuple[int, ReferenceLabel]]:
    """Yield the id and the label of each object to which ``obj`` refers.

    ``style`` is the format of the keys if ``obj`` is a dict. Keys whose ids are in ``tensor_ids`` are tensors, and are
    represented by their names. Objects whose ids are not in ``wanted_ids`` may be omitted; None selects all objects.
    """
    cls = type(obj)
    base = next((base for base in mro(cls) if id(base) in _BY_BASE or base is dict), object)
    if base is dict:
        yield from _dict_labels(obj, style, tensor_ids, wanted_ids)
    elif base is not object:
        yield from _BY_BASE[id(base)](obj)
    by_type = _BY_TYPE.get(id(cls))
    if by_type is not None:
        yield from by_type(obj)
    elif base is not type and (base is not cls or cls is BaseException):  # plain dicts and lists have no attributes
        yield from _attribute_labels(obj, wanted_ids)


def _dict_labels(
    mapping: dict[Any, Any], style: Style, tensor_ids: Collection[int], wanted_ids: Collection[int] | None = None
) -> Iterator[tuple[int, ReferenceLabel]]:
    for key, value in list(dict.items(mapping)):
        if id(key) in tensor_ids:
            yield id(value), ReferenceLabel("", key_id=id(key))
            yield id(key), ReferenceLabel(" (key)", last_resort=True)
            continue
        plain = type(key) is str or is_exactly(key, _PLAIN_KEYS)
        if plain and wanted_ids is not None and id(value) not in wanted_ids:
            continue
        if style == "module" and type(key) is str and key in _MODULE_DICTS:
            yield id(value), ReferenceLabel("", "members")
        elif style == "names" and type(key) is str:
            yield id(value), ReferenceLabel(key)
        elif style in {"attributes", "module", "members"} and type(key) is str:
            yield id(value), ReferenceLabel(f"[{key}]" if style == "members" and key.isdecimal() else f".{key}")
        else:
            yield id(value), ReferenceLabel(f"[{_key_text(key)}]")
        if not plain:
            yield id(key), ReferenceLabel(" (key)", last_resort=True)


def _key_text(key: Any) -> str:
    text = f"<{type_name(type(key))}>"
    if type(key) is str:
        text = f'"{key}"' if key.isprintable() and '"' not in key else repr(key)
    elif is_exactly(key, _PLAIN_KEYS) or (type(key) is tuple and all(is_exactly(part, _PLAIN_KEYS) for part in key)):
        with contextlib.suppress(ValueError):  # Python does not convert integers of more than 4,300 digits
            text = repr(key)
    return text if len(text) <= _MAX_KEY_LENGTH else f"{text[: _MAX_KEY_LENGTH - 3]}..."


def _sequence_labels(sequence: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    base: Any = next(base for base in (tuple, list, collections.deque) if is_instance(sequence, base))
    names: Any = ()
    if base is tuple and type(sequence) is not tuple:  # a named tuple
        names = next((type_dict(cls)["_fields"] for cls in mro(type(sequence)) if "_fields" in type_dict(cls)), ())
        names = names if type(names) is tuple and all(type(name) is str for name in names) else ()
    for i, item in enumerate(list(base.__iter__(sequence))):
        text = f".{names[i]}" if i < len(names) else f"[{i}]"
        yield id(item), _new_label((text, "object", None, False, False))


def _array_labels(array: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    objects = has_objects(array)
    if objects:
        yield from ((id(item), ReferenceLabel(index)) for index, item in array_items(array))
    # a tensor that shares its memory with an array has the name of the array
    yield id(array_base(array)), ReferenceLabel(".base" if objects else "")


def _set_labels(items: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    base: Any = set if is_instance(items, set) else frozenset
    yield from ((id(item), ReferenceLabel("{...}")) for item in list(base.__iter__(items)))


def _class_labels(cls: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    for name, value in list(type_dict(cls).items()):
        yield id(value), ReferenceLabel(f".{name}")
    yield from ((id(base), ReferenceLabel(f" (base {type_name(base)})")) for base in mro(cls)[1:])
    # the garbage collector returns the dict itself, ``__dict__`` only a proxy of it
    yield from ((id(part), ReferenceLabel("", "attributes")) for part in gc.get_referents(cls) if type(part) is dict)


_ERROR_GETTERS = [vars(BaseException)[name].__get__ for name in ("__traceback__", "__cause__", "__context__", "args")]


def _exception_labels(error: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    yield from ((id(get(error)), ReferenceLabel("")) for get in _ERROR_GETTERS)
    for cls in mro(type(error)):  # such as AttributeError.obj, although a local variable is a better name
        if "__slots__" not in type_dict(cls):
            for name, value in slot_values(error, cls):
                yield id(value), ReferenceLabel(f".{name}", last_resort=True)


def _attribute_labels(obj: Any, wanted_ids: Collection[int] | None) -> Iterator[tuple[int, ReferenceLabel]]:
    namespace = instance_dict(obj)
    if namespace is not None:
        yield id(type(obj)), ReferenceLabel(".__class__")
        # copied to a list first, because another thread may change the dict
        is_module = any(type(key) is str and key == "_parameters" for key in list(dict.keys(namespace)))
        style: Style = "module" if is_module and not is_instance(obj, types.ModuleType) else "attributes"
        yield id(namespace), ReferenceLabel("", style)
        yield from _dict_labels(namespace, style, (), wanted_ids)
    for cls in mro(type(obj)):
        if "__slots__" in type_dict(cls):
            yield from ((id(value), ReferenceLabel(f".{name}")) for name, value in slot_values(obj, cls))


def _function_labels(function: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    code, defaults = function.__code__, function.__defaults__ or ()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield id(cell), ReferenceLabel(f" (closure {name})", indirect=True)
    parameters = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    for name, value in zip(parameters, defaults, strict=False):
        yield id(value), ReferenceLabel(f" (default {name})", indirect=True)
    yield id(function.__kwdefaults__), ReferenceLabel(" (default)", "items")
    yield id(function.__dict__), ReferenceLabel("", "attributes")
    yield from _dict_labels(function.__dict__, "attributes", ())


def _frame_labels(frame: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    for name, value in frame_locals(frame):
        # an exception leads to other frames, which name their own variables
        is_error = is_exactly(value, _TRACEBACK_TYPES) or is_instance(value, BaseException)
        yield id(value), ReferenceLabel(f" {name}", indirect=True, last_resort=is_error)
    yield id(frame.f_back), ReferenceLabel("")


def _lazy_labels(lazy: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    prefix = _LAZY[type(lazy)]
    frame = getattr(lazy, f"{prefix}_frame")
    if frame is not None:
        for name, value in frame_locals(frame):
            yield id(value), ReferenceLabel(f" (local {name})", indirect=True)
    yield id(getattr(lazy, f"{prefix}_yieldfrom" if prefix == "gi" else f"{prefix}_await")), ReferenceLabel("")


def _lru_cache_labels(function: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    yield id(vars(function).get("__wrapped__")), ReferenceLabel("")
    yield id(vars(function)), ReferenceLabel("", "attributes")


def _referent_labels(obj: Any) -> Iterator[tuple[int, ReferenceLabel]]:
    yield from ((id(referent), ReferenceLabel("")) for referent in gc.get_referents(obj))


def _members(*members: tuple[str, ReferenceLabel]) -> Any:
    def labels(obj: Any) -> Iterator[tuple[int, ReferenceLabel]]:
        yield from ((id(getattr(obj, name)), label) for name, label in members)

    return labels


_UNNAMED, _PARTIAL = ReferenceLabel(""), ReferenceLabel(" (partial)")
_BY_BASE: dict[int, Any] = {
    **dict.fromkeys(map(id, (tuple, list, collections.deque)), _sequence_labels),
    id(np.ndarray): _array_labels,
    **dict.fromkeys(map(id, (set, frozenset)), _set_labels),
    id(type): _class_labels,
    id(BaseException): _exception_labels,
}
_BY_TYPE: dict[int, Any] = {
    id(types.FunctionType): _function_labels,
    id(types.CellType): _referent_labels,
    id(types.FrameType): _frame_labels,
    id(types.MethodType): _members(("__self__", ReferenceLabel(".__self__")), ("__func__", _UNNAMED)),
    id(types.TracebackType): _members(("tb_frame", _UNNAMED), ("tb_next", _UNNAMED)),
    id(staticmethod): _members(("__func__", _UNNAMED)),
    id(classmethod): _members(("__func__", _UNNAMED)),
    id(property): _members(("fget", _UNNAMED), ("fset", _UNNAMED), ("fdel", _UNNAMED)),
    id(functools.partial): _members(
        ("args", _PARTIAL), ("keywords", _PARTIAL), ("func", _UNNAMED), ("__dict__", ReferenceLabel("", "attributes"))
    ),
    id(types.MappingProxyType): _referent_labels,
    id(memoryview): _referent_labels,
    id(type(gc.get_referents(memoryview(b""))[0])): _referent_labels,  # the buffer between a memoryview and its object
    id(_LRU_CACHE): _lru_cache_labels,
    **dict.fromkeys(map(id, _LAZY), _lazy_labels),
}


def intermediate_ids(obj: Any, children: list[Any]) -> set[int]:
    """Return the ids of the ``children`` through which indirect labels of ``obj`` pass, such as closure tuples."""
    if type(obj) is types.FunctionType:
        return {id(child) for child in children if child is obj.__closure__ or child is obj.__defaults__}
    if not is_exactly(obj, (types.FrameType, *_LAZY)):
        return set()
    is_frame = type(obj) is types.FrameType  # whose dicts are copies of the local variables, created by ``f_locals``
    copied = [child for child in children if is_frame and type(child) is dict and child is not obj.f_globals]
    return {id(child) for child in (*copied, *(child for child in children if type(child) is types.CellType))}


def fallback_label(obj: Any) -> str:
    return " (lru_cache)" if type(obj) is _LRU_CACHE else f" <{type_name(type(obj))}>"


def type_label(obj: Any) -> str:
    class_name = str(type_name(type(obj)))
    return f"{class_name} {obj.__name__}()" if is_exactly(obj, (*_LAZY, types.FunctionType)) else class_name


def label_rank(obj: Any) -> int:
    return 0 if type(obj) is types.FrameType else 2 if is_exactly(obj, _CONTAINERS) else 1
