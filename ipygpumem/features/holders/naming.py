"""The way down: from the roots to the tensors, with a name for everything on the way, the nearest root's first."""

from __future__ import annotations

import heapq
import itertools
import time
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import Label, Style, labels, passed_by, unnamed
from ipygpumem.features.holders.model import PLACES, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ipygpumem.features.holders.referrers import Ways

__all__ = ["ALSO", "RANK", "Named", "Names", "Roles", "Root"]

_LATE = 50
"""Steps that an optimizer's own references count for: a parameter is called by its module first."""
_AFTER = 5
"""Steps that a root counts for which is itself what somebody else may hold."""
_TRIES = 40
"""Ways that are tried for the further names of one storage: there may be any number."""
_LONGEST = 12
"""Parts of a name; in a longer one the middle is left out."""
_CUT = "..."
_ROWS = 4
"""Rows that are told of those whose graphs keep one storage."""
ALSO = 4
"""Further names that are kept."""
_OFTEN = 256
"""Objects after which the time is looked at."""
RANK = {place: i for i, place in enumerate(PLACES)}

_Queue = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Root:
    """Where names begin.

    Attributes:
        label: How it is written; of a namespace, what stands before its names.
        thing: A namespace (a dict, with style ``names``), or any object.
        place: What a name below it counts as.
        style: How its keys are written; with ``items`` each item is a holder of its own.
        names: Of a namespace: which names; None for all.
        stops: Whether it does not matter who refers to it: what it holds is held.
        late: Whether any other root's name for what it holds is better.
    """

    label: str
    thing: Any
    place: Place
    style: Style = "object"
    names: Callable[[str], bool] | None = None
    stops: bool = True
    late: bool = False


@dataclass(slots=True)
class Named:
    """How an object is reached first: from whom, under which label, and which row of the table it counts for."""

    parent: int | None
    label: Label
    row: str
    place: Place
    graph: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Roles:
    """What some of the objects are, by id: tensors in the memory asked for, gradients, nodes of a graph, optimizers."""

    targets: Collection[int]
    gradients: Collection[int] = ()
    nodes: Collection[int] = ()
    optimizers: Collection[int] = ()


