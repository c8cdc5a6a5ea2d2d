"""Totals of CUPTI's allocation records by owner, and a table of live allocations by address.

Records are stored as rows of integers (time, allocates, address, bytes, owner) to limit their memory usage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipygpumem.features.outside.model import ALLOCATOR, BEFORE_RECORDING, Memory, file_name, library_name
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.model.columns import IndexByValue
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.cupti.library import ALLOCATION, KINDS, CuptiLibrary

TIME, ALLOCATES, ADDRESS, BYTES, OWNER = range(5)
COLUMNS = 5


class AllocationOwner(NamedTuple):
    """A library that allocates one kind of memory on one device.

    Attributes:
        device: Index of the device.
        file: Base name of the library's file; empty if it is unknown.
        pooled: Whether the memory belongs to a CUDA memory pool.
    """

    device: int
    memory: Memory
    library: str
    file: str
    pooled: bool

    @classmethod
    def from_path(cls, device: int, memory: Memory, path: str, *, pooled: bool) -> AllocationOwner:
        """``path`` is the path of the library's file; empty for memory allocated before recording began."""
        library = library_name(path) if path else BEFORE_RECORDING
        if library == ALLOCATOR and memory == "device":
            return cls.allocator(device)
        return cls(device, memory, library, file_name(path), pooled)

    @classmethod
    def allocator(cls, device: int) -> AllocationOwner:
        return cls(device, "device", ALLOCATOR, "", pooled=False)

    @property
    def outside(self) -> bool:
        """Whether the owner's memory is device memory outside PyTorch's allocator, except ``__device__`` variables."""
        return self.memory in {"device", "array"} and self.library != ALLOCATOR


@dataclass(slots=True)
class AllocationTotals:
    """Totals of an owner's allocations during an interval, in bytes.

    Attributes:
        change: Allocated memory minus freed memory.
        peak: Maximum of ``change`` during the interval.
        allocated, freed: Total size of the allocations and of the frees.
        allocations: Number of allocations.
    """

    change: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0
    allocations: int = 0

    def add(self, changes: NDArray[Any]) -> None:
        """``changes`` are the sizes of allocations (positive) and frees (negative) in chronological order."""
        totals = self.change + np.cumsum(changes)
        self.change, self.peak = int(totals[-1]), max(self.peak, int(totals.max()))
        allocations = changes[changes > 0]
        self.allocated += int(allocations.sum())
        self.freed -= int(changes[changes < 0].sum())
        self.allocations += len(allocations)

    def transfer(self, nbytes: int) -> None:
        """Add an allocation or, if ``nbytes`` is negative, remove one. The peak becomes a lower bound."""
        self.change += nbytes
        self.allocated += nbytes
        self.allocations += 1 if nbytes > 0 else -1
        self.peak = max(self.peak + min(nbytes, 0), self.change, 0)


@dataclass(slots=True, eq=False)
class RecordingInterval:
    """Totals of the allocations during one measurement.

    Attributes:
        start: Timestamp of the start of the interval in nanoseconds, as in CUPTI's records.
        owners: Totals by owner.
        devices: Totals of the memory outside PyTorch by device index.
        seconds: Time in seconds for which the recording was paused.
        lost: Number of activity buffers whose request or completion failed, so that records were lost.
        problem: Reason why recording ended early; empty if it did not.
    """

    start: int
    owners: dict[AllocationOwner, AllocationTotals] = field(default_factory=dict)
    devices: dict[int, AllocationTotals] = field(default_factory=dict)
    seconds: float = 0.0
    lost: int = 0
    problem: str = ""

    def add(self, owners: Sequence[AllocationOwner], owner_indices: NDArray[Any], changes: NDArray[Any]) -> None:
        outside: dict[int, NDArray[Any]] = {}
        for index in np.unique(owner_indices).tolist():
            owner, mask = owners[index], owner_indices == index
            self.owners.setdefault(owner, AllocationTotals()).add(changes[mask])
            if owner.outside:
                outside[owner.device] = mask | outside.get(owner.device, False)
        for device, mask in outside.items():
            self.devices.setdefault(device, AllocationTotals()).add(changes[mask])

    def _totals(self, owner: AllocationOwner) -> list[AllocationTotals]:
        totals = [self.owners.setdefault(owner, AllocationTotals())]
        if owner.outside:
            totals.append(self.devices.setdefault(owner.device, AllocationTotals()))
        return totals

    def move_free(self, before: AllocationOwner, after: AllocationOwner, nbytes: int) -> None:
        for owner, change in ((before, nbytes), (after, -nbytes)):
            for totals in self._totals(owner):
                totals.change += change
                totals.freed -= change

    def move_to_pytorch(self, owner: AllocationOwner, nbytes: int) -> None:
        """Transfer a live allocation from a library to PyTorch if the interval may contain the allocation."""
        if owner in self.owners and self.owners[owner].allocated >= nbytes:
            for totals in self._totals(owner):
                totals.transfer(-nbytes)
            for totals in self._totals(AllocationOwner.allocator(owner.device)):
                totals.transfer(nbytes)


