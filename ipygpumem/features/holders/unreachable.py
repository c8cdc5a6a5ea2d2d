"""What no root reaches: alive by somebody who cannot be seen, or a cycle that Python's collector will find.

The collector's own reckoning, without a collection: an object's reference count, less the references from the others
that nobody reaches, less our own. What remains above zero is held from outside, and so is all that it refers to.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import is_one_of, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.features.holders.referrers import Ways

__all__ = ["alive", "outermost", "what"]


def alive(lost: Collection[int], ways: Ways, held: Mapping[int, int]) -> set[int]:
    """Those of the lost that somebody holds from outside.

    ``held``: our own references to each, besides the one of the heap's list and the one of ``ways.things``.
    """
    inside: dict[int, int] = {}
    for key in lost:
        for child in ways.kids.get(key, ()):
            inside[child] = inside.get(child, 0) + 1
    found = set()
    ours = _ours()
    for key in lost:
        thing = ways.things[key]
        count = sys.getrefcount(thing)
        # what C objects keep has one reference, theirs, which the collector does not see; and is theirs alone to keep
        kept = [id(one) in lost for one in ways.extra.get(key, ())]
        told = sum(kept) - bool(kept)
        if not all(kept) or count - ours - held.get(key, 0) > inside.get(key, 0) - told:
            found.add(key)
    frontier = list(found)
    while frontier:
        for child in ways.kids.get(frontier.pop(), ()):
            if child in lost and child not in found:
                found.add(child)
                frontier.append(child)
    return found


def _ours() -> int:
    """The references that the loop above sees of an object which only the heap's list and the ways hold."""
    shelf: list[Any] = [object()]
    things = {0: shelf[0]}
    thing = things[0]
    return sys.getrefcount(thing)


def outermost(chosen: Collection[int], ways: Ways) -> list[tuple[int, str]]:
    """(id, label) of the chosen: those that no other refers to first, then the rest, for cycles have no outermost."""
    inner = {child for key in chosen for child in ways.kids.get(key, ()) if child != key}
    ordered = sorted(chosen, key=lambda key: (key in inner, _plainness(ways.things[key])))
    return [(key, f"<{what(ways.things[key])}>") for key in ordered]


def _plainness(thing: Any) -> int:
    """A function's frame tells more than an object, an object more than a dict."""
    if type(thing) is types.FrameType:
        return 0
    return 2 if is_one_of(thing, (dict, list, tuple, types.CellType, types.TracebackType)) else 1


def what(thing: Any) -> str:
    """An object without a name: its class, and of code its function."""
    kind = str(name_of(type(thing)))
    if is_one_of(thing, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FunctionType)):
        return f"{kind} {thing.__name__}()"
    return kind
