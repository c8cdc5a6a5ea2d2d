"""What came and went, by owner: sums for each open measurement, and what is live by address. Free of CUPTI.

Records are rows of numbers (time, allocates, address, bytes, owner), so that millions cost little and none is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipygpumem.features.outside.libraries import ALLOCATOR, file_name, library_name
from ipygpumem.features.outside.model import EARLIER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["ADDRESS", "ALLOCATES", "BYTES", "COLUMNS", "OWNER", "TIME", "Account", "Accounts", "Owner", "Window"]

TIME, ALLOCATES, ADDRESS, BYTES, OWNER = range(5)
COLUMNS = 5


class Owner(NamedTuple):
    """Who allocates, of which kind, where. ``file`` has no folders, and is empty where nobody knows."""

    device: int
    memory: str
    library: str
    file: str
    pooled: bool

    @classmethod
    def of(cls, device: int, memory: str, path: str, *, pooled: bool) -> Owner:
        """The owner of a record whose source is a path; empty for what was allocated before anybody watched."""
        library = library_name(path) if path else EARLIER
        if library == ALLOCATOR and memory == "device":
            return cls.allocator(device)
        return cls(device, memory, library, file_name(path), pooled)

    @classmethod
    def allocator(cls, device: int) -> Owner:
        """PyTorch's allocator."""
        return cls(device, "device", ALLOCATOR, "", pooled=False)

    @property
    def outside(self) -> bool:
        """Whether this is memory of the card that PyTorch's books do not have."""
        return self.memory in {"device", "array"} and self.library != ALLOCATOR


@dataclass(slots=True)
class Account:
    """One owner in one measurement: bytes and counts since it began."""

    level: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0
    allocations: int = 0

    def add(self, deltas: NDArray[Any]) -> None:
        """Take in what came (above 0) and went (below), in the order of time."""
        levels = self.level + np.cumsum(deltas)
        self.level, self.peak = int(levels[-1]), max(self.peak, int(levels.max()))
        came = deltas[deltas > 0]
        self.allocated += int(came.sum())
        self.freed -= int(deltas[deltas < 0].sum())
        self.allocations += len(came)

    def move(self, size: int, target: Account) -> None:
        """One live allocation was another's. Both peaks are then the least that they can have been."""
        for account, sign in ((self, -1), (target, 1)):
            account.level += sign * size
            account.allocated += sign * size
            account.allocations += sign
            account.peak = max(account.peak + min(sign, 0) * size, account.level, 0)


@dataclass(slots=True, eq=False)
class Window:
    """One open measurement.

    Attributes:
        start: When it began, by CUPTI's clock.
        accounts: What moved since, by owner.
        totals: Memory of the card outside PyTorch's books, all owners together, by device.
        seconds: How long nothing was recorded meanwhile.
        lost: How often CUPTI had no buffer for its records.
        trouble: Why there are no records from some moment on.
    """

    start: int
    accounts: dict[Owner, Account] = field(default_factory=dict)
    totals: dict[int, Account] = field(default_factory=dict)
    seconds: float = 0.0
    lost: int = 0
    trouble: str = ""

    def add(self, owners: Sequence[Owner], numbers: NDArray[Any], deltas: NDArray[Any]) -> None:
        """Take in changes, each with the number of its owner."""
        outside: dict[int, NDArray[Any]] = {}
        for number in np.unique(numbers).tolist():
            owner, here = owners[number], numbers == number
            self.accounts.setdefault(owner, Account()).add(deltas[here])
            if owner.outside:
                known = outside.get(owner.device)
                outside[owner.device] = here if known is None else known | here
        for device, here in outside.items():
            self.totals.setdefault(device, Account()).add(deltas[here])

    @property
    def grown(self) -> bool:
        """Whether anybody but PyTorch's allocator has taken memory of the card, as far as records can say."""
        return any(owner.outside and account.allocated for owner, account in self.accounts.items())

    def adopt(self, owner: Owner, size: int) -> None:
        """A live allocation of an owner's is a segment of PyTorch's."""
        account = self.accounts.get(owner)
        if account is None or account.allocated < size:  # it came before this measurement began
            return
        account.move(size, self.accounts.setdefault(Owner.allocator(owner.device), Account()))
        total = self.totals.get(owner.device)
        if total is not None and owner.outside:
            total.move(size, Account())


class Accounts:
    """Who owns what is live."""

    def __init__(self) -> None:
        self.owners: list[Owner] = []
        self._numbers: dict[Owner, int] = {}
        self._live: dict[int, tuple[int, int]] = {}
        self._older: dict[int, list[int]] = {}

    def forget(self) -> None:
        """What is live is not known any more."""
        self._live.clear()
        self._older.clear()

    def number(self, owner: Owner) -> int:
        """The owner's number in a table."""
        number = self._numbers.get(owner)
        if number is None:
            number = self._numbers[owner] = len(self.owners)
            self.owners.append(owner)
        return number

    def stands(self, device: int, address: int, size: int) -> None:
        """A segment of PyTorch's that is there already."""
        self._live.setdefault(address, (self.number(Owner.allocator(device)), size))

    def enter(self, table: NDArray[Any], windows: Iterable[Window]) -> None:
        """Take in records in the order of their times: who owns what is freed, then the sums of every window."""
        live, older = self._live, self._older
        owners = table[:, OWNER].tolist()
        rows = zip(
            table[:, ALLOCATES].tolist(), table[:, ADDRESS].tolist(), table[:, BYTES].tolist(), owners, strict=True
        )
        for i, (allocates, address, size, owner) in enumerate(rows):
            if allocates:
                before = live.get(address)
                if before is not None:
                    # a call is stamped when it begins: one that waited for the address has the earlier time than the
                    # call that freed it, whose record is still to come
                    older.setdefault(address, []).append(before[0])
                live[address] = (owner, size)
            elif address in older:
                owners[i] = older[address].pop(0)
                if not older[address]:
                    del older[address]
            elif address in live:
                owners[i] = live.pop(address)[0]
        numbers = np.array(owners, dtype=np.int64)
        deltas = np.where(table[:, ALLOCATES] == 1, table[:, BYTES], -table[:, BYTES])
        for window in windows:
            inside = table[:, TIME] >= window.start
            if inside.any():
                window.add(self.owners, numbers[inside], deltas[inside])

    def standing(self) -> dict[Owner, int]:
        """What is live, by owner: of that which came while it was watched."""
        sums: dict[Owner, int] = {}
        for number, size in self._live.values():
            owner = self.owners[number]
            sums[owner] = sums.get(owner, 0) + size
        return sums

    def adopt(self, device: int, address: int, windows: Iterable[Window]) -> None:
        """PyTorch lists a segment at this address: it is PyTorch's, though a pool's allocator called CUDA for it."""
        found = self._live.get(address)
        if found is None or not self.owners[found[0]].outside:
            return
        number, size = found
        self._live[address] = (self.number(Owner.allocator(device)), size)
        for window in windows:
            window.adopt(self.owners[number], size)
