"""The two keys that recordings contain in addition to PyTorch's keys. Other readers ignore them.

``source_code``: dict from file name to source code, for the notebook cells in the recorded stacks.

``ipygpumem``: dict with these keys. Times are microseconds since the Unix epoch, sizes are bytes; None if unknown.

============== ========================================================================================================
``schema``     1; readers accept higher numbers if all of these keys exist
``version``    version of ipygpumem; ``torch``: version of PyTorch; ``host``: name of the machine
``started_us`` start of the recording; ``ended_us``: its end
``recording``  ``own`` (False if the program started the recording), ``stacks``, ``context``, ``max_entries`` (None if
               not own), ``dropped`` (list with the number of allocations dropped by the ring buffer for each device)
``cells``      list of ``number`` (In number), ``filename`` (as in the stacks), ``start_us``, ``end_us``, ``success``
``numbers``    dict from file name to In number, for cells in the stacks that ran before the recording
``devices``    list of ``index``, ``name``, ``uuid``, ``total`` (memory)
``readings``   ``before`` and ``after``: dict from device name to `ipygpumem.core.reading.DeviceReading` counters
``curves``     dict from name to ``device``, ``time_us`` (list) and ``bytes`` (list) of the samples; names are
               ``device used`` and ``outside PyTorch``, followed by the device name if there are several; may be empty
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
    """A cell that ran during a recording. Times are in microseconds since the Unix epoch."""

    number: int | None
    filename: str | None
    start_us: int
    end_us: int
    success: bool | None


def recorded_file_names(snapshot: Mapping[str, Any]) -> set[str]:
    """Return all file names in the stacks of allocations and live blocks, without Python loops for speed."""
    events = chain.from_iterable(snapshot.get("device_traces", ()))
    allocated = (event["frames"] for event in events if event["action"] == "alloc" and "frames" in event)
    blocks = chain.from_iterable(map(itemgetter("blocks"), snapshot.get("segments", ())))
    live = (block["frames"] for block in blocks if block.get("frames"))
    return set(map(itemgetter("filename"), chain.from_iterable(chain(allocated, live))))
