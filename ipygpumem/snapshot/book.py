"""What the readers of one file share: the tables that texts, pools and stacks go into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.snapshot.resolve import Resolver
from ipygpumem.snapshot.tables import Numbers, Stacks

if TYPE_CHECKING:
    from ipygpumem.snapshot.memo import Run

__all__ = ["Book"]


class Book:
    """Tables in the making."""

    def __init__(self, memo: list[Any] | None = None, runs: list[Run] | None = None) -> None:
        self.texts = Numbers()
        self.pools = Numbers()
        self.stacks = Stacks()
        self.resolver = Resolver(memo if memo and runs else [], self.texts, self.stacks, self.pools)
