"""Who else is on the cards: after a measurement, and now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.errors import DeviceError, NvmlError, first_line
from ipygpumem.features.processes.model import DeviceProcesses, OtherProcess, other_process_changes
from ipygpumem.measurement.session import current
from ipygpumem.sources.nvml import Nvml
from ipygpumem.sources.process_names import own_pid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.reading import DeviceReading, Reading
    from ipygpumem.core.report import DeviceReport, Report
    from ipygpumem.features.processes.model import Event, OtherProcessChange
    from ipygpumem.sources.device import Device
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["Processes", "other_processes_by_device", "processes", "with_other_processes"]

_EARLY = 1.0
"""Seconds within which a process that came into the list with a cell began with it."""


class Processes(tuple[DeviceProcesses, ...]):
    """Every card with everybody on it; at the end of a cell, a table."""

    __slots__ = ()

    def __str__(self) -> str:
        """As text."""
        from ipygpumem.display.table import text_tables
        from ipygpumem.features.processes.table import processes_tables

        return text_tables(processes_tables(self))

    def __repr__(self) -> str:
        """As `str`: an object at the end of a cell is to be read."""
        return str(self)

    def _repr_html_(self) -> str:
        from ipygpumem.display.html import html_tables
        from ipygpumem.features.processes.table import processes_tables

        return html_tables(processes_tables(self))


def processes(*, device: Iterable[str | int] | None = None) -> Processes:
    """Every process on this process's cards now: whose it is, what it has, and as far as one may know what it runs.

    Of other users' processes the program's name is all there is. Where this process has not started CUDA the machine's
    cards are told of, and ``device`` counts them as nvidia-smi does.

    Args:
        device: Names of the devices (``"cuda:0"``, 0); None for all.

    Raises:
        DeviceError: No such device here.
        NvmlError: Nobody can tell: there is no driver, or it refuses.
    """
    monitor = current().monitor
    names = None if device is None else monitor.parse_devices(str(one) for one in device)
    if monitor.find_devices() is None:
        return Processes(_every_card(monitor, names))
    reading = monitor.read(busy=False)
    wanted = (card for card in monitor.devices.values() if names is None or card.name in names)
    return Processes(
        replace(_card(monitor, card, one), label=card.label, source=_source(one))
        for card in wanted
        for one in [reading.devices.get(card.name)]
    )


def _source(reading: DeviceReading | None) -> str:
    told = "" if reading is None else reading.source or ""
    return "" if "NVML" in told else told


def _card(monitor: DeviceMonitor, card: Device, reading: DeviceReading | None) -> DeviceProcesses:
    own = None if reading is None else reading.process
    number = card.own
    try:
        entries = card.entries()
    except NvmlError as error:
        return DeviceProcesses(card.name, own, None, (), None if reading is None else reading.in_use, why=str(error))
    if number is not None and own is not None:
        entries.pop(number, None)
        unattributed = None if reading is None else reading.unattributed
        # the same instant for all, so that they add up
        listed = dict(() if reading is None else reading.listed) or entries
        why = (
            ""
            if monitor.has_local_pids(card)
            else f"pids are not of this PID namespace: this process is {number} there"
        )
        return DeviceProcesses(
            card.name,
            own,
            number,
            monitor.identify(card, listed.items()),
            None if reading is None else reading.in_use,
            unattributed,
            why,
        )
    context = reading is not None and reading.context
    why = f"which entry is this process's is not known: {card.why}" if context else "this process is not on this card"
    neighbours = tuple(map(_perhaps_ours, monitor.identify(card, entries.items())))
    return DeviceProcesses(card.name, own, None, neighbours, None if reading is None else reading.in_use, why=why)


def _perhaps_ours(one: OtherProcess) -> OtherProcess:
    """Of a list in which our own entry is not known, the entry that has our number is not called a neighbour."""
    if one.pid != own_pid():
        return one
    return OtherProcess(one.pid, one.amount, why="this process, if NVML's numbers are this system's")


def _every_card(monitor: DeviceMonitor, names: tuple[str, ...] | None) -> tuple[DeviceProcesses, ...]:
    nvml = Nvml()
    found = []
    handles = list(nvml.handles())
    for name in names or ():
        if int(name.rpartition(":")[2]) >= len(handles):
            raise DeviceError(f"there is no card {name.rpartition(':')[2]}: this machine has {len(handles)}")
    for index, (label, handle) in enumerate(handles):
        if names is not None and f"cuda:{index}" not in names:
            continue
        try:
            entries, memory = nvml.processes(handle, graphics=True), nvml.memory(handle)
        except NvmlError as error:
            found.append(DeviceProcesses(f"card {index}", None, None, (), why=str(error), label=label))
            continue
        directory = monitor.process_directory
        neighbours = [directory.lookup(pid, amount, trusted=False) for pid, amount in entries.items()]
        found.append(
            DeviceProcesses(
                f"card {index}",
                0,
                None,
                tuple(sorted(neighbours, key=lambda one: (-(one.amount or 0), one.pid))),
                memory.used - (memory.reserved or 0),
                why="this process has not started CUDA: its own devices may be counted otherwise",
                label=label,
            )
        )
    return tuple(found)


def other_processes_by_device(reading: Reading) -> dict[str, tuple[OtherProcess, ...]]:
    """The other processes of a reading by name, for each device."""
    monitor = current().monitor
    return {
        card.name: monitor.identify(card, reading.devices[card.name].listed)
        for card in monitor.devices.values()
        if card.name in reading.devices and reading.devices[card.name].listed
    }


def with_other_processes(report: Report, *, standing: bool = False) -> Report:
    """A report with the other processes that moved meanwhile; ``standing``: and those that did not."""
    monitor = current().monitor
    lists = (
        (one.before.listed is one.after.listed, monitor.has_recorded_processes(one.after))
        for one in report.devices.values()
    )
    if not standing and all(still and met for still, met in lists):
        return report
    try:
        found = _moved(report, monitor, standing=standing)
    except Exception as error:  # names are no reason to lose a report
        return replace(report, notes=(*report.notes, f"other processes have no names: {first_line(error)}"))
    devices = {name: _without_list(device) for name, device in report.devices.items()}
    return replace(report, devices=devices, neighbours=found)


def _without_list(device: DeviceReport) -> DeviceReport:
    """Whoever moved is told with the report: ten thousand of them need no lists of all."""
    before, after = device.before, device.after
    if not before.listed and not after.listed:
        return device
    return replace(device, before=replace(before, listed=()), after=replace(after, listed=()))


def _moved(report: Report, monitor: DeviceMonitor, *, standing: bool) -> tuple[OtherProcessChange, ...]:
    found: list[OtherProcessChange] = []
    for card in monitor.devices.values():
        device = report.devices.get(card.name)
        if device is None:
            continue
        trusted = monitor.has_local_pids(card)

        def who(pid: int, listed: Event, *, trusted: bool = trusted) -> tuple[OtherProcess, Event]:
            return _became(monitor, pid, listed, report.time, trusted=trusted)

        found += other_process_changes(device, who, standing=standing)
    monitor.record_processes({name: device.after for name, device in report.devices.items()})
    return tuple(found)


def _became(
    monitor: DeviceMonitor, pid: int, listed: Event, start: float, *, trusted: bool
) -> tuple[OtherProcess, Event]:
    """Who a process of a list is, and whether it came or left with its life."""
    if listed == "left":
        neighbour, lives = monitor.process_directory.lookup_ended(pid, trusted=trusted)
        return neighbour, "left" if lives or neighbour.began is None else "ended"
    neighbour = monitor.process_directory.lookup(pid, trusted=trusted)
    late = neighbour.began is not None and neighbour.began >= start - _EARLY
    return neighbour, "began" if listed and late else listed
