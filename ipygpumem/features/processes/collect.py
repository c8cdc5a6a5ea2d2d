"""Who else is on the cards: after a measurement, and now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.errors import DeviceError, NvmlError, first_line
from ipygpumem.features.processes.model import CardProcesses, Neighbour, neighbour_changes
from ipygpumem.measurement.session import current
from ipygpumem.sources.nvml import Nvml
from ipygpumem.sources.process_names import own_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.reading import DeviceReading, Reading
    from ipygpumem.core.report import DeviceReport, Report
    from ipygpumem.features.processes.model import Event, NeighbourChange
    from ipygpumem.sources.device import Card
    from ipygpumem.sources.device_monitor import Watch

__all__ = ["Processes", "listed_neighbours", "processes", "with_neighbours"]

_EARLY = 1.0
"""Seconds within which a process that came into the list with a cell began with it."""


class Processes(tuple[CardProcesses, ...]):
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
    watch = current().watch
    names = None if device is None else watch.check(str(one) for one in device)
    if watch.find() is None:
        return Processes(_every_card(watch, names))
    reading = watch.read(busy=False)
    wanted = (card for card in watch.cards.values() if names is None or card.name in names)
    return Processes(
        replace(_card(watch, card, one), label=card.label, source=_source(one))
        for card in wanted
        for one in [reading.devices.get(card.name)]
    )


def _source(reading: DeviceReading | None) -> str:
    told = "" if reading is None else reading.source or ""
    return "" if "NVML" in told else told


def _card(watch: Watch, card: Card, reading: DeviceReading | None) -> CardProcesses:
    own = None if reading is None else reading.process
    number = card.own
    try:
        entries = card.entries()
    except NvmlError as error:
        return CardProcesses(card.name, own, None, (), None if reading is None else reading.in_use, why=str(error))
    if number is not None and own is not None:
        entries.pop(number, None)
        unattributed = None if reading is None else reading.unattributed
        # the same instant for all, so that they add up
        listed = dict(() if reading is None else reading.listed) or entries
        why = "" if watch.trusted(card) else f"pids are not of this PID namespace: this process is {number} there"
        return CardProcesses(
            card.name,
            own,
            number,
            watch.named(card, listed.items()),
            None if reading is None else reading.in_use,
            unattributed,
            why,
        )
    context = reading is not None and reading.context
    why = f"which entry is this process's is not known: {card.why}" if context else "this process is not on this card"
    neighbours = tuple(map(_perhaps_ours, watch.named(card, entries.items())))
    return CardProcesses(card.name, own, None, neighbours, None if reading is None else reading.in_use, why=why)


def _perhaps_ours(one: Neighbour) -> Neighbour:
    """Of a list in which our own entry is not known, the entry that has our number is not called a neighbour."""
    if one.pid != own_number():
        return one
    return Neighbour(one.pid, one.amount, why="this process, if NVML's numbers are this system's")


def _every_card(watch: Watch, names: tuple[str, ...] | None) -> tuple[CardProcesses, ...]:
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
            found.append(CardProcesses(f"card {index}", None, None, (), why=str(error), label=label))
            continue
        directory = watch.directory
        neighbours = [directory.who(pid, amount, trusted=False) for pid, amount in entries.items()]
        found.append(
            CardProcesses(
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


def listed_neighbours(reading: Reading) -> dict[str, tuple[Neighbour, ...]]:
    """The other processes of a reading by name, for each device."""
    watch = current().watch
    return {
        card.name: watch.named(card, reading.devices[card.name].listed)
        for card in watch.cards.values()
        if card.name in reading.devices and reading.devices[card.name].listed
    }


def with_neighbours(report: Report, *, standing: bool = False) -> Report:
    """A report with the other processes that moved meanwhile; ``standing``: and those that did not."""
    watch = current().watch
    lists = ((one.before.listed is one.after.listed, watch.has_met(one.after)) for one in report.devices.values())
    if not standing and all(still and met for still, met in lists):
        return report
    try:
        found = _moved(report, watch, standing=standing)
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


def _moved(report: Report, watch: Watch, *, standing: bool) -> tuple[NeighbourChange, ...]:
    found: list[NeighbourChange] = []
    for card in watch.cards.values():
        device = report.devices.get(card.name)
        if device is None:
            continue
        trusted = watch.trusted(card)

        def who(pid: int, listed: Event, *, trusted: bool = trusted) -> tuple[Neighbour, Event]:
            return _became(watch, pid, listed, report.time, trusted=trusted)

        found += neighbour_changes(device, who, standing=standing)
    watch.meet({name: device.after for name, device in report.devices.items()})  # whoever ends later is known by then
    return tuple(found)


def _became(watch: Watch, pid: int, listed: Event, start: float, *, trusted: bool) -> tuple[Neighbour, Event]:
    """Who a process of a list is, and whether it came or left with its life."""
    if listed == "left":
        neighbour, lives = watch.directory.was(pid, trusted=trusted)
        return neighbour, "left" if lives or neighbour.began is None else "ended"
    neighbour = watch.directory.who(pid, trusted=trusted)
    late = neighbour.began is not None and neighbour.began >= start - _EARLY
    return neighbour, "began" if listed and late else listed
