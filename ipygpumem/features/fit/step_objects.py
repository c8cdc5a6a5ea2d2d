"""Search for the objects whose state a step can change, starting at the code of the step.

The search follows attributes, items, and the global variables to which the code of user-defined functions refers.
Objects of libraries are skipped unless they can contain training state: restoring the attributes of a logger with a
background thread, for example, could break the logger.
"""

from __future__ import annotations

import array
import collections
import functools
import gc
import io
import itertools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import (
    attempt,
    instance_dict,
    is_exactly,
    is_instance,
    is_library_file,
    mro,
    type_dict,
)
from ipygpumem.features.fit.containers import attributes, items_of, named_values
from ipygpumem.features.fit.references import (
    DATA,
    base_of_view,
    cell_contents,
    global_containers,
    is_followed,
    is_generator,
    is_iterator,
    is_reference,
    is_user_class,
    is_user_module,
    module_name,
    queued_items,
    referents,
    sparse_components,
    tensor_hooks,
)

_CONTAINERS = (dict, list, set, collections.deque, bytearray, array.array)
_ATOMIC = (int, float, complex, str, bytes, bool, type(None), range, slice, types.CodeType)
_FILE = io.IOBase.__bases__[0]
"""Base class of all file objects, which are also iterators."""
_DYNAMIC = {"eval", "exec", "globals", "run_cell", "run_line_magic"}
"""Functions that can set any global variable."""
_BY_STRING = {"__dict__", "attrgetter", "eval", "exec", "getattr", "globals", "setattr", "vars"}
"""Functions and attributes through which code can access a variable whose name is given as a string."""
_STATELESS = (zip, map, filter, itertools.starmap)
_TEE_DATA = type(gc.get_referents(itertools.tee(())[0])[0])
_MAX_OBJECTS = 3_000_000


