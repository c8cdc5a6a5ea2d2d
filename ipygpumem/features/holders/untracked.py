"""Find referrers that the garbage collector does not track, and referrers of classes.

The collector does not track NumPy arrays, which may contain Python objects or share a tensor's memory, nor dicts and
tuples that contain only untracked objects. A class without a name is named after its instances or subclasses.
"""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.introspection import is_instance, mro

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ipygpumem.features.holders.referrers import ReferrerGraph, TrackedObjects

_CHUNK = 8192
_PLAIN_TYPE_IDS = frozenset(map(id, (str, int, float, bool, bytes, complex, type(None))))
_MAX_CLASS_REFERRERS = 50
"""Maximum number of referrers added for each class, because a class may have millions of instances."""
_MAX_ARRAY_SIZE = 1_000_000
"""Maximum number of elements of a NumPy array to be read, because reading creates a list of them."""
_dtype, _size = (vars(np.ndarray)[name].__get__ for name in ("dtype", "size"))

array_base: Any = vars(np.ndarray)["base"].__get__
"""Return the object whose memory a NumPy array uses, or None if the array owns its memory."""


def _is_array(cls: type) -> bool:
    return any(base is np.ndarray for base in mro(cls))


def has_objects(obj: Any) -> bool:
    """Return whether an object is a NumPy array that contains Python objects."""
    return _is_array(type(obj)) and bool(_dtype(obj).hasobject)


def array_items(array: Any) -> Iterator[tuple[str, Any]]:
    """Yield the index, such as ``[0, 3]`` or ``[0]["field"]``, and the value of each element of a NumPy array."""
    if _size(array) > _MAX_ARRAY_SIZE:
        return
    fields = _dtype(array).names
    plain = np.ndarray.view(array, np.ndarray)  # subclasses may override how an array is read
    for position, value in zip(np.ndindex(plain.shape), plain.ravel().tolist(), strict=True):
        index = f"[{', '.join(map(str, position))}]" if position else "[()]"
        if fields is None:
            yield index, value
        else:
            yield from ((f'{index}["{field}"]', part) for field, part in zip(fields, value, strict=False))


def add_array_referrers(
    ids: Collection[int], referrers: ReferrerGraph, share: float, roots: Iterable[Any] = ()
) -> list[int]:
    """Add NumPy arrays and untracked containers that refer to objects with these ids. Return the added ids.

    Untracked roots are also searched. Nothing is added once the fraction ``share`` of the time limit has passed.
    """
    pending = _untracked_referents(referrers, share)
    pending += [(part, root) for root in roots if _is_untracked(root) for part in _referents(root) if _may_refer(part)]
    array_referrers: dict[int, list[Any]] = {}
    arrays: dict[int, Any] = {}
    contents: dict[int, list[int]] = {}
    while pending:
        array, referrer = pending.pop()
        array_id = id(array)
        array_referrers.setdefault(array_id, []).append(referrer)
        if array_id in arrays:
            continue
        arrays[array_id] = array
        parts = _referents(array)
        contents[array_id] = [id(part) for part in parts if id(part) in ids]
        pending += [(part, array) for part in parts if _may_refer(part)]
    leading = [array_id for array_id, content in contents.items() if content]
    for array_id in leading:  # the loop appends the arrays that contain these
        for referrer in array_referrers[array_id]:
            if id(referrer) in arrays:
                contents[id(referrer)].append(array_id)
                if id(referrer) not in leading:
                    leading.append(id(referrer))
    added = [array_id for array_id in leading if array_id not in referrers.objects]
    for array_id in added:
        referrers.objects[array_id] = arrays[array_id]
        referrers.children.setdefault(array_id, []).extend(contents[array_id])
        tracked = (referrer for referrer in array_referrers[array_id] if id(referrer) not in arrays)
        referrers.extra.setdefault(array_id, []).extend(tracked)
    return added


def _untracked_referents(referrers: ReferrerGraph, share: float) -> list[tuple[Any, Any]]:
    pairs: list[tuple[Any, Any]] = []
    objects = referrers.heap.objects
    for start in range(0, len(objects), _CHUNK):
        if referrers.limit.passed(share):
            return []
        chunk = objects[start : start + _CHUNK]
        referents = list(map(gc.get_referents, chunk))
        classes = list(map(type, itertools.chain.from_iterable(referents)))
        by_id = dict(zip(map(id, classes), classes, strict=True))
        candidates = {key for key, cls in by_id.items() if cls is dict or cls is tuple or _is_array(cls)}
        pairs += [
            (part, referrer)
            for referrer, parts in zip(chunk, referents, strict=True)
            for part in parts
            if id(type(part)) in candidates and _may_refer(part)
        ]
    return pairs


def _referents(obj: Any) -> list[Any]:
    if not _is_array(type(obj)):
        return gc.get_referents(obj)
    base = array_base(obj)
    items = [item for _, item in array_items(obj)] if has_objects(obj) else []
    return items if base is None else [*items, base]


def _may_refer(obj: Any) -> bool:
    if _is_untracked(obj):
        return any(id(type(part)) not in _PLAIN_TYPE_IDS for part in gc.get_referents(obj))
    return _is_array(type(obj)) and (array_base(obj) is not None or has_objects(obj))


def _is_untracked(obj: Any) -> bool:
    return (type(obj) is dict or type(obj) is tuple) and not gc.is_tracked(obj)


def add_class_referrers(ids: Collection[int], referrers: ReferrerGraph) -> list[int]:
    """Add referrers of the classes with these ids: instances, subclasses and tuples. Return the referrers' ids."""
    class_ids = [object_id for object_id in ids if is_instance(referrers.objects[object_id], type)]
    added = []
    for class_id, parents in zip(class_ids, referrers.heap.parents(class_ids), strict=True):
        cls = referrers.objects[class_id]
        chosen = [obj for obj in parents if obj is not cls and (type(obj) is cls or is_instance(obj, type))]
        chosen += [obj for obj in parents if type(obj) is tuple and not _belongs_to_class(obj, referrers.heap)]
        for obj in chosen[:_MAX_CLASS_REFERRERS]:
            if id(obj) not in referrers.objects:
                referrers.objects[id(obj)] = obj
                added.append(id(obj))
            referrers.children.setdefault(id(obj), []).append(class_id)
    return added


def _belongs_to_class(bases: tuple[Any, ...], heap: TrackedObjects) -> bool:
    """Return whether a tuple is the ``__bases__`` or ``__mro__`` of a class."""
    (parents,) = heap.parents([id(bases)])
    return any(is_instance(parent, type) for parent in parents)
