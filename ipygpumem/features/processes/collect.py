"""List the processes on the devices, and collect their memory changes during a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ipygpumem.core.device_names import split_devices
from ipygpumem.core.errors import DeviceError, NvmlError
from ipygpumem.core.other_process import Event, OtherProcess, OtherProcessChange
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, TableRepr
from ipygpumem.core.units import many
from ipygpumem.features.processes.model import DeviceProcesses, other_process_changes
from ipygpumem.features.processes.table import processes_table
from ipygpumem.measurement.plan import Collector, CompletedMeasurement
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.device import Device
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.sources.host import own_pid
from ipygpumem.sources.nvml import Nvml

_START_TOLERANCE = 1.0  # tolerance in seconds when determining whether a process started during the measurement


class Processes(TableRepr, tuple[DeviceProcesses, ...]):
    """The processes on each device, displayed as one table per device."""

    __slots__ = ()
    __repr__ = TableRepr.__str__

    def tables(self) -> list[Table]:
        return [processes_table(device) for device in self]


def processes(*, device: Iterable[str | int] | None = None) -> Processes:
    """List the processes on the devices with their memory usage, user and command line.

    For processes of other users, the program name replaces the command line. If CUDA is not initialized, the
    devices are those of the machine, and ``device`` refers to their indices as shown by nvidia-smi.

    Args:
        device: Names or indices of the devices (``"cuda:0"``, 0), or None for all devices.

    Raises:
        DeviceError: A device does not exist.
        NvmlError: CUDA is not initialized, and NVML cannot list the devices.
    """
    monitor = current().monitor
    names = None if device is None else monitor.parse_devices(split_devices(device, "device"))
    if monitor.find_devices() is None:
        return Processes(_all_devices(monitor, names))
    readings = monitor.read(busy=False).devices
    selected_devices = (device for device in monitor.devices.values() if names is None or device.name in names)
    return Processes(_device_processes(monitor, device, readings.get(device.name)) for device in selected_devices)


def _device_processes(monitor: DeviceMonitor, device: Device, reading: DeviceReading | None) -> DeviceProcesses:
    info = DeviceProcesses(device.name, label=device.label)
    if reading is not None:
        source = reading.source or ""
        info = replace(info, own=reading.process, used=reading.in_use, source="" if "NVML" in source else source)
    try:
        entries = device.entries()
    except NvmlError as error:
        return replace(info, why=str(error))
    pid = device.own_pid
    if reading is not None and pid is not None and info.own is not None:
        entries.pop(pid, None)
        # use the list from the reading, so that all values add up
        neighbours = monitor.identify(device, reading.listed or entries.items())
        foreign = f"the PIDs are those of another PID namespace, in which this process has PID {pid}"
        why = "" if monitor.has_local_pids(device) else foreign
        return replace(info, pid=pid, neighbours=neighbours, unattributed=reading.unattributed, why=why)
    why = "this process does not use this device"
    if reading is not None and reading.context:
        why = f"the entry of this process in NVML's process list is unknown: {device.reason}"
    neighbours = tuple(
        OtherProcess(process.pid, process.amount, why="probably this process") if process.pid == own_pid() else process
        for process in monitor.identify(device, entries.items())
    )
    return replace(info, neighbours=neighbours, why=why)


def _all_devices(monitor: DeviceMonitor, names: tuple[str, ...] | None) -> Iterator[DeviceProcesses]:
    nvml = Nvml()
    handles = nvml.handles()
    for name in names or ():
        if int(name.rpartition(":")[2]) >= len(handles):
            available = many(len(handles), "device")
            raise DeviceError(f"there is no device {name.rpartition(':')[2]}: this machine has {available}")
    for index, (label, handle) in enumerate(handles):
        if names is not None and f"cuda:{index}" not in names:
            continue
        info = DeviceProcesses(f"GPU {index}", label=label)
        try:
            entries, memory = nvml.processes(handle, graphics=True), nvml.memory(handle)
        except NvmlError as error:
            yield replace(info, why=str(error))
            continue
        yield replace(
            info,
            own=0,
            neighbours=monitor.process_info_cache.lookup_all(entries.items(), trusted=False),
            used=memory.used - (memory.reserved or 0),
            why="CUDA is not initialized in this process, so PyTorch may number the devices differently",
        )


def other_processes_by_device(reading: Reading) -> dict[str, tuple[OtherProcess, ...]]:
    monitor = current().monitor
    return {name: monitor.other_processes(device) for name, device in reading.devices.items() if device.listed}


class ProcessesCollector(Collector):
    """Collector of the memory changes of other processes. If ``unchanged`` is true, it includes changes of 0 bytes."""

    section = "names of other processes"
    needs_devices = True

    def __init__(self, *, unchanged: bool) -> None:
        self._unchanged = unchanged

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:  # noqa: ARG002 (needs no recording)
        monitor = current().monitor
        if not self._unchanged and all(
            device.before.listed is device.after.listed and monitor.has_recorded_processes(device.after)
            for device in report.devices.values()
        ):
            return report
        changes = _changes(report, monitor, unchanged=self._unchanged)
        devices = {  # drop the complete lists, because thousands of reports may be stored
            name: replace(device, before=replace(device.before, listed=()), after=replace(device.after, listed=()))
            for name, device in report.devices.items()
        }
        return replace(report, devices=devices, neighbours=changes)


def _changes(report: Report, monitor: DeviceMonitor, *, unchanged: bool) -> tuple[OtherProcessChange, ...]:
    cache = monitor.process_info_cache
    changes: list[OtherProcessChange] = []
    for device in [device for device in monitor.devices.values() if device.name in report.devices]:
        local = monitor.has_local_pids(device)

        def identify(pid: int, event: Event, *, local: bool = local) -> tuple[OtherProcess, Event]:
            if event == "left":
                process, is_running = cache.lookup_ended(pid, trusted=local)
                return process, "left" if is_running or process.began is None else "ended"
            process = cache.lookup(pid, trusted=local)
            has_started = process.began is not None and process.began >= report.time - _START_TOLERANCE
            return process, "began" if event and has_started else event

        changes += other_process_changes(report.devices[device.name], identify, unchanged=unchanged)
    # recorded so that processes can be named after they have ended
    monitor.record_processes({name: device_report.after for name, device_report in report.devices.items()})
    return tuple(changes)
