"""Who holds the memory: what keeps each storage alive, and the table of holders that adds up to `allocated`.

A storage is counted once, however many tensors view it, and belongs to the first of its names. The names come in an
order: variables of the notebook, modules of the user's, other modules, outputs, running threads, the last exception,
what no name reaches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ipygpumem.core.units import size

__all__ = ["KINDS", "PLACES", "Holder", "Holders", "Kind", "Place", "Rest", "Storage", "Total"]

Kind = Literal["parameter", "gradient", "buffer", "optimizer state", "activation", "plain"]
Place = Literal["variable", "module", "output", "thread", "traceback", "elsewhere", "garbage"]

KINDS: tuple[Kind, ...] = ("parameter", "buffer", "gradient", "optimizer state", "activation", "plain")
PLACES: tuple[Place, ...] = ("variable", "module", "output", "thread", "traceback", "elsewhere", "garbage")
"""``variable``: of the notebook; ``module``: of an imported one; ``output``: ``Out``, ``_``; ``thread``: a local of
code that is running; ``traceback``: a local in the frames of the last exception; ``elsewhere``: alive, and reached by
no name; ``garbage``: a cycle of objects that nobody can reach, and Python's collector will find."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage: a block of PyTorch's allocator, and who keeps it.

    Attributes:
        device: Where it is: ``cuda:0``, ``cpu``.
        amount: Bytes, as the allocator rounded them up.
        kind: What a module or an optimizer owns it as; else ``activation`` (needs the autograd graph) or ``plain``.
        name: Its first name: ``model.layers[3].weight``.
        also: Its other names, at most a handful.
        places: Where its names stand; it goes only when all of them let go.
        graph: Whether an autograd graph alone keeps it: ``name`` is then the tensor that has the graph.
        tensor: Type and shape of the largest tensor over it: ``float32 [4096, 4096]``.
        made: Where it was allocated, where that was recorded: ``In [3]:5 make()``.
        view: Bytes of the largest tensor that Python still has over it, where that is less than the storage.
        new: Whether it was not there at the mark that was asked for.
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
    """One name, and all that is told under it on one device: ``model``, ``Out[3]``, a local of the last exception.

    Attributes:
        name: The name.
        place: Where that name stands.
        device: Where the memory is.
        amount: Bytes, as the allocator rounded them up.
        count: Storages.
        kinds: Bytes by kind, the largest first.
        parts: The storages, the largest first.
        note: What a reader should know of it, a sentence or nothing.
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
        """As one phrase: ``model 1.2 GiB (12 tensors)``."""
        return f"{self.name} {size(self.amount)} ({self.count:,} tensor{'' if self.count == 1 else 's'})"


@dataclass(frozen=True, slots=True)
class Rest:
    """A part of `allocated` that no Python object was found for, in bytes."""

    label: str
    amount: int


@dataclass(frozen=True, slots=True)
class Total:
    """One device: ``held`` (all holders) plus ``rest`` is ``allocated``, the counter; None where there is none."""

    device: str
    held: int
    rest: tuple[Rest, ...] = ()
    allocated: int | None = None

    @property
    def unreached(self) -> int:
        """Bytes that no Python object was found for."""
        return sum(part.amount for part in self.rest)


@dataclass(frozen=True, slots=True, repr=False)
class Holders:
    """All holders of all devices, the largest first.

    Attributes:
        holders: The holders.
        totals: The sums, one a device.
        notes: Sentences for the reader: what could not be read, where the walk stopped.
        complete: Whether the walk saw everything.
        objects: Python objects that it looked at.
        seconds: What it took.
        since: What the bytes are new against, where only new ones were asked for.
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
        return tuple(one for one in self.holders if device in (None, one.device))[:count]

    def amount(self, name: str, device: str | None = None) -> int:
        """Bytes told under a name, 0 where there is none of it."""
        return sum(one.amount for one in self.holders if one.name == name and device in (None, one.device))

    def total(self, device: str) -> Total | None:
        """The sums of one device."""
        return next((one for one in self.totals if one.device == device), None)

    def freeable(self, device: str, *places: Place) -> int:
        """Bytes that nothing but these places keeps: what would go if they let go. Unreachable cycles go with them."""
        going = {"garbage", *places}
        parts = (part for one in self.holders if one.device == device for part in one.parts)
        return sum(part.amount for part in parts if going.issuperset(part.places))

    def to_dict(self) -> dict[str, Any]:
        """As plain data: bytes as int, unknown as None."""
        return asdict(self)

    def to_text(self, count: int = 10) -> str:
        """The largest holders, a line each: bytes, name, device."""
        lines = [f"{size(one.amount):>11}  {one.name}  ({one.device})" for one in self.largest(count)]
        return "\n".join(lines) or "no tensor is held"

    def __repr__(self) -> str:
        """Short, for a prompt."""
        first = ", ".join(str(one) for one in self.largest(3))
        return f"<Holders: {first or 'none'}>"
