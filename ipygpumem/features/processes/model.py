"""Processes on a device, and changes in their memory usage during a measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.other_process import Event, OtherProcess, OtherProcessChange
from ipygpumem.core.report import DeviceReport
from ipygpumem.core.serialization import Serializable


@dataclass(frozen=True, slots=True)
class DeviceProcesses(Serializable):
    """Processes on one device. Sizes are in bytes.

    Attributes:
        device: Device name in PyTorch; the index in nvidia-smi (``GPU 0``) if this process has not initialized CUDA.
        own: Memory of this process; None if it is unknown.
        pid: PID of this process in NVML's process list; None if the list does not contain it or ``own`` is unknown.
        neighbours: Other processes, in descending order of memory usage.
        used: Memory in use, excluding memory reserved by the driver, as shown by nvidia-smi; None if it is unknown.
        unattributed: Part of ``used`` that is not attributed to any process; None if it is unknown.
        why: Reason why a value is unknown, or a note on the PIDs or the device name; may be empty.
        label: Product name of the device.
        source: Name of the query that returned ``used``; empty for NVML.
    """

    device: str
    own: int | None = None
    pid: int | None = None
    neighbours: tuple[OtherProcess, ...] = ()
    used: int | None = None
    unattributed: int | None = None
    why: str = ""
    label: str = ""
    source: str = ""


def other_process_changes(
    device: DeviceReport, identify: Callable[[int, Event], tuple[OtherProcess, Event]], *, unchanged: bool = False
) -> tuple[OtherProcessChange, ...]:
    """Return the memory changes of other processes in descending order of their absolute values.

    The changes add up to `DeviceReport.others`. The result is empty if the memory usage of other processes is unknown.
    ``unchanged`` specifies whether processes with unchanged memory usage are included. ``identify`` is a function that
    takes a PID and an event, and returns the process and the event, with ``came`` replaced by ``began`` if the process
    started during the measurement, and ``left`` replaced by ``ended`` if the process ended.
    """
    if not device.process_wide or device.before.others is None or device.after.others is None:
        return ()
    before, after = dict(device.before.listed), dict(device.after.listed)
    changes = []
    for pid in before | after:
        old, new = before.get(pid) or 0, after.get(pid) or 0
        event: Event = "came" if pid not in before else "left" if pid not in after else ""
        if old != new or event or unchanged:
            process, event = identify(pid, event)
            changes.append(OtherProcessChange(device.name, _for_report(process), old, new, event))
    return tuple(sorted(changes, key=lambda change: (-abs(change.change), -change.after, change.neighbour.pid)))


@lru_cache(maxsize=256)
def _for_report(process: OtherProcess) -> OtherProcess:
    """Return a copy of a process for a report: without its memory usage, and without its command line for privacy."""
    return replace(process, amount=None, command="")