class Names:
    """Names for everything on the ways, as far as they are found before the deadline, in `time.perf_counter`.

    Attributes:
        complete: Whether all were found.
    """

    def __init__(self, ways: Ways, roles: Roles, deadline: float) -> None:
        self._ways = ways
        self._deadline = deadline
        self.complete = True
        self._targets = roles.targets
        self._gradients = roles.gradients
        self._nodes = roles.nodes
        self._late = roles.optimizers
        self.stops: set[int] = set()
        """Things with a name of their own, whoever refers to them."""
        self._order = itertools.count()
        self._graph: list[tuple[int, int]] = []
        self._passed: set[int] = set()
        self._rows: dict[int, dict[str, None]] | None = None
        self.named: dict[int, Named] = {}
        self.masks: dict[int, int] = {}
        """For each id a bit for every place from which it is reached."""
        self._refs: dict[int, list[tuple[int | None, Label]]] = {}

    def descend(self, roots: Sequence[Root]) -> None:
        """Name what the roots reach: one place after the other, and what only an autograd graph keeps at the end."""
        self.stops = {id(root.thing) for root in roots if root.stops}
        for _, group in itertools.groupby(sorted(roots, key=lambda one: RANK[one.place]), lambda one: one.place):
            queue: _Queue = []
            for root in group:
                self._enter(root, queue)
            self._flood(queue)
        self._through_graphs()
        self._spread()

    def adopt(self, chosen: Iterable[tuple[int, str]], row: str, place: Place) -> None:
        """Name, under one row, things that no root reaches: (id, label), those that refer to the others first."""
        bit = 1 << PLACES.index(place)
        for key, text in chosen:
            self.masks[key] = self.masks.get(key, 0) | bit
            if key not in self.named and key not in self._passed:
                queue: _Queue = []
                self._name(key, Named(None, Label(text), row, place, graph=False, depth=0), queue)
                self._flood(queue)
        self._through_graphs()
        self._spread()

    def places(self, keys: Iterable[int]) -> tuple[Place, ...]:
        """Every place from which one of these is reached."""
        mask = 0
        for key in keys:
            mask |= self.masks.get(key, 0)
        return tuple(place for i, place in enumerate(PLACES) if mask >> i & 1)

    def _enter(self, root: Root, queue: _Queue) -> None:
        key = id(root.thing)
        if key not in self._ways.things:
            return
        bit = 1 << PLACES.index(root.place)
        if root.style != "names":
            row = "" if root.style == "items" else root.label
            self.masks[key] = self.masks.get(key, 0) | bit
            label, depth = Label(root.label, root.style), 0 if root.stops and not root.late else _AFTER
            self._name(key, Named(None, label, row, root.place, graph=False, depth=depth), queue)
            return
        wanted = set(self._ways.kids.get(key, ()))
        for child, label in labels(root.thing, "names", ()):
            if child in wanted and (root.names is None or root.names(label.text)):
                self.masks[child] = self.masks.get(child, 0) | bit
                full = Label(f"{root.label}{label.text}", label.style)
                depth = 2 if root.place == "output" else 1  # Out[3] before _3
                self._name(child, Named(None, full, full.text, root.place, graph=False, depth=depth), queue)

    def _flood(self, queue: _Queue) -> None:
        for count in itertools.count():
            if not queue or (count % _OFTEN == 0 and self._over()):
                return
            _, _, key = heapq.heappop(queue)
            inside = self._ways.kids.get(key)
            if not inside:
                continue
            if key in self._nodes:
                known = self.named[key]
                for child in dict.fromkeys(inside):
                    self._name(child, _below(known, key, Label(""), known.row, graph=True), queue)
            else:
                self._open(key, dict.fromkeys(inside), queue)

    def _over(self) -> bool:
        if time.perf_counter() > self._deadline:
            self.complete = False
        return not self.complete

    def _open(self, key: int, inside: dict[int, None], queue: _Queue) -> None:
        """Name what one object refers to."""
        thing, known, things = self._ways.things[key], self.named[key], self._ways.things
        passed = [child for child in inside if passed_by(thing, things[child])]
        if passed:
            self._passed.update(passed)
            inside = {child: None for child in inside if child not in passed}
        rest = unnamed(thing)
        own_row = type(thing) is types.FrameType and known.place in {"traceback", "thread"}
        told: set[int] = set()
        for child, label in labels(thing, known.label.style, self._targets, inside):
            if child in inside or (label.far and child in things):
                told.add(child)
                row = f"{self.text(key)}{label.text}" if own_row else known.row or f"{known.label.text}{label.text}"
                self._name(child, _below(known, key, label, row, late=label.late or key in self._late), queue)
        for child in inside:
            if child in told:
                continue
            if child in self._nodes and key in self._targets:
                self._graph.append((key, child))  # a graph's names come after all others
                continue
            label = Label(self._kept(child, thing) if key in self._targets else rest)
            self._name(child, _below(known, key, label, known.row or f"{known.label.text}{label.text}"), queue)

    def _kept(self, child: int, thing: Any) -> str:
        """What a tensor keeps as a tensor: its gradient; or what it is a view of, which has the same name."""
        if not any(one is thing for one in self._ways.extra.get(child, ())):
            return unnamed(thing)
        return ".grad" if child in self._gradients else ""

    def _through_graphs(self) -> None:
        while self._graph:
            pairs, self._graph = self._graph, []
            queue: _Queue = []
            for tensor, node in pairs:
                known = self.named[tensor]
                self._name(node, _below(known, tensor, Label(""), known.row, graph=True), queue)
            self._flood(queue)

    def _name(self, key: int, new: Named, queue: _Queue) -> None:
        if key in self.stops and new.parent is not None:
            return  # a root has its own name, whoever else refers to it
        refs = self._refs.setdefault(key, [])
        if len(refs) <= ALSO and (new.parent, new.label) not in refs:
            refs.append((new.parent, new.label))
        known = self.named.get(key)
        if known is None or (new.depth < known.depth and new.place == known.place and new.graph == known.graph):
            self.named[key] = new
            heapq.heappush(queue, (new.depth, next(self._order), key))

    def _spread(self) -> None:
        """Every place from which each object is reached, whatever it is called."""
        masks, kids = self.masks, self._ways.kids
        work = list(masks)
        while work:
            key = work.pop()
            mask = masks[key]
            for child in kids.get(key, ()):
                old = masks.get(child, 0)
                if old | mask != old and child not in self.stops:
                    masks[child] = old | mask
                    work.append(child)

    def keepers(self, keys: Iterable[int]) -> tuple[str, ...]:
        """The rows whose tensors have a graph that keeps one of these; not all of them where there are many."""
        if self._rows is None:
            self._rows = self._spread_rows()
        found: dict[str, None] = {}
        for key in keys:
            found.update(self._rows.get(key, {}))
        return tuple(found)

    def _spread_rows(self) -> dict[int, dict[str, None]]:
        kids, named, nodes = self._ways.kids, self.named, self._nodes
        rows: dict[int, dict[str, None]] = {}
        work: list[tuple[int, str]] = []
        for key in {*nodes, *self._targets}:
            if key in named and not named[key].graph:
                work += [(child, named[key].row) for child in kids.get(key, ()) if key in nodes or child in nodes]
        while work:
            key, row = work.pop()
            known = named.get(key)
            if known is None or not known.graph:
                continue
            told = rows.setdefault(key, {})
            if row not in told and len(told) < _ROWS:
                told[row] = None
                work += [(child, row) for child in kids.get(key, ())]
        return rows

    # in words

    def text(self, key: int) -> str:
        """An object's first name; of what a graph keeps, the name of the tensor whose graph it is."""
        parts: list[str] = []
        at: int | None = key
        while at is not None:
            one = self.named[at]
            if type(self._ways.things[at]) is types.FrameType:
                parts.append(f"{one.row}: {_function(self._ways.things[at])}()")
                break
            if not one.graph:
                parts.append(self._written(one.label))
                if len(parts) > _LONGEST:
                    parts = [*parts[:4], _CUT, one.row]
                    break
            at = one.parent
        return "".join(part for part in reversed(parts) if part)

    def also(self, keys: Sequence[int]) -> tuple[str, ...]:
        """Further names of the same storage: ``keys`` are its tensors, the first one's first name is not among them."""
        found: dict[str, None] = {}
        cut: set[str] = set()
        graph = self.named[keys[0]].graph
        left = [_TRIES]
        for key in keys:
            if key in self.named and self.named[key].graph is graph and len(found) <= ALSO:
                start = f"{self.named[key].row}{_CUT}"
                for text in self._texts(key, (), left):
                    if not text.startswith(start):
                        found[text] = None
                    elif start not in cut:  # the same one, cut elsewhere, tells nothing more
                        cut.add(start)
                        found[text] = None
        return tuple(found)[1 : ALSO + 1]

    def _texts(self, key: int, below: tuple[int, ...], left: list[int]) -> list[str]:
        """Some names, the first one first.

        ``below``: the objects on the way, through which no name passes again; ``left``: how many may still be tried.
        """
        left[0] -= 1
        first = self.text(key)
        framed = type(self._ways.things[key]) is types.FrameType
        if framed or len(below) >= _LONGEST or self.named[key].graph:
            return [first]
        found = {first: None}
        for parent, label in self._refs.get(key, ()):
            if len(found) > ALSO or left[0] < 0:
                break
            if parent is None:
                found[label.text] = None
            elif parent in self.named and parent not in below and not self.named[parent].graph:
                texts = self._texts(parent, (*below, key), left)
                found.update({text + self._written(label): None for text in texts})
        return list(found)

    def _written(self, label: Label) -> str:
        if label.key is None:
            return label.text
        known = self.named.get(label.key)
        if known is None or known.label.key is not None:
            return "[...]"
        return f"[{self.text(label.key)}]"


def _below(
    known: Named, parent: int, label: Label, row: str, *, graph: bool | None = None, late: bool = False
) -> Named:
    # a module's own dicts, and what they hold, are no step further down
    inner = label.style in {"module", "members"} or known.label.style == "members"
    step = _LATE if late else 0 if inner else 1
    return Named(parent, label, row, known.place, known.graph if graph is None else graph, known.depth + step)


def _function(frame: Any) -> str:
    code = frame.f_code
    return str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]
