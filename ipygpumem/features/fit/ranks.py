"""Communication between the ranks of a distributed program, all of which must run the step at the same sizes."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from ipygpumem.features.fit.step_runner import FitError
from ipygpumem.features.ranks.rank_files import rank_and_world

_TIMEOUT = timedelta(seconds=60)


class RankCommunicator:
    """Exchanges values with the other ranks through the default store of ``torch.distributed``.

    In a program with a single rank, the methods return immediately.

    Attributes:
        world: Number of ranks.
    """

    def __init__(self) -> None:
        distributed = sys.modules.get("torch.distributed")
        active = distributed is not None and distributed.is_available() and distributed.is_initialized()
        rank, world = rank_and_world() if active else (0, 1)
        self.world = world or 1
        self._rank = rank or 0
        self._store: Any = None
        self._prefix = ""
        self._round = 0
        if self.world > 1:
            self._store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()

    def join(self) -> None:
        """Wait until all ranks have called this method.

        Raises:
            FitError: Not all ranks called this method within 60 seconds.
        """
        if self._store is not None:
            call = (int(self._store.add("ipygpumem/fit/calls", 1)) - 1) // self.world
            self._prefix = f"ipygpumem/fit/{call}"
            self.minimum(0)

    def minimum(self, value: int) -> int:
        """Return the minimum of the values that the ranks pass to this method.

        Raises:
            FitError: Not all ranks called this method within 60 seconds.
        """
        if self._store is None:
            return value
        self._round += 1
        keys = [f"{self._prefix}/{self._round}/{rank}" for rank in range(self.world)]
        self._store.set(keys[self._rank], str(value))
        try:
            self._store.wait(keys, _TIMEOUT)
        except RuntimeError:
            absent = [key.rpartition("/")[2] for key in keys if not self._store.check([key])]
            noun = "ranks" if len(absent) > 1 else "rank"
            raise FitError(
                f"{noun} {', '.join(absent)} of {self.world} did not respond within {_TIMEOUT.seconds} s: "
                "run fit on every rank, because the step's collectives wait for all ranks"
            ) from None
        return min(int(self._store.get(key)) for key in keys)
