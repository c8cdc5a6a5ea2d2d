"""What the readers of one file share: the tables that texts, pools and stacks go into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.errors import SnapshotFormatError
from ipygpumem.snapshot.check import integer, sequence
from ipygpumem.snapshot.resolve import Resolver
from ipygpumem.snapshot.tables import Numbers, Stacks

if TYPE_CHECKING:
    from ipygpumem.snapshot.machine import Run

__all__ = ["Book"]

_POOL_PARTS = 2


class Book:
    """Tables in the making."""

    def __init__(self, memo: list[Any] | None = None, runs: list[Run] | None = None) -> None:
        self.texts = Numbers()
        self.pools = Numbers()
        self.stacks = Stacks()
        self.resolver = Resolver(memo or [], runs or [], self.texts, self.stacks)

    def pool(self, value: Any, where: str) -> int:
        """The number of a pool id: two numbers, (0, 0) for the default pool."""
        parts = sequence(value, where)
        if len(parts) != _POOL_PARTS:
            raise SnapshotFormatError(f"{where} has {len(parts)} parts, not two")
        return self.pools.number((integer(parts[0], where), integer(parts[1], where)))
