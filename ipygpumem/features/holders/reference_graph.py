"""Graph of the references from roots, such as variables, outputs, exceptions and modules, to tensors."""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.introspection import (
    LATEST_OUTPUTS,
    frame_label,
    instance_dict,
    is_exactly,
    is_instance,
    is_ipython_name,
    is_library_file,
    output_number,
)
from ipygpumem.features.holders.labels import ReferenceLabel, Style, global_namespaces, reference_labels
from ipygpumem.features.holders.model import Place
from ipygpumem.features.holders.tracked_objects import SearchLimit, TrackedObjects
from ipygpumem.measurement.runtime import current

_MISSING = object()
_MAX_OBJECTS = 400_000
_MAX_CLASS_REFERRERS = 50
"""Maximum number of referrers added for each class, because a class may have millions of instances."""


class SearchRoot(NamedTuple):
    """An object at which the search for names starts.

    Attributes:
        label: Name of the object or, for a namespace, prefix of the names.
        value: Any object or, if ``style`` is ``names``, the dict of a namespace.
        place: Place of all objects whose names start at the root.
        style: Format of the dict's keys. If it is ``items``, each item is a separate holder.
        names: Function that selects names of a namespace; None for all names.
        terminal: Whether referrers of the root are ignored.
        last_resort: Whether names that start at other roots are preferred.
        distant: Whether the root is searched only if too much memory is not reachable from other roots.
    """

    label: str
    value: Any
    place: Place
    style: Style = "object"
    names: Callable[[str], bool] | None = None
    terminal: bool = True
    last_resort: bool = False
    distant: bool = False


class NamingFunctions:
    """Functions that return the roots of a search and format stack frames. The IPython extension replaces both.

    ``label`` is called with the file name, the line number and the function name of a frame.
    """

    def __init__(self) -> None:
        self.roots: Callable[[], list[SearchRoot]] = python_roots
        self.label: Callable[[str, int, str], str] = frame_label


def naming_functions() -> NamingFunctions:
    return current().state(NamingFunctions)


def python_roots() -> list[SearchRoot]:
    return [SearchRoot("", vars(sys.modules["__main__"]), "variable", "names"), *exception_roots()]


def exception_roots() -> list[SearchRoot]:
    values = (getattr(sys, name, None) for name in ("last_exc", "last_value", "last_traceback"))
    return [SearchRoot("last exception", value, "traceback", terminal=False) for value in values if value is not None]


def module_roots(roots: Sequence[SearchRoot]) -> list[SearchRoot]:
    seen_ids = {id(root.value) for root in roots}
    user_modules: list[SearchRoot] = []
    libraries: list[SearchRoot] = []
    # copied to a list first, because another thread may import a module
    for name, module in sorted(item for item in list(sys.modules.items()) if type(item[0]) is str):
        namespace = instance_dict(module) if is_instance(module, types.ModuleType) else None
        if namespace is None or id(namespace) in seen_ids or name.partition(".")[0] == "ipygpumem":
            continue
        seen_ids.add(id(namespace))
        file = namespace.get("__file__")
        is_library = type(file) is not str or is_library_file(file)
        names = (lambda name: not name.startswith("last_")) if name == "sys" else None  # the last exception
        root = SearchRoot(f"{name}.", namespace, "module", "names", names, distant=is_library)
        (libraries if is_library else user_modules).append(root)
    return [*user_modules, *libraries]


def notebook_roots(shell: Any) -> list[SearchRoot]:
    namespace = shell.user_ns
    result = getattr(shell, "last_execution_result", None)

    def is_own_output(name: str) -> bool:
        return is_ipython_name(name) and is_output(shell, name)

    roots = [
        SearchRoot("", namespace, "variable", "names", lambda name: not is_ipython_name(name)),
        SearchRoot("", namespace, "variable", "names", lambda name: not is_own_output(name)),  # a variable named _
        SearchRoot("Out", namespace.get("_oh"), "output", "items"),
        SearchRoot("", namespace, "output", "names", is_own_output),
        SearchRoot("", getattr(shell, "user_ns_hidden", None), "output", "names", is_ipython_name),
        SearchRoot("the last output", shell.displayhook, "output"),
        SearchRoot("IPython", shell, "elsewhere", distant=True),
        *exception_roots(),
        SearchRoot("last exception", getattr(shell, "InteractiveTB", None), "traceback"),
        SearchRoot("last exception", getattr(shell, "SyntaxTB", None), "traceback"),
    ]
    if result is not None:
        roots += [
            SearchRoot("the last output", result.result, "output", terminal=False),
            SearchRoot("last exception", getattr(result, "error_in_exec", None), "traceback", terminal=False),
            SearchRoot("last exception", getattr(result, "error_before_exec", None), "traceback", terminal=False),
            SearchRoot("last exception", result, "traceback", last_resort=True),
        ]
    return [root for root in roots if root.value is not None]


def is_output(shell: Any, name: str) -> bool:
    """Return whether a name in the user's namespace, such as ``_3``, still has the value assigned by IPython."""
    value, hidden_names = shell.user_ns.get(name), shell.user_ns_hidden
    number = output_number(name)
    if name in LATEST_OUTPUTS:
        return value is vars(shell.displayhook).get(name)
    if number is not None:
        history = shell.user_ns.get("_oh")
        return is_instance(history, dict) and value is dict.get(history, number, _MISSING)
    return hidden_names[name] is value if name in hidden_names else is_ipython_name(name)


