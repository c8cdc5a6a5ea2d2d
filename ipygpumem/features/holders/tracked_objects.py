"""Read the references between objects, starting at given objects or at all objects that Python tracks.

`gc.get_referents` calls an object's ``tp_traverse`` in C, which runs no user code. Objects that the garbage collector
does not track are read if they can lead to tensors: NumPy arrays, which may contain Python objects or share a tensor's
memory, and dicts and tuples that contain them. The references are stored in two columns, child and parent, which are
sorted by child so that the referrers of an object can be found by binary search.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import operator
import sys
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.introspection import instance_dict, is_instance, mro, type_dict
from ipygpumem.features.holders.model import Holders

Ids = NDArray[np.int64]

_CHUNK = 1024  # number of objects that are read together; larger lists of references would fragment Python's memory
_MIN_OBJECTS = 150_000  # twice the number that is reachable from the variables in a session with GPT-2
COST = 10  # duration of adding a tensor or an autograd node, relative to that of reading an object
_MIN_LARGE = 4096  # number of references above which a container, such as a data set, is read last
_MIN_LONG = 64  # minimum number of elements of a list whose tensors are named together
_MAX_SINGLE_LOOKUPS = 32  # number of ids below which `bisect` is faster than NumPy
_PLAIN_TYPE_IDS = frozenset(map(id, (str, int, float, bool, bytes, complex, type(None), types.CodeType)))
_MAX_ARRAY_SIZE = 1_000_000
"""Maximum number of elements of a NumPy array to be read, because reading creates a list of them."""
_MAX_INITIALLY_FROZEN = 1000
"""Maximum number of frozen objects of an interpreter in which `gc.freeze` was not called: 375 in Python 3.12."""
_dtype, _size = (vars(np.ndarray)[name].__get__ for name in ("dtype", "size"))

array_base: Any = vars(np.ndarray)["base"].__get__
"""Function that returns the object whose memory a NumPy array uses, or None if the array owns its memory."""


class SearchLimit:
    """Time limit of a search.

    Attributes:
        complete: False after this or another limit has been reached.
        unlimited: Number of objects that must still be read before the time limit applies, so that the variables of a
            training session are named even if the process gets little CPU time.
    """

    def __init__(self, seconds: float) -> None:
        self.start = time.perf_counter()
        self.end = self.start + seconds
        self.complete = True
        self.unlimited = _MIN_OBJECTS

    def extend(self) -> None:
        """Extend the time limit so that the remaining steps can take as long as the completed steps."""
        now = time.perf_counter()
        self.end = max(self.end, 2 * now - self.start)

    def reached(self, share: float = 1.0) -> bool:
        """Return the result of `passed`. If it is true, mark the search as incomplete."""
        is_reached = self.passed(share)
        self.complete &= not is_reached
        return is_reached

    def passed(self, share: float) -> bool:
        """Return whether a share (0 to 1) of the time limit has passed, and ``unlimited`` objects have been read."""
        return self.unlimited <= 0 and time.perf_counter() > self.start + (self.end - self.start) * share


class TrackedObjects:
    """Objects that may refer to tensors, and the references between them. They stay alive until `release` is called.

    If ``stop_ids`` is None, all objects that Python tracks are read. Otherwise, `follow` reads neither objects with
    these ids nor classes of libraries, because most objects are reachable from them.
    ``take_tensors`` is called with each long list or tuple of tensors and its items, and returns the items to follow.

    Attributes:
        seen_ids: The ids of objects that are not added again.
    """

    def __init__(
        self,
        limit: SearchLimit,
        role: Callable[[type], str | None],
        stop_ids: Collection[int] | None = None,
        take_tensors: Callable[[Any, list[Any]], list[Any]] | None = None,
    ) -> None:
        start = gc.get_objects() if stop_ids is None else []  # first, so that it does not include these attributes
        self._limit = limit
        self._role = role
        self._stop_ids = stop_ids
        self._take_tensors = take_tensors
        self.seen_ids = set(stop_ids or ())
        self._finds_tracked = stop_ids is not None or has_frozen_objects()
        self._types: dict[int, tuple[str | None, bool]] = {}
        self._special_type_ids: set[int] = set()
        self._container_type_ids = {id(dict), id(tuple)}
        self._by_role: dict[str, list[Any]] = {}
        self._pending: list[Any] = []
        self._position = 0
        self._arrays: list[Any] = []
        self._large: list[tuple[int, list[Any]]] = []
        self._columns: list[tuple[Ids, NDArray[np.int32]]] = []
        self._children: Ids = np.empty(0, np.int64)
        self._parents: NDArray[np.int32] = np.empty(0, np.int32)
        self.objects: list[Any] = []
        self._add(start, is_new=not self._finds_tracked)
        start.clear()  # so that the objects are referred to once

    def follow(self, start: list[Any], share: float = 1.0) -> None:
        self._add(start)
        while self._pending or self._arrays or self._large:
            if self._limit.reached(share):
                return
            if self._pending:
                chunk = self._pending[self._position : self._position + _CHUNK]
                self._position += _CHUNK
                if self._position >= len(self._pending):
                    self._pending, self._position = [], 0
                self._read(chunk, gc.get_referents)
            elif self._arrays:
                arrays, self._arrays = self._arrays, []
                self._read(arrays, _array_referents)
            else:
                self._read_large()

    def release(self) -> None:
        for references in (self.objects, self._by_role, self._pending, self._arrays, self._large):
            references.clear()

    def take_by_role(self) -> dict[str, list[Any]]:
        by_role, self._by_role = self._by_role, {}
        return by_role

    def _add(self, objects: list[Any], *, is_new: bool = False) -> None:
        if not is_new:
            unseen = {key: obj for key, obj in zip(map(id, objects), objects, strict=True) if key not in self.seen_ids}
            objects = list(unseen.values())
            self.seen_ids.update(unseen)
        removed_ids = set()
        for obj in itertools.compress(objects, map(self._special_type_ids.__contains__, self._inspect(objects))):
            role, is_array = self._types[id(type(obj))]
            if role:
                self._by_role.setdefault(role, []).append(obj)
            elif is_array:
                self._arrays.append(obj)
                removed_ids.add(id(obj))
            elif type(obj) is Holders or _is_asyncio(obj) or self._is_library_class(obj):
                removed_ids.add(id(obj))
        self._pending += [obj for obj in objects if id(obj) not in removed_ids] if removed_ids else objects

    def _inspect(self, objects: list[Any]) -> list[int]:
        type_ids = list(map(id, map(type, objects)))
        new_ids = set(type_ids).difference(self._types)
        examples = dict(zip(type_ids, objects, strict=True)) if new_ids else {}
        for key in new_ids:
            cls = type(examples[key])
            role, is_array = self._types[key] = self._role(cls), _is_array(cls)
            is_class = self._stop_ids is not None and any(base is type for base in mro(cls))
            if role or is_array or is_class or cls is types.ModuleType or cls is Holders:
                self._special_type_ids.add(key)
            if is_array:
                self._container_type_ids.add(key)
        return type_ids

    def _is_library_class(self, obj: Any) -> bool:
        if self._stop_ids is None or not is_instance(obj, type):
            return False
        name = type_dict(obj).get("__module__")
        module = sys.modules.get(name) if type(name) is str else None
        return module is not None and id(instance_dict(module)) in self._stop_ids

    def _read(self, objects: list[Any], read: Callable[[Any], list[Any]]) -> None:
        self._limit.unlimited -= len(objects)
        start = len(self.objects)
        self.objects += objects
        referents = list(map(read, objects))
        if self._take_tensors is not None:
            pairs = zip(objects, referents, strict=True)
            referents = [self._take_tensors(*pair) if self._is_list_of_tensors(*pair) else pair[1] for pair in pairs]
        if max(map(len, referents), default=0) > _MIN_LARGE:
            self._large += [(start + i, part[::-1]) for i, part in enumerate(referents) if len(part) > _MIN_LARGE]
            referents = [part if len(part) <= _MIN_LARGE else [] for part in referents]
        self._connect(range(start, len(self.objects)), referents)

    def _is_list_of_tensors(self, obj: Any, items: list[Any]) -> bool:
        if len(items) < _MIN_LONG or not (type(obj) is list or type(obj) is tuple):
            return False
        return any(self._role(type(items[i])) == "tensor" for i in (0, len(items) // 2, -1))

    def _read_large(self) -> None:
        index, parts = self._large[-1]
        chunk = parts[-_CHUNK:]
        del parts[-_CHUNK:]
        if not parts:
            self._large.pop()
        self._connect(range(index, index + 1), [chunk])

    def _connect(self, indexes: range, referents: list[list[Any]]) -> None:
        parts = list(itertools.chain.from_iterable(referents))
        is_kept = list(map(gc.is_tracked, parts))
        containers = self._untracked_containers(list(itertools.compress(parts, map(operator.not_, is_kept))))
        if containers:
            is_kept = list(map(operator.or_, is_kept, map(containers.__contains__, map(id, parts))))
        kept_objects = list(itertools.compress(parts, is_kept))
        lengths = np.fromiter(map(len, referents), np.int64, len(referents))
        parents = np.repeat(np.arange(indexes.start, indexes.stop, dtype=np.int32), lengths)
        ids = np.fromiter(map(id, kept_objects), np.int64, len(kept_objects))
        self._columns.append((ids, parents[np.array(is_kept, np.bool_)]))
        self._add(kept_objects if self._finds_tracked else list(containers.values()))

    def _untracked_containers(self, objects: list[Any]) -> dict[int, Any]:
        type_ids = self._inspect(objects)
        containers = itertools.compress(objects, map(self._container_type_ids.__contains__, type_ids))
        return {key: obj for key, obj in {id(obj): obj for obj in containers}.items() if _may_refer(obj)}

    def parents(self, ids: Collection[int]) -> list[list[Any]]:
        """Return a list of referrers for each id in ``ids``. A referrer is listed once for each of its references."""
        if self._columns:
            children = np.concatenate([self._children, *(ids for ids, _ in self._columns)])
            order = np.argsort(children, kind="stable")
            self._children = children[order]
            self._parents = np.concatenate([self._parents, *(parents for _, parents in self._columns)])[order]
            self._columns.clear()
        spans: Iterable[tuple[int, int]]
        if len(ids) < _MAX_SINGLE_LOOKUPS:
            column = self._children.data
            spans = [(start := bisect.bisect_left(column, key), bisect.bisect_right(column, key, start)) for key in ids]
        else:
            id_array = np.fromiter(ids, np.int64, len(ids))
            starts = np.searchsorted(self._children, id_array, "left").tolist()
            spans = zip(starts, np.searchsorted(self._children, id_array, "right").tolist(), strict=True)
        objects, parents = self.objects, self._parents
        return [[objects[i] for i in parents[start:end].tolist()] for start, end in spans]


def has_frozen_objects() -> bool:
    """Return whether `gc.freeze` was called, so that the collector does not list all objects."""
    return gc.get_freeze_count() > _MAX_INITIALLY_FROZEN


def _is_asyncio(obj: Any) -> bool:
    """Return whether an object is the module ``_asyncio``, whose referents must not be read.

    Up to Python 3.12.5 and 3.13.0rc1, the referents include freed iterators (CPython #122695). If a list of them is
    deleted, the iterators are freed twice, and the next traversal of the module does not terminate.
    """
    name = vars(obj).get("__name__") if type(obj) is types.ModuleType else None
    return type(name) is str and name == "_asyncio"


def _is_array(cls: type) -> bool:
    return any(base is np.ndarray for base in mro(cls))


def has_objects(obj: Any) -> bool:
    return _is_array(type(obj)) and bool(_dtype(obj).hasobject)


def array_items(array: Any) -> Iterator[tuple[str, Any]]:
    """Yield the index, such as ``[0, 3]`` or ``[0]["field"]``, and the value of each element of a NumPy array.

    Yield nothing for arrays of more than 1,000,000 elements.
    """
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


def _array_referents(obj: Any) -> list[Any]:
    base = array_base(obj)
    items = [item for _, item in array_items(obj)] if has_objects(obj) else []
    return [*gc.get_referents(obj), *items, *([] if base is None else [base])]


def _may_refer(obj: Any) -> bool:
    if type(obj) is dict or type(obj) is tuple:
        return not _PLAIN_TYPE_IDS.issuperset(map(id, map(type, gc.get_referents(obj))))
    return array_base(obj) is not None or has_objects(obj)
