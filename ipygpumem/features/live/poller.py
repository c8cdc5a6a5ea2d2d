"""Following the books while something runs: from a thread, a few times a second.

PyTorch's counters are read with Python's lock held, and wait for the allocator's: so seldom, and only while somebody
looks. NVML's list of processes, whose lock all share, is asked only when memory without PyTorch has moved.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError
from ipygpumem.features.live.model import DeviceLevels, Levels
from ipygpumem.measurement.reserved_bound import Anchor
from ipygpumem.measurement.sampler import SAMPLER
from ipygpumem.sources import allocator, host, pytorch

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceMemory
    from ipygpumem.sources.device import Device
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["Poller"]

_MOVED = 2 << 20
_PAUSE = 1.0
_TRIES = 2


@dataclass(slots=True)
class _Elsewhere:
    """What of a card is neither ours nor the driver's, when that was asked, and what lay without PyTorch then."""

    amount: int
    around: int
    time: float


class Poller:
    """Reads memory levels. Never raises, and makes no CUDA call except to ask whether there is a context."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._elsewhere: dict[int, _Elsewhere] = {}

    def levels(self) -> Levels:
        """The books now."""
        torch = pytorch.started()
        devices = []
        for card in self._monitor.selected_devices() if torch is not None else ():
            try:
                if pytorch.has_context(torch, card.index):
                    devices.append(self._level(card))
            except Exception:
                devices.append(DeviceLevels(card.name))
        reading = host.read_host(None, available=False)
        return Levels(time.time(), tuple(devices), reading.rss, reading.total)

    def _level(self, card: Device) -> DeviceLevels:
        memory: DeviceMemory | None = None
        for _ in range(_TRIES):
            stats = self._stats(card.index)
            memory = _memory(card)
            again = self._stats(card.index)
            if stats is None or again is None or _segments(stats) == _segments(again):
                break
        if stats is None or memory is None:
            return self._partly(card, stats, memory)
        state = allocator.allocator_state(stats)
        driver = memory.reserved or 0
        around = memory.used - driver - state.now.reserved
        elsewhere = self._others(card, memory, around)
        return DeviceLevels(
            card.name,
            state.now.allocated,
            state.now.reserved - state.now.allocated,
            max(around - (elsewhere or 0), 0),
            elsewhere,
            memory.used - driver,
            memory.total - driver,
            own=elsewhere is not None,
        )

    @staticmethod
    def _partly(card: Device, stats: dict[str, Any] | None, memory: DeviceMemory | None) -> DeviceLevels:
        now = None if stats is None else allocator.allocator_state(stats).now
        driver = 0 if memory is None else memory.reserved or 0
        return DeviceLevels(
            card.name,
            None if now is None else now.allocated,
            None if now is None else now.reserved - now.allocated,
            used=None if memory is None else memory.used - driver,
            capacity=card.total if memory is None else memory.total - driver,
        )

    def _stats(self, index: int) -> dict[str, Any] | None:
        begin = time.perf_counter()
        try:
            stats = allocator.stats(index)
        except Exception:  # an allocator that keeps no counters
            return None
        end = time.perf_counter()
        reserved = stats["reserved_bytes"]["all"]
        for window in SAMPLER.windows:
            window.anchor(index, Anchor(begin, end, reserved["current"], reserved["allocated"], reserved["freed"]))
        return stats

    def _others(self, card: Device, memory: DeviceMemory, around: int) -> int | None:
        """What is not this process's; None where nobody can tell."""
        if card.own_pid is None:
            return None
        known, now = self._elsewhere.get(card.index), time.monotonic()
        if known is None or (abs(around - known.around) >= _MOVED and now - known.time >= _PAUSE):
            try:
                own = card.entries().get(card.own_pid)
            except IpyGpuMemError:
                own = None
            if own is None:
                return None if known is None else known.amount
            amount = max(memory.used - (memory.reserved or 0) - own, 0)
            known = self._elsewhere[card.index] = _Elsewhere(amount, around, now)
        return known.amount


def _memory(card: Device) -> DeviceMemory | None:
    if card.nvml is None or card.handle is None:
        return None
    try:
        return card.nvml.memory(card.handle)
    except IpyGpuMemError:
        return None


def _segments(stats: dict[str, Any]) -> int:
    segment = stats["segment"]["all"]
    return int(segment["allocated"] + segment["freed"])