class StepObjects:
    """The mutable objects that are reachable from the code of a step.

    Args:
        torch: The module torch.
        roots: Objects at which the search starts, such as the function, by name.

    Attributes:
        tensors: Tensors, including parameters, buffers and the state of optimizers.
        containers: Names and objects of dicts, lists, sets, deques, arrays of the module ``array``, and bytearrays.
        instances: Objects with attributes, including user-defined classes.
        namespaces: Dicts of the global variables that user-defined functions use.
        names: By ID of each namespace, the names in the code that uses it, or None if this code can set any variable.
        cells: Closure cells of functions.
        arrays: NumPy arrays.
        generators: Random number generators of PyTorch, NumPy and Python.
        iterators: Names and objects of iterators, queues and locks.
        owners: By ID of each iterator that was found only inside another iterator, the other iterator.
        optimizers: Instances of ``torch.optim.Optimizer``.
        caches: Functions that are decorated with ``functools.lru_cache``.
        files: File objects, including in-memory files.

    Raises:
        OptionError: More than 3 million objects are reachable.
    """

    def __init__(self, torch: Any, roots: Mapping[str, Any]) -> None:
        self._torch = torch
        self._numpy: Any = sys.modules.get("numpy")
        self.tensors: list[Any] = []
        self.containers: list[tuple[str, Any]] = []
        self.instances: list[Any] = []
        self.namespaces: list[dict[str, Any]] = []
        self.names: dict[int, set[str] | None] = {}
        self.cells: list[types.CellType] = []
        self.arrays: list[Any] = []
        self.generators: list[Any] = []
        self.iterators: list[tuple[str, Any]] = []
        self.owners: dict[int, Any] = {}
        self.optimizers: list[Any] = []
        self.caches: list[Any] = []
        self.files: list[Any] = []
        self._seen: dict[int, Any] = {}
        self._owner: Any = None
        self._inside_iterators: list[tuple[str, Any, Any]] = []
        self._pending = [*roots.items(), *(("", container) for container in global_containers())]
        while self._pending or self._inside_iterators:
            if not self._pending:
                self._visit_inside_iterator(*self._inside_iterators.pop())
                continue
            name, value = self._pending.pop()
            if not issubclass(type(value), _ATOMIC) and id(value) not in self._seen:
                self._seen[id(value)] = value  # keeps the object alive, so that its ID stays unique
                self._visit(name, value)
                if len(self._seen) > _MAX_OBJECTS:
                    raise OptionError(
                        f"the step refers to more than {_MAX_OBJECTS:,} objects, whose state cannot be saved: "
                        "pass large collections of Python objects as an iterator or a file"
                    )
        self._seen.clear()

    def _visit(self, name: str, value: Any) -> None:
        kind = type(value)
        if is_instance(value, self._torch.Tensor):
            self.tensors.append(value)
            self._push(name, base_of_view(value))
            self._push(name, sparse_components(value))
            self._push(name, tensor_hooks(value))
            self._visit_attributes(value)
        elif is_generator(self._torch, value):
            self.generators.append(value)
        elif self._numpy is not None and issubclass(kind, self._numpy.ndarray):
            self.arrays.append(value)
            self._push(name, value.flat if value.dtype.hasobject else ())
        elif is_reference(value):
            self._push(name, referents(value))
            self.caches += [value] if issubclass(kind, functools._lru_cache_wrapper) else []
        elif is_iterator(kind):
            self._visit_iterator(name, value)
        elif issubclass(kind, _CONTAINERS):
            self.containers.append((name, value))
            self._visit_items(name, value)
            if not is_exactly(value, (*_CONTAINERS, collections.OrderedDict, collections.defaultdict)):
                self._visit_instance(value)
        elif module_name(kind).startswith(DATA):
            self._pending += (instance_dict(value) or {}).items()
        elif not self._visit_code_object(name, value) and is_followed(self._torch, kind):
            self._visit_instance(value)

    def _visit_code_object(self, name: str, value: Any) -> bool:
        """Visit the parts of a function, class, tuple or similar object. Return whether it is one, or a module."""
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            self._visit_function(value)
        elif issubclass(kind, type):
            self._visit_class(value)
        elif issubclass(kind, tuple | frozenset):
            self._push(name, value)
        elif issubclass(kind, types.MethodType):
            self._push(name, (value.__self__, value.__func__))
        elif issubclass(kind, functools.partial):
            self._push(name, (value.func, value.args, value.keywords))
        elif issubclass(kind, staticmethod | classmethod):
            self._push(name, (value.__func__,))
        elif issubclass(kind, types.BuiltinFunctionType):
            self._push(name, (value.__self__,))
        elif issubclass(kind, functools.cached_property):
            self._push(name, (value.func,))
        elif issubclass(kind, property):
            self._push(name, (value.fget, value.fset))
        else:
            return issubclass(kind, types.ModuleType)
        return True

    def _visit_iterator(self, name: str, value: Any) -> None:
        if is_instance(value, _FILE):
            self.files.append(value)
            return
        self.iterators.append((name, value))
        if self._owner is not None:
            self.owners[id(value)] = self._owner
        self._push(name, queued_items(value))
        frame = attempt(lambda: value.gi_frame)
        if type(frame) is types.FrameType:
            iterators = [item for item in gc.get_referents(value) if is_iterator(type(item))]
            self._inside_iterators += [(name, item, value) for item in (*frame.f_locals.values(), *iterators)]
            self._visit_user_code(frame.f_code, frame.f_globals)
        elif type(value) in _STATELESS:  # its state is that of other iterators
            self._push(name, gc.get_referents(value))
        elif module_name(type(value)) in {"builtins", "itertools"}:
            parts = gc.get_referents(value, *(part for part in gc.get_referents(value) if type(part) is _TEE_DATA))
            self._inside_iterators += [(name, item, value) for item in parts]

    def _visit_inside_iterator(self, name: str, value: Any, owner: Any) -> None:
        """Visit an object in the iterator ``owner``. Lists, sets and deques that only it contains are not restored."""
        self._owner = owner
        if is_exactly(value, (list, set, collections.deque)) and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._visit_items(name, value)
        else:
            self._pending.append((name, value))

    def _push(self, name: str, values: Iterable[Any]) -> None:
        self._pending += [(name, value) for value in values]

    def _visit_items(self, name: str, value: Any) -> None:
        if isinstance(value, dict):
            items = dict.items(value)
            self._pending += [(key if type(key) is str else name, item) for key, item in items]
            self._push(name, [key for key in dict.keys(value) if not issubclass(type(key), _ATOMIC)])
        elif not isinstance(value, bytearray | array.array):
            self._push(name, [item for item in items_of(value) if not issubclass(type(item), _ATOMIC)])

    def _visit_attributes(self, value: Any) -> None:
        items = attributes(value).items()
        if items or instance_dict(value) is not None:
            self.instances.append(value)
            self._pending += items

    def _visit_instance(self, value: Any) -> None:
        self._visit_attributes(value)
        if is_instance(value, self._torch.optim.Optimizer):
            self.optimizers.append(value)
        self._pending.append(("", type(value)))

    def _visit_class(self, kind: type) -> None:
        bases = [base for base in (*mro(kind), *mro(type(kind))) if is_user_class(base)]
        self.instances += bases
        for base in bases:
            self._pending += [(name, item) for name, item in type_dict(base).items() if not name.startswith("__")]
            self._push("", [type_dict(base).get("__call__"), type_dict(base).get("__init__")])

    def _visit_function(self, function: types.FunctionType) -> None:
        self._push("", [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            self.cells.append(cell)
            self._push(name, cell_contents(cell))
        self._push("", [vars(function)])  # such as the wrapped function
        contents = [value for cell in function.__closure__ or () for value in cell_contents(cell)]
        self._visit_user_code(function.__code__, function.__globals__, contents)

    def _visit_user_code(self, code: types.CodeType, variables: dict[str, Any], enclosing: Iterable[Any] = ()) -> None:
        if not is_library_file(code.co_filename):
            self.visit_code(code, variables, enclosing)

    def visit_code(self, code: types.CodeType, variables: dict[str, Any], enclosing: Iterable[Any] = ()) -> None:
        """Add the global variables to which a code object refers, including those in imported modules of the user.

        ``enclosing`` contains the values of the variables of enclosing functions, some of which can be modules.
        """
        codes = list(_nested(code))
        names = {name for inner in codes for name in inner.co_names}
        if not names.isdisjoint(_BY_STRING):
            strings = [value for inner in codes for value in inner.co_consts if isinstance(value, str)]
            names.update(name for text in strings for name in re.findall(r"[^\W\d]\w*", text))
        package = variables.get("__package__")
        paths = {path for name in names for path in itertools.accumulate(name.split("."), "{}.{}".format)}
        imported = [sys.modules.get(prefix + path) for path in paths for prefix in ("", f"{package}.")]
        pending = [variables, *(vars(module) for module in (*imported, *enclosing) if is_user_module(module))]
        visited: list[dict[str, Any]] = []
        while pending:
            namespace = pending.pop()
            if any(namespace is visited_namespace for visited_namespace in visited):
                continue
            visited.append(namespace)
            for name in names & dict(named_values(namespace)).keys():
                if is_user_module(namespace[name]):
                    pending.append(vars(namespace[name]))
                else:
                    self._pending.append((name, namespace[name]))
        for namespace in visited:
            self.add_namespace(namespace, names)

    def add_namespace(self, variables: dict[str, Any], names: Iterable[str]) -> None:
        """Add a dict of global variables and the names in the code that uses these variables."""
        if id(variables) not in self.names:
            self.namespaces.append(variables)
            self.names[id(variables)] = set()
        used_names = self.names[id(variables)]
        if used_names is not None:
            used_names.update(names)
            if not used_names.isdisjoint(_DYNAMIC):
                self.names[id(variables)] = None

    def uses(self, name: str) -> bool:
        """Return whether the code of the step uses a name, or can use any name."""
        return any(names is None or name in names for names in self.names.values())


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)
