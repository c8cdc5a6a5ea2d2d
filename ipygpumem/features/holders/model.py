"""Facts about what holds memory: storages, holders, and for each device the sums that add up to `allocated`.

A storage is counted once, however many tensors are views of it, and belongs to the holder of its first name. Names are
ordered: variables of the notebook, the user's modules, other modules, outputs, running threads, the last exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.to_dict import PlainData
from ipygpumem.core.units import size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.sources.allocator import AllocatedBlocks
    from ipygpumem.sources.storages import StorageLocation

Kind = Literal["parameter", "gradient", "buffer", "optimizer state", "activation", "plain"]
Place = Literal["variable", "module", "output", "thread", "traceback", "elsewhere", "garbage"]

KINDS: tuple[Kind, ...] = ("parameter", "buffer", "gradient", "optimizer state", "activation", "plain")
PLACES: tuple[Place, ...] = ("variable", "module", "output", "thread", "traceback", "elsewhere", "garbage")
"""``variable``: of the notebook; ``module``: of an imported module; ``output``: ``Out``, ``_``; ``thread``: a local
variable of running code; ``traceback``: a local variable in the frames of the last exception; ``elsewhere``: alive, but
without a name; ``garbage``: a cycle of unreachable objects, which the garbage collector will free."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage, which occupies one block of PyTorch's allocator.

    Attributes:
        amount: Size in bytes, as rounded by the allocator.
        kind: What a module or an optimizer uses it for; otherwise ``activation`` (part of an autograd graph) or
            ``plain``.
        name: Its first name: ``model.layers[3].weight``.
        also: Further names, a handful at most.
        places: The places of all its names; it is freed once none of them refers to it.
        graph: Whether only an autograd graph keeps it; ``name`` is then the tensor with the graph.
        tensor: Data type and shape of the largest tensor that uses it: ``float32 [4096, 4096]``.
        made: Where it was allocated, if that was recorded: ``In [3]:5 make()``.
        view: Size in bytes of the largest tensor that still uses it, if that is smaller than the storage.
        new: Whether it did not exist yet at the baseline.
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


@dataclass(frozen=True, slots=True)
class Holder:
    """A variable, an output, or another top-level name, with all storages on one device that it keeps alive.

    Attributes:
        name: ``model``, ``Out[3]``, a local variable of the last exception.
        place: Where the name belongs.
        amount: Size in bytes, as rounded by the allocator.
        count: Number of storages.
        kinds: Bytes of each kind, the largest first.
        parts: The storages, the largest first.
        note: A remark on why this memory is still in use; may be empty.
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
        """Name, size and number of tensors: ``model 1.2 GiB (12 tensors)``."""
        return f"{self.name} {size(self.amount)} ({self.count:,} tensor{'' if self.count == 1 else 's'})"


@dataclass(frozen=True, slots=True)
class Remainder:
    """Allocated memory in bytes for which no Python object was found."""

    label: str
    amount: int


@dataclass(frozen=True, slots=True)
class Total:
    """The sums of one device in bytes: ``held`` by all holders plus ``rest`` is PyTorch's counter ``allocated``.

    ``allocated`` is None for main memory, or if PyTorch's counter cannot be read.
    """

    device: str
    held: int
    rest: tuple[Remainder, ...] = ()
    allocated: int | None = None

    @property
    def unreached(self) -> int:
        """Bytes for which no Python object was found."""
        return sum(part.amount for part in self.rest)


@dataclass(frozen=True, slots=True, repr=False)
class Holders(PlainData):
    """All holders on all devices, the largest first.

    Attributes:
        holders: The holders.
        totals: The sums, one for each device.
        notes: Sentences for the reader: what could not be read, or why the search stopped.
        complete: Whether the search ended before its time limit.
        objects: Python objects examined.
        seconds: Duration of the search.
        since: The moment after which the storages were created, if only new ones are listed.
    """

    holders: tuple[Holder, ...]
    totals: tuple[Total, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    objects: int = 0
    seconds: float = 0.0
    since: str = ""

    def largest(self, count: int = 5, device: str | None = None) -> tuple[Holder, ...]:
        """The largest holders, of one device or of all."""
        return tuple(holder for holder in self.holders if device in (None, holder.device))[:count]

    def amount(self, name: str, device: str | None = None) -> int:
        """Bytes held under a name; 0 if nothing is."""
        return sum(holder.amount for holder in self.holders if holder.name == name and device in (None, holder.device))

    def total(self, device: str) -> Total | None:
        """The sums of one device."""
        return next((total for total in self.totals if total.device == device), None)

    def freeable(self, device: str, *places: Place) -> int:
        """Bytes that would be freed if the names in these places and unreachable cycles were removed."""
        removed = {"garbage", *places}
        parts = (part for holder in self.holders if holder.device == device for part in holder.parts)
        return sum(part.amount for part in parts if removed.issuperset(part.places))

    def to_text(self, count: int = 10) -> str:
        """The largest holders, one per line: size, name, device."""
        lines = [f"{size(holder.amount):>11}  {holder.name}  ({holder.device})" for holder in self.largest(count)]
        return "\n".join(lines) or "no tensors"

    def __repr__(self) -> str:
        largest = ", ".join(str(holder) for holder in self.largest(3))
        return f"<Holders: {largest or 'none'}>"


@dataclass(frozen=True, slots=True)
class StorageBaseline:
    """The storages of one moment. As addresses are reused, storages are identified by themselves where possible.

    Attributes:
        addresses: Device and address of every block, and of every storage outside a block.
        identified: Those of the addresses whose storage is known.
        storages: Addresses of the storage objects in PyTorch.
        references: Weak references: as long as they exist, no other storage object has the same address.
    """

    addresses: frozenset[tuple[str, int]] = frozenset()
    identified: frozenset[tuple[str, int]] = frozenset()
    storages: frozenset[int] = frozenset()
    references: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, references: Mapping[StorageLocation, Any], blocks: AllocatedBlocks | None) -> StorageBaseline:
        """The baseline of storages, given as weak references by their locations, and of the allocator's blocks."""
        addresses = set() if blocks is None else set(blocks.positions)
        identified, storages = set(), set()
        for memory in references:
            block = None if blocks is None else blocks.block(memory.device, memory.address)
            address = (memory.device, memory.address if block is None else block.address)
            addresses.add(address)
            if memory.storage:
                identified.add(address)
                storages.add(memory.storage)
        return cls(frozenset(addresses), frozenset(identified), frozenset(storages), tuple(references.values()))

    def contains(self, device: str, address: int, storages: Collection[int]) -> bool:
        """Whether the memory at an address already existed; ``storages`` are the storage objects that use it now."""
        if (device, address) not in self.addresses:
            return False
        return (device, address) not in self.identified or not self.storages.isdisjoint(storages)
