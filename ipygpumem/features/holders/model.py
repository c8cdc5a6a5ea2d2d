"""Storages, their holders, and the total of each device, which equals PyTorch's counter of allocated memory.

A storage is counted once, even if several tensors share it, and belongs to the holder of its first name. The order of
names is: variables of the notebook, the user's modules, other modules, outputs, running threads, the last exception.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.serialization import PlainData
from ipygpumem.core.units import many, size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.sources.allocator import AllocatedBlocks
    from ipygpumem.sources.storages import StorageLocation

Kind = Literal["parameter", "gradient", "buffer", "optimizer state", "activation", "plain"]
Place = Literal["variable", "module", "output", "thread", "traceback", "elsewhere", "garbage"]

KINDS: tuple[Kind, ...] = ("parameter", "buffer", "gradient", "optimizer state", "activation", "plain")
PLACES: tuple[Place, ...] = ("variable", "module", "output", "thread", "traceback", "elsewhere", "garbage")
"""``variable``: a notebook variable; ``module``: an attribute of an imported module; ``output``: ``Out`` or ``_``;
``thread``: a local variable of running code; ``traceback``: a local variable in a frame of the last exception;
``elsewhere``: alive, but without a name; ``garbage``: part of an unreachable cycle, which the garbage collector will
free."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage, which occupies one block of PyTorch's allocator.

    Attributes:
        amount: Size in bytes, as rounded by the allocator.
        kind: Its use in a module or an optimizer; otherwise ``activation`` (part of an autograd graph) or ``plain``.
        name: First name, such as ``model.layers[3].weight``.
        also: Up to four further names.
        places: Places of all names. The storage is freed once no name refers to it.
        graph: Whether only an autograd graph keeps the storage alive; ``name`` is then the tensor with the graph.
        tensor: Data type and shape of the largest tensor that uses it: ``float32 [4096, 4096]``.
        made: Line of code that allocated it, such as ``In [3]:5 make()``; empty if that was not recorded.
        view: Size in bytes of the largest tensor that uses the storage, if it is smaller than the storage.
        new: Whether the storage did not exist at the baseline.
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
    """A variable, an output or another top-level name, and the storages on one device that it keeps alive.

    Attributes:
        name: Such as ``model``, ``Out[3]``, or a local variable in a frame of the last exception.
        place: Origin of the name.
        amount: Size in bytes, as rounded by the allocator.
        count: Number of storages.
        kinds: Size in bytes per kind, the largest first.
        parts: The storages, the largest first.
        note: Reason why this memory is still in use; may be empty.
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
        """Return name, size and number of tensors: ``model 1.2 GiB (12 tensors)``."""
        return f"{self.name} {size(self.amount)} ({many(self.count, 'tensor')})"


@dataclass(frozen=True, slots=True)
class Remainder:
    """Size in bytes of allocated memory for which no Python object was found, with the reason as label."""

    label: str
    amount: int


@dataclass(frozen=True, slots=True)
class Total:
    """The memory of one device in bytes: ``held`` by all holders plus ``rest`` equals PyTorch's counter ``allocated``.

    ``allocated`` is None for main memory, or if PyTorch's counter cannot be read.
    """

    device: str
    held: int
    rest: tuple[Remainder, ...] = ()
    allocated: int | None = None

    @property
    def unreached(self) -> int:
        """Size in bytes of the memory for which no Python object was found."""
        return sum(part.amount for part in self.rest)


@dataclass(frozen=True, slots=True, repr=False)
class Holders(PlainData):
    """All holders on all devices, the largest first.

    Attributes:
        holders: The holders.
        totals: One total per device.
        notes: Limitations of the result, such as memory that could not be assigned or a time limit that was reached.
        complete: Whether the search ended before its time limit.
        objects: Number of Python objects examined.
        seconds: Duration of the search.
        since: Description of the baseline if only new storages are listed; otherwise empty.
    """

    holders: tuple[Holder, ...]
    totals: tuple[Total, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    objects: int = 0
    seconds: float = 0.0
    since: str = ""

    def largest(self, count: int = 5, device: str | None = None) -> tuple[Holder, ...]:
        """Return the largest holders on one device, by default on all."""
        return tuple(holder for holder in self.holders if device in (None, holder.device))[:count]

    def amount(self, name: str, device: str | None = None) -> int:
        """Return the memory held under a name in bytes; 0 if there is no such holder."""
        return sum(holder.amount for holder in self.holders if holder.name == name and device in (None, holder.device))

    def total(self, device: str) -> Total | None:
        """Return the total of one device; None if it was not searched."""
        return next((total for total in self.totals if total.device == device), None)

    def freeable(self, device: str, *places: Place) -> int:
        """Return the size in bytes of storages kept alive only by names in these places or by unreachable cycles."""
        removed = {"garbage", *places}
        parts = (part for holder in self.holders if holder.device == device for part in holder.parts)
        return sum(part.amount for part in parts if removed.issuperset(part.places))

    def to_text(self, count: int = 10) -> str:
        """Format the largest holders, one per line, with size, name and device."""
        lines = [f"{size(holder.amount):>11}  {holder.name}  ({holder.device})" for holder in self.largest(count)]
        return "\n".join(lines) or "no tensors"

    def __repr__(self) -> str:
        largest = ", ".join(str(holder) for holder in self.largest(3))
        return f"<Holders: {largest or 'none'}>"


@dataclass(frozen=True, slots=True)
class StorageBaseline:
    """The storages that exist at one point in time.

    Device addresses are reused, so storages are identified by their storage objects where possible.

    Attributes:
        addresses: Device and address of each block, and of each storage outside a block.
        identified: The subset of ``addresses`` whose storage object is known.
        storages: Addresses of the storage objects (``c10::StorageImpl``).
        references: Weak references to the storage objects, which prevent the reuse of their addresses.
    """

    addresses: frozenset[tuple[str, int]] = frozenset()
    identified: frozenset[tuple[str, int]] = frozenset()
    storages: frozenset[int] = frozenset()
    references: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, references: Mapping[StorageLocation, Any], blocks: AllocatedBlocks | None) -> StorageBaseline:
        """Create a baseline from weak references to storages, by location, and from the allocator's blocks."""
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
        """Return whether the memory at an address already existed; ``storages`` are the objects that use it now."""
        if (device, address) not in self.addresses:
            return False
        return (device, address) not in self.identified or not self.storages.isdisjoint(storages)
