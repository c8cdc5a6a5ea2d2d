"""Totals of CUPTI's allocation records by owner, and the live allocations by address.

Records become rows of numbers (time, allocates, address, bytes, owner), so that millions of them cost little.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipygpumem.features.outside.libraries import ALLOCATOR, file_name, library_name
from ipygpumem.features.outside.model import EARLIER
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.model.unique_values import IndexByValue
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.cupti.library import ALLOCATION, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ipygpumem.features.outside.model import Memory
    from ipygpumem.sources.cupti.library import Cupti

TIME, ALLOCATES, ADDRESS, BYTES, OWNER = range(5)
COLUMNS = 5


class Owner(NamedTuple):
    """The library that allocates, on which device, and which kind of memory.

    ``file`` is the name of the library's file without folders, empty if unknown; ``pooled`` is memory from a CUDA pool.
    """

    device: int
    memory: Memory
    library: str
    file: str
    pooled: bool

    @classmethod
    def of(cls, device: int, memory: Memory, path: str, *, pooled: bool) -> Owner:
        """Return the owner for a library's path; the path is empty for memory allocated before recording began."""
        library = library_name(path) if path else EARLIER
        if library == ALLOCATOR and memory == "device":
            return cls.allocator(device)
        return cls(device, memory, library, file_name(path), pooled)

    @classmethod
    def allocator(cls, device: int) -> Owner:
        """Return PyTorch's allocator."""
        return cls(device, "device", ALLOCATOR, "", pooled=False)

    @property
    def outside(self) -> bool:
        """Whether this is device memory that PyTorch's allocator does not count."""
        return self.memory in {"device", "array"} and self.library != ALLOCATOR


@dataclass(slots=True)
class Totals:
    """The allocations of one owner in an interval: bytes and their count."""

    level: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0
    allocations: int = 0

    def add(self, changes: NDArray[Any]) -> None:
        """Add allocations (positive) and frees (negative) in the order of time."""
        levels = self.level + np.cumsum(changes)
        self.level, self.peak = int(levels[-1]), max(self.peak, int(levels.max()))
        allocations = changes[changes > 0]
        self.allocated += int(allocations.sum())
        self.freed -= int(changes[changes < 0].sum())
        self.allocations += len(allocations)

    def move(self, nbytes: int) -> None:
        """Add a live allocation that counted for another owner, or remove one (negative). Peaks become lower bounds."""
        self.level += nbytes
        self.allocated += nbytes
        self.allocations += 1 if nbytes > 0 else -1
        self.peak = max(self.peak + min(nbytes, 0), self.level, 0)


@dataclass(slots=True, eq=False)
class RecordingInterval:
    """The recorded allocations of one open measurement, which began at ``start`` by CUPTI's clock.

    ``devices`` has the totals of all memory outside PyTorch by device index. Recording was paused for ``seconds``, and
    CUPTI had no buffer for its records ``lost`` times; ``problem`` is why there are no records after some time.
    """

    start: int
    owners: dict[Owner, Totals] = field(default_factory=dict)
    devices: dict[int, Totals] = field(default_factory=dict)
    seconds: float = 0.0
    lost: int = 0
    problem: str = ""

    def add(self, owners: Sequence[Owner], numbers: NDArray[Any], changes: NDArray[Any]) -> None:
        """Add changes in bytes; ``numbers`` has the index of each change's owner."""
        outside: dict[int, NDArray[Any]] = {}
        for number in np.unique(numbers).tolist():
            owner, selected = owners[number], numbers == number
            self.owners.setdefault(owner, Totals()).add(changes[selected])
            if owner.outside:
                outside[owner.device] = selected | outside.get(owner.device, False)
        for device, selected in outside.items():
            self.devices.setdefault(device, Totals()).add(changes[selected])

    def _totals(self, owner: Owner) -> list[Totals]:
        """The totals that an owner's allocations are part of."""
        totals = [self.owners.setdefault(owner, Totals())]
        if owner.outside:
            totals.append(self.devices.setdefault(owner.device, Totals()))
        return totals

    def move_free(self, before: Owner, after: Owner, nbytes: int) -> None:
        """Move a free to another owner."""
        for owner, change in ((before, nbytes), (after, -nbytes)):
            for totals in self._totals(owner):
                totals.level += change
                totals.freed -= change

    def move_to_pytorch(self, owner: Owner, nbytes: int) -> None:
        """Move a live allocation of a library to PyTorch's allocator, unless it is older than this interval."""
        if owner in self.owners and self.owners[owner].allocated >= nbytes:
            for totals in self._totals(owner):
                totals.move(-nbytes)
            for totals in self._totals(Owner.allocator(owner.device)):
                totals.move(nbytes)


