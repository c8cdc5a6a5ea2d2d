"""The processes on a device, and which of them changed during a measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ipygpumem.core.other_process import Event, OtherProcess, OtherProcessChange
from ipygpumem.core.to_dict import PlainData

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.report import DeviceReport


@dataclass(frozen=True, slots=True)
class DeviceProcesses(PlainData):
    """All processes on one device at one instant; sizes in bytes.

    Attributes:
        device: PyTorch's name of the device, or nvidia-smi's index if this process has not initialized CUDA.
        own: The memory of this process; None if its entry is unknown.
        pid: The id of this process in NVML's list; None as above.
        neighbours: The other processes, the largest first.
        used: Memory in use without the driver's reserve, as nvidia-smi shows it if NVML is available.
        unattributed: The part of ``used`` that belongs to no process in the list; None if unknown.
        why: What limits the list.
        label: The device's product name.
        source: Where ``used`` comes from, if not from NVML.
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
    """Return the changed other processes, the largest change first; the changes add up to the device's ``others``.

    ``identify`` returns the process with a pid, and the event if it ``came`` to or ``left`` the device.
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
    """Remove the command line, because reports are stored and shared. Cached, so that reports share one object."""
    return replace(process, amount=None, command="")
