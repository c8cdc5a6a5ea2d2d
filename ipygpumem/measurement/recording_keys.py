"""The two keys that our recordings have in addition to PyTorch's. Other readers ignore them.

``source_code``: dict of file name -> text, for the notebook cells in the recorded stacks.

``ipygpumem``: dict with these keys. Times are in microseconds since 1970, sizes in bytes; None if unknown.

============== ========================================================================================================
``schema``     1; readers accept a higher number as long as these keys exist
``version``    of ipygpumem; ``torch`` of PyTorch; ``host`` name of the machine
``started_us`` of the recording; and ``ended_us``
``recording``  ``own`` (False: a part of the program's own recording), ``stacks``, ``context``, ``max_entries`` (None if
               not own), ``dropped`` (list: number of allocations that the ring buffer dropped, for each device)
``cells``      list of ``number`` (In number), ``filename`` (as in the stacks), ``start_us``, ``end_us``, ``success``
``numbers``    dict of file name -> In number, for cells in the stacks that ran before the recording
``devices``    list of ``index``, ``name``, ``uuid``, ``total`` (memory)
``readings``   ``before`` and ``after``: device name -> the counters of `ipygpumem.core.reading.DeviceReading`
``curves``     name -> ``device``, ``time_us`` (list), ``bytes`` (list): sampled levels, ``device used`` and
               ``outside PyTorch``; with several devices, names end with the device's; may be empty
============== ========================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CellInfo:
    """One cell that ran during a recording; times in microseconds since 1970."""

    number: int | None
    filename: str | None
    start_us: int
    end_us: int
    success: bool | None


def recorded_file_names(snapshot: Mapping[str, Any]) -> set[str]:
    """All files in the stacks of allocations and live blocks. Without Python loops: there may be ten million frames."""
    events = chain.from_iterable(snapshot.get("device_traces", ()))
    allocated = (event["frames"] for event in events if event["action"] == "alloc" and "frames" in event)
    blocks = chain.from_iterable(map(itemgetter("blocks"), snapshot.get("segments", ())))
    live = (block["frames"] for block in blocks if block.get("frames"))
    return set(map(itemgetter("filename"), chain.from_iterable(chain(allocated, live))))