class LiveAllocations:
    """The owner of every live allocation by its address."""

    def __init__(self) -> None:
        self._owner_numbers = IndexByValue()
        self._live: dict[int, tuple[int, int]] = {}
        self._replaced: dict[int, list[int]] = {}
        self._unmatched_frees: dict[int, tuple[int, int]] = {}

    def clear(self) -> None:
        """Forget all allocations, because frees were not recorded for some time."""
        self._live.clear()
        self._replaced.clear()
        self._unmatched_frees.clear()

    def number(self, owner: Owner) -> int:
        """Return the number of an owner in a table of records."""
        return self._owner_numbers.number(owner)

    def table(self, cupti: Cupti, address: int, valid: int) -> NDArray[Any]:
        """Return the records of a full buffer as rows of numbers."""
        records = cupti.records(address, valid)
        records = records[np.isin(records["memory"], tuple(KINDS))]
        table = np.empty((len(records), COLUMNS), dtype=np.int64)
        table[:, TIME] = records["time"]
        table[:, ALLOCATES] = records["operation"] == ALLOCATION
        table[:, ADDRESS] = records["address"].view(np.int64)
        table[:, BYTES] = records["bytes"]
        # a buffer has few different owners: look up each once, by a number made of the fields that decide it
        keys = records["source"] << 16
        keys |= (records["device"].astype(np.uint64) & 0xFF) << 8
        keys |= (records["memory"].astype(np.uint64) << 1) | (records["async"] != 0)
        first, inverse = np.unique(keys, return_index=True, return_inverse=True)[1:]
        numbers = [self.number(_record_owner(cupti, records[i])) for i in first.tolist()]
        table[:, OWNER] = np.array(numbers, dtype=np.int64)[inverse] if numbers else 0
        return table

    def add_segment(self, device: int, address: int, nbytes: int) -> None:
        """Add a segment that PyTorch's allocator allocated before recording began."""
        self._live.setdefault(address, (self.number(Owner.allocator(device)), nbytes))

    def apply(self, table: NDArray[Any], intervals: Iterable[RecordingInterval]) -> None:
        """Apply records in the order of time: find the owner of what is freed, and add up each interval."""
        record_owners, late_frees = self._find_owners(table)
        numbers, owners = np.array(record_owners, dtype=np.int64), list(self._owner_numbers)
        changes = np.where(table[:, ALLOCATES] == 1, table[:, BYTES], -table[:, BYTES])
        for interval in intervals:
            inside = table[:, TIME] >= interval.start
            if inside.any():
                interval.add(owners, numbers[inside], changes[inside])
            for freed_at, before, after, nbytes in late_frees:
                if freed_at >= interval.start:
                    interval.move_free(owners[before], owners[after], nbytes)

    def _find_owners(self, table: NDArray[Any]) -> tuple[list[int], list[tuple[int, int, int, int]]]:
        """Return the owner of each record, and the earlier frees (time, previous owner, owner, bytes) that change."""
        live, replaced, unmatched = self._live, self._replaced, self._unmatched_frees
        owners, late = table[:, OWNER].tolist(), []
        columns = [table[:, column].tolist() for column in (TIME, ALLOCATES, ADDRESS, BYTES)]
        for i, (time, allocates, address, nbytes, owner) in enumerate(zip(*columns, owners, strict=True)):
            if allocates:
                freed_at, freed_as = unmatched.pop(address, (0, owner)) if unmatched else (0, owner)
                if time < freed_at:  # a slow call, whose record arrived after that of the free
                    late.append((freed_at, freed_as, owner, nbytes))
                    continue
                previous = live.get(address)
                if previous is not None:
                    # records carry the time when the call began: one that waited for the address began earlier than
                    # the call that freed it, whose record follows
                    replaced.setdefault(address, []).append(previous[0])
                live[address] = (owner, nbytes)
            elif address in replaced:
                owners[i] = replaced[address].pop(0)
                if not replaced[address]:
                    del replaced[address]
            elif address in live:
                owners[i] = live.pop(address)[0]
            else:
                unmatched[address] = time, owner
        return owners, late

    def by_owner(self) -> dict[Owner, int]:
        """Return the live bytes of each owner, of what was allocated since recording began."""
        owners, sums = list(self._owner_numbers), Counter[Owner]()
        for number, nbytes in self._live.values():
            sums[owners[number]] += nbytes
        return dict(sums)

    def move_to_pytorch(self, device: int, address: int, intervals: Iterable[RecordingInterval]) -> None:
        """Attribute a segment that PyTorch lists to PyTorch, although another library called CUDA for it."""
        number, nbytes = self._live.get(address, (0, 0))
        if not nbytes:
            return
        owner = list(self._owner_numbers)[number]
        if owner.outside:
            self._live[address] = self.number(Owner.allocator(device)), nbytes
            for interval in intervals:
                interval.move_to_pytorch(owner, nbytes)


def _record_owner(cupti: Cupti, record: Any) -> Owner:
    memory: Any = KINDS[int(record["memory"])]
    path = cupti.text(int(record["source"]))
    return Owner.of(int(record["device"]), memory, path, pooled=bool(record["async"]))


def pytorch_segments() -> list[tuple[int, int, int]]:
    """Return device index, address and bytes of PyTorch's segments.

    None while the user records the allocation history, because listing them adds an event to it.
    """
    try:
        if pytorch.started() is None or (allocator.is_recording() and not current().active_recording.running):
            return []
        return [(segment["device"], segment["address"], segment["total_size"]) for segment in allocator.segments()]
    except Exception:  # this allocator keeps no list of segments
        return []
