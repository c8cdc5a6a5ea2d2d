"""Functions that save the items of containers, the attributes of objects and global variables, and restore them."""

from __future__ import annotations

import array
import collections
import functools
import io
import mmap
import operator
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ipygpumem.core.introspection import attempt, instance_dict, is_instance, mro, slot_values, type_dict


def _base(container: Any) -> type[Any]:
    """Return the built-in base class of a container. Its methods are called even if a subclass overrides them."""
    bases = (
        collections.OrderedDict,
        collections.defaultdict,
        dict,
        list,
        set,
        collections.deque,
        bytearray,
        array.array,
    )
    return next(base for base in bases if issubclass(type(container), base))


def items_of(container: Any) -> Any:
    """Return the items of a container as a list, or the key-value pairs of a dict."""
    base = _base(container)
    return list(base.items(container)) if issubclass(base, dict) else list(base.__iter__(container))


def added_items(container: Any, items: list[Any]) -> int:
    """Return the difference between the current number of items of a container and the number of saved ``items``."""
    return int(_base(container).__len__(container)) - len(items)


def replaced_items(container: Any, items: list[Any]) -> list[Any]:
    """Return the saved items, or keys and values of a dict, that the container no longer contains.

    The result is empty for a ``bytearray`` or an ``array.array``, whose items are not tensors.
    """
    base = _base(container)
    if issubclass(base, bytearray | array.array):
        return []
    values, current = items, items_of(container)
    if issubclass(base, dict):
        values, current = ([part for item in pairs for part in item] for pairs in (values, current))
    current_ids = set(map(id, current))
    return [value for value in values if id(value) not in current_ids]


def restore_items(container: Any, items: list[Any]) -> None:
    """Restore the items of a container in place. ``items`` is the result of `items_of`."""
    base = _base(container)
    current = items_of(container)
    if issubclass(base, dict):
        if _identical([part for item in current for part in item], [part for item in items for part in item]):
            return
        base.clear(container)
        for key, value in items:
            base.__setitem__(container, key, value)
        return
    if base is set:
        if {id(item) for item in current} != {id(item) for item in items}:
            base.clear(container)
            base.update(container, items)
    elif not _identical(current, items):
        if base is bytearray or base is list:
            base.__setitem__(container, slice(None), items)  # a bytearray with a memoryview cannot be cleared
        elif base is array.array:
            base.__setitem__(container, slice(None), base(container.typecode, items))
        else:
            base.clear(container)
            base.extend(container, items)


def file_state(file: Any) -> Any:
    """Return the content and the position of an in-memory file, or the position of a file open only for reading.

    Return None for all other files and for closed files, whose state is not restored.
    """
    base = next((base for base in (io.BytesIO, io.StringIO) if issubclass(type(file), base)), None)
    if base is not None:
        state: Any = attempt(lambda: base.__getstate__(file))
        return state and state[:-1]  # without the attributes
    if type(file) not in (io.TextIOWrapper, io.BufferedReader, io.FileIO):
        return None
    return attempt(lambda: file.tell() if file.seekable() and not file.writable() else None)


def restore_file(file: Any, state: Any) -> None:
    if file_state(file) == state:
        return
    if isinstance(state, tuple):
        file.__setstate__((*state, None))
    else:
        file.seek(state)


def restore_array(values: Any, contents: Any) -> None:
    """Restore the shape and the elements of a writable NumPy array from a copy."""
    if not values.flags.writeable:
        values.flags.writeable = True
    if values.shape != contents.shape:
        values.resize(contents.shape, refcheck=False)
    values[...] = contents


def _identical(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, first, second))


def attributes(instance: Any) -> dict[Any, Any]:
    """Return the attributes of an object or of a class, including those in slots."""
    if is_instance(instance, type):
        special = {"__dict__", "__weakref__", "__doc__", "__annotations__"}
        return {name: value for name, value in named_values(type_dict(instance)) if name not in special}
    classes = [base for base in mro(type(instance)) if "__slots__" in type_dict(base)]
    slots = {name: value for base in classes for name, value in slot_values(instance, base)}
    return {**dict(named_values(instance_dict(instance) or {})), **slots}


def named_values(namespace: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items whose names are of type ``str``, but not of a subclass, which could override methods."""
    return ((name, value) for name, value in namespace.items() if type(name) is str)


def restore_attributes(instance: Any, saved_values: dict[Any, Any], kind: type) -> None:
    """Restore the attributes of an object, as returned by `attributes`, and its class, ``kind``."""
    if type(instance) is not kind:
        object.__setattr__(instance, "__class__", kind)
    current = attributes(instance)
    namespace = None if is_instance(instance, type) else instance_dict(instance)
    for name in current.keys() - saved_values.keys():
        if namespace is not None and name in namespace:
            dict.__delitem__(namespace, name)
        else:
            attempt(functools.partial(_owner(instance).__delattr__, instance, name))
    for name, value in saved_values.items():
        if name not in current or current[name] is not value:
            if namespace is not None and not _is_slot(instance, name):
                dict.__setitem__(namespace, name, value)
            else:
                attempt(functools.partial(_owner(instance).__setattr__, instance, name, value))
    if namespace is not None:
        order = [name for name in saved_values if name in namespace]
        for name in order if order != [name for name, _ in named_values(namespace)] else ():
            dict.__setitem__(namespace, name, dict.pop(namespace, name))


def _owner(instance: Any) -> Any:
    return type if is_instance(instance, type) else object


def _is_slot(instance: Any, name: str) -> bool:
    return any(isinstance(type_dict(base).get(name), types.MemberDescriptorType) for base in mro(type(instance)))


def restore_names(variables: dict[str, Any], saved_values: dict[str, Any], names: set[str] | None) -> None:
    """Restore the global variables of a module or notebook that the step may have set.

    ``names`` contains the names in the code of the step, or is None if the code can set any name. Other variables can
    only have been set by other threads and are not restored.
    """
    for name in dict(named_values(variables)).keys() - saved_values.keys():
        if names is not None and name not in names:
            continue
        # a submodule that the step has imported stays imported
        if not is_instance(variables[name], types.ModuleType) or variables.get("__name__") == "__main__":
            del variables[name]
    for name, value in saved_values.items():
        if (names is None or name in names) and (name not in variables or variables[name] is not value):
            variables[name] = value


def restore_cell(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    """Restore a variable of an enclosing function. ``contents`` is empty if the variable had no value."""
    if contents:
        cell.cell_contents = contents[0]
    else:
        del cell.cell_contents


def writable_arrays(arrays: Iterable[Any]) -> Iterator[Any]:
    """Yield each writable array once. Memory-mapped files are skipped: they would have to be read completely."""
    visited_keys = set()
    for values in arrays:
        base = values
        while base is not None and type(base) is not mmap.mmap:
            base = getattr(base, "obj", None) if type(base) is memoryview else getattr(base, "base", None)
        key = (values.__array_interface__["data"], values.shape, values.strides, values.dtype.str)
        if values.flags.writeable and base is None and key not in visited_keys:
            visited_keys.add(key)
            yield values
