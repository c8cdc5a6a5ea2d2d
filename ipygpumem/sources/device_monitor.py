"""Every device under watch, and the reading of all of them at one instant."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from ipygpumem.core.errors import DeviceError, NvmlError, first_line
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.sources import host, pytorch
from ipygpumem.sources.device import Device
from ipygpumem.sources.nvml import Nvml
from ipygpumem.sources.process_names import ProcessDirectory, own_pid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ipygpumem.features.processes.model import OtherProcess

    ReadAllocator: TypeAlias = Callable[[int], pytorch.AllocatorState]

__all__ = ["DeviceMonitor"]

_TRIES = 3
"""A reading is taken again when another thread moved segments between its parts."""
_ASYNC = "cudaMallocAsync: CUDA's default memory pool, of PyTorch and of every other user of that pool"


class DeviceMonitor:
    """The devices of this process, found when CUDA has started and not before.

    ``selected`` names the devices to watch (``"cuda:0"``); None takes every device that this process has a context on.
    """

    def __init__(self, selected: Iterable[str] | None = None) -> None:
        self.selected = None if selected is None else tuple(selected)
        self.devices: dict[int, Device] = {}
        self.process_directory = ProcessDirectory()
        self._met: dict[str, object] = {}
        self._nvml: Nvml | None = None
        self._nvml_why = ""
        self._nvml_tried = False

    def find_devices(self) -> Any | None:
        """Torch, once CUDA has started, with its devices paired to NVML's; None before."""
        torch = pytorch.started()
        if torch is not None and not self.devices:
            self._open_nvml()
            for index in range(torch.cuda.device_count()):
                self.devices[index] = Device.find(torch, index, self._nvml, self._nvml_why)
        return torch

    def _open_nvml(self) -> None:
        if self._nvml_tried:
            return
        self._nvml_tried = True
        try:
            self._nvml = Nvml()
        except NvmlError as error:
            self._nvml_why = str(error)

    def selected_devices(self) -> list[Device]:
        """The cards to read now."""
        if self.selected is not None:
            return [card for card in self.devices.values() if card.name in self.selected]
        return list(self.devices.values())

    def parse_devices(self, names: Iterable[str]) -> tuple[str, ...]:
        """Device words (``0``, ``cuda:0``, ``cuda``) as names.

        Raises:
            DeviceError: No such device here.
        """
        return tuple(dict.fromkeys(self._name(name) for name in names))

    def _name(self, word: str) -> str:
        text = str(word).strip()
        torch = pytorch.module()
        count = torch.cuda.device_count() if torch is not None and pytorch.problem(load=False) is None else 0
        if torch is None and pytorch.importable():
            count = sys.maxsize  # nobody can tell before torch is imported
        number = text.removeprefix("cuda").removeprefix(":") or "0"
        if not number.isdecimal() or (text != number and not text.startswith("cuda")):
            raise DeviceError(f"{text!r} is no device: write cuda:0, or 0")
        if int(number) >= count:
            there = (
                f"this process sees {count} (cuda:0 to cuda:{count - 1})" if count > 1 else f"this process sees {count}"
            )
            raise DeviceError(f"there is no device cuda:{number}: {there}")
        return f"cuda:{int(number)}"

    def other_processes(self, index: int) -> tuple[OtherProcess, ...]:
        """Other processes on a device, the largest first; none where they cannot be told from this one."""
        card = self.devices.get(index)
        if card is None or card.own is None:
            return ()
        try:
            entries = card.entries()
        except NvmlError:
            return ()
        entries.pop(card.own, None)
        return self.identify(card, entries.items())

    def identify(self, card: Device, listed: Iterable[tuple[int, int | None]]) -> tuple[OtherProcess, ...]:
        """Entries of a card's list by name, the largest first."""
        trusted = self.has_local_pids(card)
        found = [self.process_directory.lookup(pid, amount, trusted=trusted) for pid, amount in listed]
        return tuple(sorted(found, key=lambda one: (-(one.amount or 0), one.pid)))

    def has_local_pids(self, card: Device) -> bool:
        """Whether the numbers in a card's list are those of this system: our own entry stands under our own."""
        owns = {one.own for one in (card, *self.devices.values())} - {None}
        return owns == {own_pid()}

    def record_processes(self, devices: Mapping[str, DeviceReading]) -> None:
        """ReadAllocator at processes that are new on a card, so that they can be named once they have ended."""
        for card in self.devices.values():
            device = devices.get(card.name)
            if device is not None and not self.has_recorded_processes(device):
                self.process_directory.record(device.listed, trusted=self.has_local_pids(card))
                self._met[card.name] = device.listed

    def has_recorded_processes(self, device: DeviceReading) -> bool:
        """Whether everybody on a device was looked at, as far as the very same list says."""
        return not device.listed or self._met.get(device.name) is device.listed

    def read(
        self, *, available: bool = False, busy: bool = True, read_allocator: ReadAllocator | None = None
    ) -> Reading:
        """Every counter now. Never raises: what fails is None with its reason.

        ``available`` and ``busy`` ask for what costs and is not always needed. ``read_allocator`` reads the allocator of one
        device, where its caller has more to do with the counters at that moment.
        """
        torch = self.find_devices()
        devices: dict[str, DeviceReading] = {}
        pinned = None
        if torch is not None:
            capturing = pytorch.capturing(torch)
            for card in self.selected_devices():
                devices[card.name] = self._read_card(torch, card, read_allocator, capturing=capturing, busy=busy)
            pinned = pytorch.pinned(torch)
        return Reading(time=time.time(), devices=devices, host=host.read_host(pinned, available=available))

    def _read_card(
        self, torch: Any, card: Device, read_allocator: ReadAllocator | None, *, capturing: bool, busy: bool
    ) -> DeviceReading:
        try:
            if not card.verified and not capturing and pytorch.has_context(torch, card.index):
                card.verify(torch, _reserved(torch, card))
            driver_reading = card.read_driver(torch, capturing=capturing, busy=busy)
            state, why = _state(torch, card, read_allocator if driver_reading.context else None)
            # segments unchanged since the last reading did not change between the two parts of this one either
            for _ in range(_TRIES):
                segments = None if state is None else state.segments
                if segments == card.segments:
                    break
                card.segments = segments
                driver_reading = card.read_driver(torch, capturing=capturing, busy=busy)
                state, why = _state(torch, card, None)
            return card.reading(driver_reading, state, why)
        except Exception as error:
            why = first_line(error)
            return DeviceReading(name=card.name, context=True, total=card.total, why=why, torch_why=why)


def _state(torch: Any, card: Device, read_allocator: ReadAllocator | None) -> tuple[pytorch.AllocatorState | None, str]:
    """The allocator's counters, and what is to be said of them."""
    try:
        state = read_allocator(card.index) if read_allocator is not None else pytorch.state(torch, card.index)
    except Exception as error:
        return None, f"this allocator keeps no counters: {first_line(error)}"
    return state, _ASYNC if pytorch.backend(torch) == "cudaMallocAsync" else ""


def _reserved(torch: Any, card: Device) -> int | None:
    state, _ = _state(torch, card, None)
    return None if state is None else state.now.reserved
