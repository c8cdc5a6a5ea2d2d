"""What the readers of one file share: the tables that texts, pools and stacks go into."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from ipygpumem.snapshot.model.stacks import Numbers, Stacks
from ipygpumem.snapshot.reader.checks import varied
from ipygpumem.snapshot.reader.value_resolver import Resolver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.reader.memo_table import Run

__all__ = ["Book"]

_FIRST_CHECK = 1 << 16


class Book:
    """Tables in the making."""

    def __init__(self, memo: list[Any] | None = None, runs: list[Run] | None = None) -> None:
        self.texts = Numbers()
        self.pools = Numbers()
        self.stacks = Stacks()
        self.resolver = Resolver(memo if memo and runs else [], self.texts, self.stacks, self.pools)
        self._rows = array("Q")
        self._check = _FIRST_CHECK

    def count(self, items: Sequence[Any], where: str) -> None:
        """Dicts of a list are about to become rows.

        Raises:
            SnapshotLimitError: All lists together are the same few dicts again and again.
        """
        self._rows.extend(map(id, items))
        if len(self._rows) > self._check:
            varied(self._rows, where)
            self._check = 2 * len(self._rows)
