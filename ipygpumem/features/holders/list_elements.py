"""Names of tensors to which only one list or tuple refers, composed of the name of the list and an index."""

from __future__ import annotations

import functools
import gc
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import compress
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import ReferenceLabel, fallback_label
from ipygpumem.features.holders.model import NamedStorage, new_named_storage, new_storage
from ipygpumem.features.holders.reference_graph import ObjectName
from ipygpumem.sources.storages import StorageInspector, StorageLocation

if TYPE_CHECKING:
    from ipygpumem.features.holders.name_assignment import ObjectNames
    from ipygpumem.features.holders.targets import SearchTargets


class ListElements:
    """The tensors to which only one list or tuple refers, and which have no gradient, base tensor or autograd node.

    They are named together, because a separate search for the names of each tensor would take several times as long.

    Attributes:
        containers: The list or tuple of each tensor, by the id of the tensor.
        groups: The tensors, with their storages and locations, by the id of the list and the id of the tensor.
    """

    def __init__(self, targets: SearchTargets, types: StorageInspector, is_wanted: Callable[[str], bool]) -> None:
        self._targets = targets
        self._types = types
        self._is_wanted = is_wanted
        self.containers: dict[int, Any] = {}
        self.groups: dict[int, dict[int, tuple[Any, Any, StorageLocation]]] = {}

    def take_tensors(self, container: Any, items: list[Any]) -> list[Any]:
        """Take the tensors among ``items`` that meet the conditions of the class, and return the other items.

        Such tensors on devices that are not searched are neither stored nor returned.
        """
        tensor_class = self._types.tensor_class
        counts = list(map(sys.getrefcount, items))  # first, because `compress` also refers to the items
        is_only_reference = map(_count_of_only_reference().__eq__, counts)
        tensors = [item for item in compress(items, is_only_reference) if type(item) is tensor_class]
        # a tensor with attributes refers to more than its class
        has_no_attributes = (len(part) == 1 and part[0] is tensor_class for part in map(gc.get_referents, tensors))
        tensors, storages, locations = self._types.unrelated_storages(list(compress(tensors, has_no_attributes)))
        ids = list(map(id, tensors))
        group = dict(zip(ids, zip(tensors, storages, locations, strict=True), strict=True))
        if not all(map(self._is_wanted, {location.device for location in locations})):
            group = {key: element for key, element in group.items() if self._is_wanted(element[2].device)}
        if group:
            self.containers |= dict.fromkeys(group, container)
            self.groups[id(container)] = group
        taken_ids = set(ids)
        return [item for item in items if id(item) not in taken_ids]

    def separate(self, object_id: int) -> None:
        container = self.containers.pop(object_id)
        tensor = self.groups[id(container)].pop(object_id)[0]
        self._targets.add_element(tensor, container)

    def separate_shared(self) -> None:
        positions = [(key, location[:2]) for group in self.groups.values() for key, (_, _, location) in group.items()]
        storage_locations = {location[:2] for location in self._targets.references}
        if len(storage_locations | {position for _, position in positions}) < len(storage_locations) + len(positions):
            counts = Counter(position for _, position in positions)
            for object_id, position in positions:
                if position in storage_locations or counts[position] > 1:
                    self.separate(object_id)
        for group in self.groups.values():
            for _, storage, location in group.values():
                reference = self._types.weak_reference(storage) if self._targets.keeps_addresses else None
                self._targets.references.setdefault(location, reference)

    def separate_in_graphs(self, names: ObjectNames) -> bool:
        """Separate all tensors if an autograd graph keeps one of the lists alive. Return whether any were separated."""
        is_in_graph = any(names.named[key].graph for key in self.groups if key in names.named)
        for object_id in [*self.containers] if is_in_graph else ():
            self.separate(object_id)
        return is_in_graph

    def size(self, container_ids: Collection[int]) -> int:
        groups = (self.groups.get(container_id, {}) for container_id in container_ids)
        return sum(location.size for group in groups for _, _, location in group.values())

    def named_storages(self, names: ObjectNames, objects: dict[int, Any]) -> Iterator[NamedStorage]:
        for container_id, group in self.groups.items():
            if container_id in names.named and group:
                yield from self._named_storages(container_id, group, names, objects)

    def _named_storages(
        self,
        container_id: int,
        elements: dict[int, tuple[Any, Any, StorageLocation]],
        names: ObjectNames,
        objects: dict[int, Any],
    ) -> Iterator[NamedStorage]:
        container = self.containers[next(iter(elements))]
        object_name, places = names.named[container_id], names.places([container_id])
        other_names: tuple[str, ...] = ()
        holder, (prefix, is_only_name) = object_name.holder, names.prefix(container_id)
        is_short = bool(holder) and is_only_name and prefix is not None
        labels = {id(item): f"[{i}]" for i, item in enumerate(list(container))}
        descriptions = self._types.descriptions([tensor for tensor, _, _ in elements.values()])
        for (key, (tensor, _, location)), (text, nbytes) in zip(elements.items(), descriptions, strict=True):
            label = labels.get(key) or fallback_label(container)  # another thread may have changed the list
            if is_short:
                name = f"{prefix}{label}"
            else:
                objects[key], holder = tensor, object_name.holder or f"{object_name.label.text}{label}"
                names.named[key] = ObjectName(container_id, ReferenceLabel(label), holder, object_name.place)
                name, other_names = names.storage_names([key])
            view = nbytes if nbytes is not None and nbytes < location.size else None
            rounded_size, address = location.rounded_size, location.address
            size_and_name = location.device, rounded_size, "plain", name, other_names, places
            info = new_storage(*size_and_name, False, text, "", view, True, address)
            yield new_named_storage((location, info, holder, object_name.place, ()))


@functools.cache
def _count_of_only_reference() -> int:
    """Return the reference count that `take_tensors` reads for an item to which only its container refers."""
    container = [object()]
    return next(map(sys.getrefcount, gc.get_referents(container)))