class ReferrerGraph:
    """Graph of the objects from which a tensor or storage is reachable, and of the references between them.

    The referrers of objects in ``terminal_ids`` are ignored.

    Attributes:
        objects: The objects in the graph, by id.
        children: The ids of the objects to which each object refers, by the id of the referrer.
        extra: Referrers whose references are in C++ and unknown to the garbage collector, by the id of the referent.
            For example, tensors refer to their gradients, and autograd nodes to their saved tensors.
    """

    def __init__(
        self,
        heap: TrackedObjects,
        objects: dict[int, Any],
        extra: dict[int, list[Any]],
        terminal_ids: Collection[int],
        limit: SearchLimit,
    ) -> None:
        self.heap = heap
        self.objects = objects
        self.children: dict[int, list[int]] = {}
        self.extra = extra
        self.limit = limit
        self._terminal_ids = terminal_ids

    def add_referrers(self, start_ids: list[int] | None = None) -> None:
        """Add the direct and indirect referrers of some objects, by default of all objects in the graph."""
        objects, children = self.objects, self.children
        frontier = list(objects) if start_ids is None else start_ids
        while frontier and not self.limit.reached():
            if len(objects) > _MAX_OBJECTS:
                self.limit.complete = False
                return
            next_frontier = []
            for child_id, parents in zip(frontier, self.heap.parents(frontier), strict=True):
                child = objects[child_id]
                is_dict, is_class = type(child) is dict, issubclass(type(child), type)
                for parent in (*parents, *self.extra[child_id]) if child_id in self.extra else parents:
                    if type(parent) is SearchRoot:
                        continue
                    if is_dict and any(child is namespace for namespace in global_namespaces(parent)):
                        continue  # a function is not a holder of the global variables of its module
                    if is_class and not (is_instance(parent, dict) or is_exactly(parent, (list, types.CellType))):
                        continue  # classes are named by variables, not by instances or subclasses
                    parent_id = id(parent)
                    if parent_id not in objects:
                        objects[parent_id] = parent
                        if parent_id not in self._terminal_ids:
                            next_frontier.append(parent_id)
                    children.setdefault(parent_id, []).append(child_id)
            frontier = next_frontier

    def add_frame(self, frame: types.FrameType) -> bool:
        variables = dict.fromkeys(key for key, _ in reference_labels(frame, "object", ()) if key in self.objects)
        if variables:
            self.objects[id(frame)] = frame
            self.children[id(frame)] = list(dict.fromkeys([*self.children.get(id(frame), ()), *variables]))
        return bool(variables)

    def alive_ids(self, ids: Collection[int], own_references: Mapping[int, int]) -> set[int]:
        """Return the ids of the given objects that are not kept alive only by unreachable cycles.

        As in the garbage collector, an object is alive if its reference count exceeds the number of references from
        objects in ``ids`` and from the search, or if it is reachable from such an object. The search refers to each
        object once in the list of tracked objects, once in this graph, and ``own_references[id]`` times elsewhere.
        """
        inner_references = Counter(child_id for object_id in ids for child_id in self.children.get(object_id, ()))
        alive = set()
        base_count = _search_reference_count()
        for object_id in ids:
            obj = self.objects[object_id]
            count = sys.getrefcount(obj)
            # all C++ owners of an object share a single Python reference, which the collector does not know
            extra_inside = [id(referrer) in ids for referrer in self.extra.get(object_id, ())]
            uncounted = sum(extra_inside) - bool(extra_inside)
            inner = inner_references[object_id] - uncounted
            if not all(extra_inside) or count - base_count - own_references.get(object_id, 0) > inner:
                alive.add(object_id)
        pending = list(alive)
        while pending:
            new_ids = {child_id for child_id in self.children.get(pending.pop(), ()) if child_id in ids} - alive
            alive |= new_ids
            pending += new_ids
        return alive


def _search_reference_count() -> int:
    """Return the reference count that `alive_ids` reads for an object to which only the search refers."""
    heap_objects: list[Any] = [object()]
    graph_objects = {0: heap_objects[0]}
    obj = graph_objects[0]
    return sys.getrefcount(obj)


def add_class_referrers(ids: Collection[int], referrers: ReferrerGraph) -> bool:
    """Add referrers of classes (instances, subclasses and tuples), at most 50 of each. Return whether any were added.

    Objects in ``ids`` that are not classes are ignored.
    """
    class_ids = [object_id for object_id in ids if is_instance(referrers.objects[object_id], type)]
    new_ids, is_any_added = [], False
    for class_id, parents in zip(class_ids, referrers.heap.parents(class_ids), strict=True):
        cls = referrers.objects[class_id]
        class_referrers = [obj for obj in parents if obj is not cls and (type(obj) is cls or is_instance(obj, type))]
        class_referrers += [obj for obj in parents if type(obj) is tuple and not _belongs_to_class(obj, referrers.heap)]
        for obj in class_referrers[:_MAX_CLASS_REFERRERS]:
            if id(obj) not in referrers.objects:
                referrers.objects[id(obj)] = obj
                new_ids.append(id(obj))
            children = referrers.children.setdefault(id(obj), [])
            if class_id not in children:
                children.append(class_id)
                is_any_added = True
    referrers.add_referrers(new_ids)
    return is_any_added


def _belongs_to_class(bases: tuple[Any, ...], heap: TrackedObjects) -> bool:
    (parents,) = heap.parents([id(bases)])
    return any(is_instance(parent, type) for parent in parents)


@dataclass(slots=True)
class ObjectName:
    """Name of an object, represented by the last reference on a path from a root to the object.

    Attributes:
        parent_id: The id of the referrer; None for a root.
        holder: Name of the holder; empty if the next reference on the path determines it.
        graph: Whether the path passes through an autograd graph.
        depth: Length of the path; increased for references that are used only if there is no other name.
    """

    parent_id: int | None
    label: ReferenceLabel
    holder: str
    place: Place
    graph: bool = False
    depth: int = 0
