"""The two keys that our snapshots carry beside PyTorch's own. Readers that do not know them ignore them.

``source_code``: dict, name of a notebook cell's file -> the cell's text, for the cells in the recorded stacks.

``ipygpumem``: dict, schema 1, all times in microseconds since 1970, all sizes in bytes, None where not known:

============== ========================================================================================================
``schema``     1; a reader takes any higher number that keeps these keys
``version``    of ipygpumem; ``torch`` of PyTorch; ``host`` name of the machine
``started_us`` and ``ended_us`` of the recording
``recording``  ``own`` (False: cut out of the user's own recording), ``stacks``, ``context``, ``max_entries`` (None when
               not ours to know), ``dropped`` (a list: allocations that the ring lost, per device)
``cells``      list of ``number`` (In number), ``filename`` (as in the frames), ``start_us``, ``end_us``, ``success``
``numbers``    dict, file name -> In number, for cells in the stacks that ran before the recording
``devices``    list of ``index``, ``name``, ``uuid``, ``total`` (capacity)
``readings``   ``before`` and ``after``: device name -> the counters of `ipygpumem.core.reading.DeviceReading`
``curves``     name -> ``device``, ``time_us`` (list), ``bytes`` (list): levels sampled meanwhile, ``device used`` and
               ``outside PyTorch``, with the device behind the name where there are several; may be empty
============== ========================================================================================================
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ipygpumem.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipygpumem.core.reading import Reading
    from ipygpumem.measurement.allocation_history import History

__all__ = ["SCHEMA", "CellFacts", "add_keys"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CellFacts:
    """One cell that ran while a recording was on; times in microseconds since 1970."""

    number: int | None
    filename: str | None
    start_us: int
    end_us: int
    success: bool | None

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        return {name: getattr(self, name) for name in self.__slots__}


def add_keys(
    snapshot: dict[str, Any],
    history: History,
    *,
    ended_us: int,
    dropped: Sequence[int | None],
    cells: Iterable[CellFacts],
    before: Reading,
    after: Reading,
    curves: Mapping[str, Any],
    sources: Mapping[str, str],
    numbers: Mapping[str, int],
    devices: list[dict[str, Any]],
) -> None:
    """Add both keys to a snapshot of PyTorch's.

    ``sources`` and ``numbers`` may hold more cells than the stacks do; the others are left out.
    """
    options = history.options
    names = _file_names(snapshot)
    snapshot["ipygpumem"] = {
        "schema": SCHEMA,
        "version": __version__,
        "torch": str(history.torch.__version__),
        "host": platform.node(),
        "started_us": history.started_us,
        "ended_us": ended_us,
        "recording": {
            "own": history.own,
            "stacks": options.stacks if history.own else None,
            "context": (None if options.stacks == "none" else "all") if history.own else None,
            "max_entries": options.max_entries if history.own else None,
            "dropped": list(dropped),
        },
        "cells": [cell.to_dict() for cell in cells],
        "numbers": {name: numbers[name] for name in sorted(names & numbers.keys())},
        "devices": devices,
        "readings": {
            "before": {name: device.to_dict() for name, device in before.devices.items()},
            "after": {name: device.to_dict() for name, device in after.devices.items()},
        },
        "curves": dict(curves),
    }
    snapshot["source_code"] = {name: sources[name] for name in sorted(names & sources.keys())}


def _file_names(snapshot: Mapping[str, Any]) -> set[str]:
    """Every file in the stacks of allocations and live blocks. All in C loops: there may be ten million frames."""
    events = chain.from_iterable(snapshot.get("device_traces", ()))
    allocated = (event["frames"] for event in events if event["action"] == "alloc" and "frames" in event)
    blocks = chain.from_iterable(map(itemgetter("blocks"), snapshot.get("segments", ())))
    live = (block["frames"] for block in blocks if block.get("frames"))
    return set(map(itemgetter("filename"), chain.from_iterable(chain(allocated, live))))
