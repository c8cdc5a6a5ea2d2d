"""Save and restore the state that a step can change, such as tensors, variables and random number generators.

The state is restored in place. Objects keep their identity, and tensors their version counters, so that an autograd
graph that was built before the step remains valid. The contents of tensors are saved in host memory.
"""

from __future__ import annotations

import collections
import gc
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import is_exactly
from ipygpumem.core.units import many, size
from ipygpumem.features.fit.containers import (
    added_items,
    attributes,
    file_state,
    items_of,
    named_values,
    replaced_items,
    restore_array,
    restore_attributes,
    restore_cell,
    restore_file,
    restore_items,
    restore_names,
    writable_arrays,
)
from ipygpumem.features.fit.global_state import process_settings, save_random_state, torch_settings
from ipygpumem.features.fit.references import cached_values, cell_contents
from ipygpumem.features.fit.replaced_objects import unused_tensors
from ipygpumem.features.fit.side_effects import SavedIterators
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.features.fit.tensor_backup import TensorBackup, restore_each
from ipygpumem.sources.host import read_host

_HOST_SHARE = 0.5
"""Largest share of the available host memory that the saved contents may use."""


class SavedState:
    """A copy of the state of all objects that a step can change. `restore` may be called only once.

    Args:
        torch: The module torch.
        roots: Objects at which the search for the state starts, by name.
        namespaces: Dicts of global variables, each with the names of the variables to save.
        contents: Whether to save the contents of tensors. If false, the step must not change them.

    Raises:
        OptionError: Host memory is insufficient, there are too many objects, the model has lazy parameters, or
            ``contents`` is false and an iterator would keep fake tensors.
    """

    def __init__(
        self,
        torch: Any,
        roots: Mapping[str, Any],
        namespaces: Iterable[tuple[dict[str, Any], Iterable[str]]] = (),
        *,
        contents: bool = True,
    ) -> None:
        self._torch = torch
        self._saves_contents = contents
        self.objects = objects = StepObjects(torch, roots)
        for variables, names in namespaces:
            objects.add_namespace(variables, names)
        if any(map(torch.nn.parameter.is_lazy, objects.tensors)):
            raise OptionError("the model has lazy parameters, which the first step initializes: run one step first")
        arrays = list(writable_arrays(objects.arrays))
        with _without_modes(torch):
            self._tensors = TensorBackup(torch, objects.tensors, contents=contents)
            if contents:
                self._check_host_memory(self._tensors.nbytes + sum(array.nbytes for array in arrays))
                self._tensors.save_contents()
            self._global = [*torch_settings(torch), *save_random_state(torch, objects.generators)]
        self._arrays = [(array, array.copy()) for array in arrays]
        self._items = [(name, container, items_of(container)) for name, container in objects.containers]
        self._attributes = [(instance, attributes(instance), type(instance)) for instance in objects.instances]
        self._variables = [
            (variables, dict(named_values(variables)), objects.names[id(variables)]) for variables in objects.namespaces
        ]
        self._cells = [(cell, cell_contents(cell)) for cell in objects.cells]
        self._iterators = SavedIterators(objects.iterators, objects.owners)
        if not contents:
            self._iterators.check_fake_items()
        self._files = [(file, state) for file in objects.files if (state := file_state(file)) is not None]
        self._caches = [(function, function.cache_info()) for function in objects.caches]
        self._process = process_settings(torch, objects.uses)

    def replaced_tensors(self) -> list[Any]:
        """Return the tensors that the step has replaced and to which only this saved state and unused objects refer."""
        replaced_objects = [value for value in self._replaced() if gc.is_tracked(value)]
        if not replaced_objects:
            return []
        instances = set(map(id, self.objects.instances))
        with _without_modes(self._torch):
            weak = self._saves_contents  # otherwise, no tensors are freed, and weak references stay valid
            return unused_tensors(self._torch, replaced_objects, self._holders(), instances, weak=weak)

    def new_gradients(self) -> list[Any]:
        return self._tensors.new_gradients()

    def free_replaced_tensors(self) -> bool:
        """Free the memory of `replaced_tensors` until `restore` is called. Return whether such tensors exist."""
        with _without_modes(self._torch), self._torch.no_grad():
            return self._tensors.free(self.replaced_tensors())

    def _replaced(self) -> list[Any]:
        """Return the saved items, and values of attributes and variables, that the step has replaced or removed."""
        values = []
        for _, container, items in self._items:
            values += replaced_items(container, items)
        current_and_saved = [(attributes(instance), saved_values) for instance, saved_values, _ in self._attributes]
        current_and_saved += [(variables, saved_values) for variables, saved_values, _ in self._variables]
        for current, saved_values in current_and_saved:
            values += [
                value for name, value in saved_values.items() if name not in current or current[name] is not value
            ]
        for cell, contents in self._cells:
            values += [value for value in contents if cell_contents(cell) != contents]
        return values

    def _holders(self) -> Iterator[Any]:
        """Yield the containers of this saved state that refer to objects of the step."""
        objects = self.objects
        yield from (objects.tensors, objects.instances, objects.namespaces, objects.cells, objects.arrays)
        yield from (objects.generators, objects.optimizers, objects.caches)
        records = (objects.containers, objects.iterators, self._items, self._attributes, self._variables, self._cells)
        yield from itertools.chain(*records, self._arrays, self._iterators.holders())
        for _, container, items in self._items:
            yield items
            yield from items if issubclass(type(container), dict) else ()
        for _, saved_values, _ in (*self._attributes, *self._variables):
            yield saved_values
        yield from (contents for _, contents in self._cells)
        yield from self._tensors.holders()

    def restore(self, advanced: Collection[int] = ()) -> list[str]:
        """Restore the state. Return sentences about containers that grew and about changes that were not undone.

        ``advanced`` contains the IDs of iterators that are known to have advanced.
        """
        notes = []
        for name, container, items in self._items:
            added_count = added_items(container, items)
            if added_count > 0 and name and is_exactly(container, (list, collections.deque)):
                verb = "was" if added_count == 1 else "were"
                notes.append(f"{name} grew by {many(added_count, 'item')}, which {verb} removed.")
        torch = self._torch
        torch.clear_autocast_cache()  # contains copies of parameters
        notes += restore_each(lambda restore: restore(), [(restore,) for restore in (*self._process, *self._global)])
        notes += restore_each(restore_names, self._variables)
        notes += restore_each(restore_cell, self._cells)
        notes += restore_each(restore_attributes, self._attributes)
        notes += restore_each(restore_items, [(container, items) for _, container, items in self._items])
        notes = self._iterators.restore(advanced) + notes  # after lists, whose iterators know the number of items
        notes += restore_each(restore_array, self._arrays)
        notes += restore_each(restore_file, self._files)
        notes += self._restore_caches()
        if not self._saves_contents and (resized := self._tensors.resized()):
            notes.append(f"The step resized {many(resized, 'storage')}, which is not undone.")
        with _without_modes(torch), torch.no_grad():
            return notes + self._tensors.restore()

    def _restore_caches(self) -> list[str]:
        """Clear caches that were empty before the step or contain fake tensors.

        Return a sentence for each of the remaining caches to which the step added results.
        """
        notes = []
        for function, before in self._caches:
            added = function.cache_info().misses - before.misses
            fake = not self._saves_contents and any(map(_contains_fake_tensor, cached_values(function)))
            if fake or (added > 0 and not before.currsize):
                function.cache_clear()
            elif added > 0:
                name = getattr(function, "__name__", "a function")
                notes.append(f"The step added {many(added, 'result')} to the cache of {name}, which is not undone.")
        return notes

    def _check_host_memory(self, needed_bytes: int) -> None:
        available = read_host(available=True).available
        if available is not None and needed_bytes > _HOST_SHARE * available:
            raise OptionError(
                f"the tensors and arrays of the step ({size(needed_bytes)}) cannot be saved in host memory, of which "
                f"{size(available)} is available: at least {size(2 * needed_bytes)} is required"
            )


def _contains_fake_tensor(value: Any) -> bool:
    items = value if is_exactly(value, (tuple, list)) else [value]
    return any(type(item).__name__ == "FakeTensor" for item in items)


def _without_modes(torch: Any) -> Any:
    """Return a context manager that disables the program's dispatch modes."""
    disable = getattr(sys.modules.get("torch.utils._python_dispatch"), "_disable_current_modes", None)
    return torch.no_grad() if disable is None else disable()
