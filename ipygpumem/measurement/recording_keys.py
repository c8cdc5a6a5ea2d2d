"""The two keys that recordings contain in addition to PyTorch's keys. Other readers ignore them.

``source_code`` is a dict from file name to source code for the notebook cells in the recorded stacks.

``ipygpumem`` is a dict with the following keys. Times are in microseconds since the Unix epoch and sizes in bytes.
Unknown values are None.

============== ========================================================================================================
``schema``     1. Readers accept higher numbers if all of these keys exist.
``version``    Version of ipygpumem.
``torch``      Version of PyTorch.
``host``       Name of the machine.
``started_us`` Start of the recording.
``ended_us``   End of the recording.
``recording``  Dict with the keys ``own`` (False if the program started the recording), the recording options
               ``stacks``, ``context`` and ``max_entries`` (None unless ``own`` is True), and ``dropped`` (list of the
               number of allocations that the ring buffer dropped for each device).
``cells``      List of dicts with the keys ``number`` (In number), ``filename`` (as in the stacks), ``start_us``,
               ``end_us`` and ``success``.
``numbers``    Dict from file name to In number for the notebook cells in the recorded stacks.
``devices``    List of dicts with the keys ``index``, ``name``, ``uuid`` and ``total`` (total memory).
``readings``   Dict with the keys ``before`` and ``after``. Their values are dicts from device name to
               `ipygpumem.core.reading.DeviceReading` counters.
``curves``     Dict from curve name to a dict with the keys ``device`` (device index), ``time_us`` and ``bytes`` (lists
               with one item per sample). The names are ``device used`` and ``outside PyTorch``, followed by the device
               name if there are several devices. Without samples, the dict is empty.
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
    """Return all file names in the stacks of allocations and live blocks."""
    # iterators instead of nested loops, because there may be millions of frames
    events = chain.from_iterable(snapshot.get("device_traces", ()))
    allocated = (event["frames"] for event in events if event["action"] == "alloc" and "frames" in event)
    blocks = chain.from_iterable(map(itemgetter("blocks"), snapshot.get("segments", ())))
    live = (block["frames"] for block in blocks if block.get("frames"))
    return set(map(itemgetter("filename"), chain.from_iterable(chain(allocated, live))))
