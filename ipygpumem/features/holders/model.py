"""Data classes for tensor storages, their holders, and the total allocated memory on each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields, make_dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.introspection import user_frame
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import MIB, VISIBLE, many, size
from ipygpumem.sources.allocator import AllocatedBlock, AllocatedBlocks, stack_of_block
from ipygpumem.sources.storages import StorageLocation

Kind = Literal["parameter", "gradient", "buffer", "optimizer state", "activation", "plain"]
Place = Literal["variable", "module", "output", "thread", "traceback", "elsewhere", "garbage"]
KINDS: tuple[Kind, ...] = ("parameter", "buffer", "gradient", "optimizer state", "activation", "plain")
PLACES: tuple[Place, ...] = ("variable", "module", "output", "thread", "traceback", "elsewhere", "garbage")
"""Places where names are defined, in order of preference: notebook variables, attributes of imported modules, outputs,
local variables of running threads, and local variables in the frames of the last exception. The place of an object
without a name is ``garbage`` if only unreachable reference cycles keep it alive, and ``elsewhere`` otherwise."""
_MAX_NAMES = 3
_MAX_LINES = 3
_MAX_STACKS = 100  # maximum number of blocks without a Python object whose stacks are read
_NO_IDS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Storage:
    """A tensor storage and the names by which it can be accessed.

    Attributes:
        device, amount: Name of the device, and size in bytes, as rounded by the allocator.
        kind: Use of the storage by a module or an optimizer. Other storages are ``activation`` if they belong to an
            autograd graph, and ``plain`` otherwise.
        name: Preferred name, such as ``model.layers[3].weight``.
        also: Other names; not all of them if there are many.
        places: Places of all names of the storage, which is freed when the last of these names is deleted.
        graph: Whether only the autograd graph of the tensor ``name`` keeps the storage alive.
        tensor: Data type and shape of the largest tensor in the storage, such as ``float32 [4096, 4096]``.
        made: The line of code that allocated the storage, such as ``In [3]:5 make()``; empty if it is unknown.
        view: Size in bytes of the largest tensor that the program can access; None unless it is smaller than the
            storage. A base tensor that only its views keep alive is ignored.
        new: Whether the storage did not exist at the baseline.
        address: Address of the storage; None if it is unknown. It is not written to files.
    """

    device: str
    amount: int
    kind: Kind
    name: str
    also: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    graph: bool = False
    tensor: str = ""
    made: str = ""
    view: int | None = None
    new: bool = True
    address: int | None = field(default=None, repr=False, compare=False, metadata={"key": None})


_UnfrozenStorage: Any = make_dataclass(
    "_UnfrozenStorage", [(field.name, field.type, field) for field in fields(Storage)], slots=True
)


def new_storage(*values: Any) -> Storage:
    """Create a `Storage` from the values of its attributes, five times as fast as the constructor."""
    storage: Any = _UnfrozenStorage(*values)
    storage.__class__ = Storage  # possible because both classes have the same slots
    created: Storage = storage
    return created


@dataclass(frozen=True, slots=True)
class Holder:
    """A variable, an output or another top-level name, and the storages on one device that it keeps alive.

    Attributes:
        name: Name of the holder, such as ``model`` or ``Out[3]``.
        place: Place where the name is defined.
        device, amount: Name of the device, and total size of the storages in bytes, as rounded by the allocator.
        count: Number of storages, which is displayed as the number of tensors.
        kinds: Pairs (kind, total size of the storages in bytes), in descending order of size.
        parts: The storages, largest first.
        note: Reason why the memory is in use; empty if there is no obvious reason.
    """

    name: str
    place: Place
    device: str
    amount: int
    count: int
    kinds: tuple[tuple[Kind, int], ...]
    parts: tuple[Storage, ...]
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name} {size(self.amount)} ({many(self.count, 'tensor')})"


@dataclass(frozen=True, slots=True)
class UnreachedMemory:
    """Allocated memory for which no Python object was found.

    Attributes:
        label: Description of the memory.
        amount: Size in bytes.
        lines: Pairs (line of code, bytes) of the lines that allocated the most memory, at most three; empty if unknown.
    """

    label: str
    amount: int
    lines: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTotal:
    """Total allocated memory on one device, in bytes.

    Attributes:
        device, held: Name of the device, and total size of all storages that were found, even if they are not new.
        rest: Memory for which no Python object was found.
        allocated: Value of ``torch.cuda.memory_allocated()``, which is the sum of ``held`` and ``rest``; None for host
            memory, or if the value cannot be read.
    """

    device: str
    held: int
    rest: tuple[UnreachedMemory, ...] = ()
    allocated: int | None = None

    @property
    def unreached(self) -> int:
        """Total size in bytes of the memory for which no Python object was found."""
        return sum(part.amount for part in self.rest)


@dataclass(frozen=True, slots=True)
class StorageBaseline:
    """The storages that exist at one point in time.

    Device addresses are reused, so storages are identified by their ``c10::StorageImpl`` objects where possible.

    Attributes:
        storages: Addresses of the StorageImpl objects that use each block, by device and address of the block; an empty
            set if they are unknown. A storage that PyTorch's allocator does not list counts as a block.
        references: Weak references to the StorageImpl objects, which prevent the reuse of their addresses.
    """

    storages: Mapping[tuple[str, int], Collection[int]] = field(default_factory=dict)
    references: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, references: Mapping[StorageLocation, Any], blocks: AllocatedBlocks | None) -> StorageBaseline:
        """Create a baseline from weak references to storages, by location, and from the allocated blocks if known."""
        storages: dict[tuple[str, int], frozenset[int]] = {}
        if blocks is not None:
            storages = dict.fromkeys(blocks.positions, _NO_IDS)
        for location in references:
            block = None if blocks is None else blocks.block(location.device, location.address)
            position = (location if block is None else block)[:2]
            known_ids = storages.get(position, _NO_IDS)
            storages[position] = known_ids.union((location.storage,)) if location.storage else known_ids
        return cls(storages, tuple(references.values()))

    def contains(self, device: str, address: int, storages: Collection[int]) -> bool:
        """Return whether a block existed at the baseline and, if known, was used by one of the ``storages``.

        ``storages`` contains the addresses of StorageImpl objects.
        """
        earlier = self.storages.get((device, address))
        return earlier is not None and (not earlier or not set(earlier).isdisjoint(storages))


@dataclass(frozen=True, slots=True, repr=False)
class Holders(Serializable):
    """The holders of memory on the devices that were searched.

    Attributes:
        holders: The holders, largest first.
        totals: The total allocated memory on each of these devices.
        notes: Limitations of the result, such as memory that is not counted.
        complete: Whether the search ended without reaching a limit.
        objects: Number of Python objects examined.
        seconds: Duration of the search in seconds.
        since: Description of the baseline if only new storages are listed; otherwise empty.
    """

    holders: tuple[Holder, ...]
    totals: tuple[DeviceTotal, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    objects: int = 0
    seconds: float = 0.0
    since: str = ""

    def largest(self, count: int = 5, device: str | None = None) -> tuple[Holder, ...]:
        """Return the ``count`` largest holders on a device, by default on all devices."""
        return tuple(holder for holder in self.holders if device in (None, holder.device))[:count]

    def amount(self, name: str, device: str | None = None) -> int:
        """Return the size in bytes of the memory of the holder with this name; 0 if no holder has this name."""
        return sum(holder.amount for holder in self.holders if holder.name == name and device in (None, holder.device))

    def total(self, device: str) -> DeviceTotal | None:
        """Return the total allocated memory on a device, or None if the device was not searched."""
        return next((total for total in self.totals if total.device == device), None)

    def freeable(self, device: str, *places: Place) -> int:
        """Return the total size in bytes of storages kept alive only by names in ``places`` or unreachable cycles."""
        removed = {"garbage", *places}
        parts = (part for holder in self.holders if holder.device == device for part in holder.parts)
        return sum(part.amount for part in parts if removed.issuperset(part.places))

    def to_text(self, count: int = 10) -> str:
        """Return the ``count`` largest holders as text, one per line, with their size, name and device."""
        lines = [f"{size(holder.amount):>11}  {holder.name}  ({holder.device})" for holder in self.largest(count)]
        return "\n".join(lines) or "no tensors"

    def __repr__(self) -> str:
        largest = ", ".join(str(holder) for holder in self.largest(3))
        return f"<Holders: {largest or 'none'}>"


class NamedStorage(NamedTuple):
    """A storage that was found by a search, and its holder.

    Attributes:
        location: Device, address and size of the storage.
        info: Names and kind of the storage. ``info.amount`` may be smaller than the allocator's block.
        holder, place: Name and place of the holder.
        graph_holders: Some holders of the autograd graphs if only these graphs keep the storage alive; otherwise empty.
    """

    location: StorageLocation
    info: Storage
    holder: str
    place: Place
    graph_holders: tuple[str, ...] = ()


new_named_storage: Any = partial(tuple.__new__, NamedStorage)  # three times as fast as the class


def allocation_lines(
    blocks: Iterable[AllocatedBlock], label: Callable[[str, int, str], str]
) -> tuple[tuple[str, int], ...]:
    """Return pairs (line of code, bytes) of the three lines with the most memory in the 100 largest blocks."""
    sizes: Counter[str] = Counter()
    for block in sorted(blocks, key=lambda block: -block.size)[:_MAX_STACKS]:
        frame = user_frame(stack_of_block(block))
        if frame is not None:
            sizes[label(*frame)] += block.size
    return tuple(sizes.most_common(_MAX_LINES))


def holder(name: str, place: Any, device: str, members: list[NamedStorage]) -> Holder:
    """Create a `Holder` from its storages, with a note if there is an obvious reason why the memory is in use."""
    by_name = sorted((member.info for member in members), key=attrgetter("name"))
    parts = tuple(sorted(by_name, key=attrgetter("amount"), reverse=True))
    sizes = dict.fromkeys(KINDS, 0)
    for part in parts:
        sizes[part.kind] += part.amount
    kinds = tuple(sorted(((kind, nbytes) for kind, nbytes in sizes.items() if nbytes), key=lambda item: -item[1]))
    return Holder(name, place, device, sum(sizes.values()), len(parts), kinds, parts, _note(name, members, parts))


def _note(name: str, members: list[NamedStorage], parts: tuple[Storage, ...]) -> str:
    total = sum(part.amount for part in parts)
    in_graphs = [member for member in members if member.info.graph]
    shared_members = [member for member in in_graphs if len(member.graph_holders) > 1]
    own_parts = [member.info for member in in_graphs if len(member.graph_holders) <= 1]
    shared_size, own_size = sum(member.info.amount for member in shared_members), sum(part.amount for part in own_parts)
    if shared_size > own_size and shared_size >= VISIBLE and 2 * (own_size + shared_size) >= total:
        names = [name, *sorted({holder for member in shared_members for holder in member.graph_holders} - {name})]
        owners = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= _MAX_NAMES else f"{name} and others"
        return f"the autograd graphs of {owners} keep the same {size(shared_size)} of activations alive"
    if own_size >= VISIBLE and 2 * own_size >= total:
        owner_names = {part.name for part in own_parts}
        tensors = [part for part in parts if part.name in owner_names and not part.graph]
        is_scalar = bool(tensors) and all(part.tensor.endswith("[]") for part in tensors)
        kept_size = size(own_size)
        graphs = f"the autograd graph of {name} keeps {kept_size} of activations alive"
        if len(owner_names) > 1:
            graphs = (
                f"the autograd graphs of {len(owner_names):,} tensors in {name} keep {kept_size} of activations alive"
            )
        replacement = ".item()" if is_scalar else ".detach()"
        return f"{graphs}; to avoid this, store the result of {replacement} instead"
    largest = parts[0]
    if largest.view is not None and 2 * largest.view <= largest.amount >= MIB:
        viewed = size(largest.view) if largest.view >= VISIBLE else many(largest.view, "byte")
        usage = f"{largest.name}, a view of {viewed}, keeps {size(largest.amount)} alive"
        return f"{usage}; to avoid this, replace the view with its .clone()"
    return ""
