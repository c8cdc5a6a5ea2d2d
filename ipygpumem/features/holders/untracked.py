"""Second looks at what nobody seems to hold: in numpy's arrays, and by classes that have no name.

Python's collector does not know the arrays themselves, nor what they hold: objects, or a tensor whose memory they
share. A class is called by whoever names it; where nobody does, an instance, a subclass or a tuple tells.
"""

from __future__ import annotations

import gc
import itertools
import time
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.arrays import base_of, has_objects, is_array, items
from ipygpumem.features.holders.labels import isinstance_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ipygpumem.features.holders.heap import Heap
    from ipygpumem.features.holders.referrers import Ways

__all__ = ["through_arrays", "through_classes"]

_CHUNK = 8192
_PLAIN = frozenset(map(id, (str, int, float, bool, bytes, complex, type(None))))
_MOST_KEEPERS = 50
"""Of a class's instances: there may be millions, and one has a name as good as another's."""


def through_arrays(
    lost: Collection[int], ways: Ways, heap: Heap, deadline: float, roots: Iterable[Any] = ()
) -> list[int]:
    """Put arrays over what they hold of the lost, and over each array who holds that one; the ids of the arrays.

    Dicts and tuples with nothing but arrays are like these: the collector does not track them. ``roots``: things that
    count although it does not.
    """
    todo = _arrays(heap, deadline)
    todo += [(one, root) for root in roots if _untracked(root) for one in gc.get_referents(root) if _hidden(one)]
    keepers: dict[int, list[Any]] = {}
    arrays: dict[int, Any] = {}
    inside: dict[int, list[int]] = {}
    while todo:
        array, keeper = todo.pop()
        key = id(array)
        keepers.setdefault(key, []).append(keeper)
        if key in arrays:
            continue
        arrays[key] = array
        parts = _parts(array)
        inside[key] = [id(one) for one in parts if id(one) in lost]
        todo += [(one, array) for one in parts if _hidden(one)]
    holding = [key for key, found in inside.items() if found]
    for key in holding:  # the list grows: by the arrays that hold these, and those that are views of these
        for keeper in keepers[key]:
            if id(keeper) in arrays:
                inside[id(keeper)].append(key)
                if id(keeper) not in holding:
                    holding.append(id(keeper))
    holding = [key for key in holding if key not in ways.things]
    for key in holding:
        ways.things[key] = arrays[key]
        ways.kids.setdefault(key, []).extend(inside[key])
        ways.extra.setdefault(key, []).extend(one for one in keepers[key] if id(one) not in arrays)
    return holding


def _arrays(heap: Heap, deadline: float) -> list[tuple[Any, Any]]:
    """Each array of objects that something in the heap refers to, and what does."""
    found: list[tuple[Any, Any]] = []
    objects = heap.objects
    for start in range(0, len(objects), _CHUNK):
        if time.perf_counter() > deadline:
            return []
        answers = list(map(gc.get_referents, objects[start : start + _CHUNK]))
        kinds = list(map(type, itertools.chain.from_iterable(answers)))
        some = {key for key, kind in dict(zip(map(id, kinds), kinds, strict=True)).items() if _may_hide(kind)}
        pairs = zip(objects[start : start + _CHUNK], answers, strict=True)
        found += [(one, keeper) for keeper, answer in pairs for one in answer if id(type(one)) in some and _hidden(one)]
    return found


def _parts(thing: Any) -> list[Any]:
    """What a thing refers to: an array its objects, and what it is a view of."""
    if not is_array(type(thing)):
        return gc.get_referents(thing)
    base = base_of(thing)
    return [*([one for _, one in items(thing)] if has_objects(thing) else ()), *([] if base is None else [base])]


def _may_hide(kind: type) -> bool:
    return kind is dict or kind is tuple or is_array(kind)


def _hidden(thing: Any) -> bool:
    """Whether a thing may refer to Python objects although the collector does not see it."""
    if _untracked(thing):
        return any(id(type(one)) not in _PLAIN for one in gc.get_referents(thing))
    return is_array(type(thing)) and (base_of(thing) is not None or has_objects(thing))


def _untracked(thing: Any) -> bool:
    kind = type(thing)
    return (kind is dict or kind is tuple) and not gc.is_tracked(thing)


def through_classes(lost: Collection[int], ways: Ways, heap: Heap) -> list[int]:
    """Put instances, subclasses and tuples over classes among the lost; the ids of those that are new."""
    classes = [key for key in lost if isinstance_of(ways.things[key], type)]
    fresh = []
    for key, parents in zip(classes, heap.parents(classes), strict=True):
        thing = ways.things[key]
        keepers = [one for one in parents if one is not thing and (type(one) is thing or isinstance_of(one, type))]
        keepers += [one for one in parents if type(one) is tuple and not _of_class(one, heap)]
        for one in keepers[:_MOST_KEEPERS]:
            if id(one) not in ways.things:
                ways.things[id(one)] = one
                fresh.append(id(one))
            ways.kids.setdefault(id(one), []).append(key)
    return fresh


def _of_class(thing: tuple[Any, ...], heap: Heap) -> bool:
    """Whether a tuple is a class's own, of its bases."""
    (parents,) = heap.parents([id(thing)])
    return any(isinstance_of(one, type) for one in parents)
