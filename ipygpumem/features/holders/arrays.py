"""Numpy's arrays of objects, read by the base class's own C functions: a subclass's code does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.sources.storages import mro

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["base_of", "has_objects", "is_array", "items"]

_MOST = 1_000_000
"""Elements of an array that is looked into: each becomes a Python reference for a moment."""
_dtype, _size, _ndim, _base = (vars(np.ndarray)[name].__get__ for name in ("dtype", "size", "ndim", "base"))


def is_array(kind: type) -> bool:
    """Whether a class is numpy's array or a subclass of it."""
    return kind is np.ndarray or any(base is np.ndarray for base in mro(kind))


def has_objects(thing: Any) -> bool:
    """Whether a thing is an array that refers to Python objects."""
    return is_array(type(thing)) and bool(_dtype(thing).hasobject)


def base_of(array: Any) -> Any:
    """What an array is a view of."""
    return _base(array)


def items(array: Any) -> Iterator[tuple[str, Any]]:
    """(index, object) of what an array refers to: ``[0, 3]``, of a field ``[0]["name"]``."""
    if _size(array) > _MOST:
        return
    fields = _dtype(array).names
    for at, one in _flat(np.ndarray.tolist(array), _ndim(array), ()):
        index = f"[{', '.join(map(str, at))}]" if at else "[()]"
        if fields is None:
            yield index, one
        else:
            yield from ((f'{index}["{name}"]', part) for name, part in zip(fields, one, strict=False))


def _flat(values: Any, depth: int, at: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    if not depth:
        yield at, values
        return
    for i, one in enumerate(values):
        yield from _flat(one, depth - 1, (*at, i))