class LiveAllocations:
    def __init__(self) -> None:
        self.owner_numbers = IndexByValue()
        self._live: dict[int, tuple[int, int]] = {}
        self._replaced: dict[int, list[int]] = {}
        self._unmatched_frees: dict[int, tuple[int, int]] = {}

    def table(self, cupti: CuptiLibrary, address: int, valid: int) -> NDArray[Any]:
        records = cupti.records(address, valid)
        records = records[np.isin(records["memory"], tuple(KINDS))]
        table = np.empty((len(records), COLUMNS), dtype=np.int64)
        table[:, TIME] = records["time"]
        table[:, ALLOCATES] = records["operation"] == ALLOCATION
        table[:, ADDRESS] = records["address"].view(np.int64)
        table[:, BYTES] = records["bytes"]
        # a buffer has few distinct owners: look up each once, by a key that combines the relevant fields
        keys = records["source"] << 16
        keys |= (records["device"].astype(np.uint64) & 0xFF) << 8
        keys |= (records["memory"].astype(np.uint64) << 1) | (records["async"] != 0)
        first, inverse = np.unique(keys, return_index=True, return_inverse=True)[1:]
        numbers = [self.owner_numbers[_record_owner(cupti, records[i])] for i in first.tolist()]
        table[:, OWNER] = np.array(numbers, dtype=np.int64)[inverse] if numbers else 0
        return table

    def add_segment(self, device: int, address: int, nbytes: int) -> None:
        self._live.setdefault(address, (self.owner_numbers[AllocationOwner.allocator(device)], nbytes))

    def apply(self, table: NDArray[Any], intervals: Iterable[RecordingInterval]) -> None:
        """Update the live allocations and the intervals with records in chronological order."""
        record_owners, late_frees = self._find_owners(table)
        numbers, owners = np.array(record_owners, dtype=np.int64), list(self.owner_numbers)
        changes = np.where(table[:, ALLOCATES] == 1, table[:, BYTES], -table[:, BYTES])
        for interval in intervals:
            inside = table[:, TIME] >= interval.start
            if inside.any():
                interval.add(owners, numbers[inside], changes[inside])
            for freed_at, before, after, nbytes in late_frees:
                if freed_at >= interval.start:
                    interval.move_free(owners[before], owners[after], nbytes)

    def _find_owners(self, table: NDArray[Any]) -> tuple[list[int], list[tuple[int, int, int, int]]]:
        """Return the owner number of each record, and corrections of earlier frees.

        A correction is a tuple ``(time, old owner number, new owner number, bytes)``.
        """
        live, replaced, unmatched = self._live, self._replaced, self._unmatched_frees
        owners, corrections = table[:, OWNER].tolist(), []
        columns = [table[:, column].tolist() for column in (TIME, ALLOCATES, ADDRESS, BYTES)]
        for i, (time, allocates, address, nbytes, owner) in enumerate(zip(*columns, owners, strict=True)):
            if allocates:
                freed_at, freed_as = unmatched.pop(address, (0, owner)) if unmatched else (0, owner)
                if time < freed_at:  # the record of a slow call arrived after that of the free
                    corrections.append((freed_at, freed_as, owner, nbytes))
                    continue
                previous = live.get(address)
                if previous is not None:
                    # a timestamp is the start of a call: an allocation that waited for this address started before the
                    # call that freed the address. The record of that call follows
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
        return owners, corrections

    def by_owner(self) -> dict[AllocationOwner, int]:
        owners, sums = list(self.owner_numbers), Counter[AllocationOwner]()
        for number, nbytes in self._live.values():
            sums[owners[number]] += nbytes
        return dict(sums)

    def move_to_pytorch(self, device: int, address: int, intervals: Iterable[RecordingInterval]) -> None:
        """Attribute a segment of PyTorch's allocator to PyTorch if it was attributed to a library."""
        number, nbytes = self._live.get(address, (0, 0))
        if not nbytes:
            return
        owner = list(self.owner_numbers)[number]
        if owner.outside:
            self._live[address] = self.owner_numbers[AllocationOwner.allocator(device)], nbytes
            for interval in intervals:
                interval.move_to_pytorch(owner, nbytes)


def _record_owner(cupti: CuptiLibrary, record: Any) -> AllocationOwner:
    memory: Any = KINDS[int(record["memory"])]
    path = cupti.text(int(record["source"]))
    return AllocationOwner.from_path(int(record["device"]), memory, path, pooled=bool(record["async"]))


def pytorch_segments() -> list[tuple[int, int, int]]:
    """Return ``(device, address, bytes)`` of each segment of PyTorch's allocator.

    The list is empty if the segments cannot be read, or if the program records allocation history, because reading
    the segments would add an event to its recording.
    """
    try:
        if pytorch.initialized_torch() is None or (allocator.is_recording() and not current().active_recording.running):
            return []
        return [(segment["device"], segment["address"], segment["total_size"]) for segment in allocator.segments()]
    except Exception:  # not supported by this allocator backend
        return []
