"""The question to a measurement: who allocated outside PyTorch, by library."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import CuptiError
from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.samples import NOISE
from ipygpumem.core.units import duration, signed
from ipygpumem.features.outside.cupti_records import outside_records
from ipygpumem.features.outside.libraries import ALLOCATOR
from ipygpumem.features.outside.model import LibraryMemory, OutsideMemory, PoolMemory, balance
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.library_pools import GRAPHS, STREAMS, PoolReading, pool_readings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ipygpumem.core.report import DeviceReport, Report
    from ipygpumem.features.outside.accounts import Owner, Window
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["OutsideQuestion", "exact_first"]

_RECORDS = "CUPTI's record of every allocation"
_Pools = dict[tuple[str, int], PoolReading]


class OutsideQuestion:
    """One measurement's, as an observer of it. Where CUPTI cannot be had the pools' own counts are all there is.

    ``standing``: it is asked of every measurement; why something cannot be had at all is then told once.
    """

    def __init__(self, monitor: DeviceMonitor, *, standing: bool = False) -> None:
        self._monitor = monitor
        self._standing = standing
        self._why = ""
        self._held = False
        self._window: Window | None = None
        self._before: _Pools = {}
        self._after: _Pools = {}
        self._pid = os.getpid()

    def attach(self, measurement: Measurement) -> None:
        """Ask a measurement, before it begins: what CUPTI needs for itself is then there before the first reading."""
        try:
            outside_records().acquire()
            self._held = True
        except CuptiError as error:
            self._why = str(error)
        measurement.observers.append(self)

    def start(self) -> None:
        """The measurement begins."""
        self._before = self._pools()
        if self._held:
            try:
                self._window = outside_records().open()
            except CuptiError as error:
                self._why = str(error)

    def stop(self) -> None:
        """It ends, or does not take place."""
        if os.getpid() != self._pid:
            return
        if self._window is not None and not self._after:
            with contextlib.suppress(Exception):
                outside_records().shut(self._window)
        if not self._after:
            self._after = self._pools()
        if self._held:
            self._held = False
            with contextlib.suppress(Exception):
                outside_records().release()

    def _pools(self) -> _Pools:
        torch = self._monitor.find_devices()
        if torch is None:
            return {}
        devices = [index for index in self._monitor.devices if pytorch.has_context(torch, index)]
        return {(one.name, one.device): one for one in pool_readings(devices)}

    def answer(self, report: Report) -> tuple[tuple[OutsideMemory, ...], tuple[str, ...]]:
        """Each device's, and what is to be said about it."""
        answers, notes = [], []
        accounts = {} if self._window is None else self._window.accounts
        trust = self._grade()
        once = self._standing and trust.trust == "unknown"
        if trust.trust != "exact" and not (once and trust.reason in outside_records().told):
            if once:
                outside_records().told.add(trust.reason)
            notes.append(f"memory outside PyTorch by library: {trust.reason}")
        for device in report.devices.values():
            if not device.after.context:
                continue
            index = int(device.name.rpartition(":")[2])
            answers.append(self._device(device, index, trust))
            missing = self._missing(device, {owner: account.level for owner, account in accounts.items()}, index)
            if trust.trust == "exact" and missing:
                notes.append(
                    f"{device.name}: records do not agree with PyTorch's own count ({signed(missing)} apart): "
                    "another profiler may have taken some"
                )
        return tuple(answers), tuple(notes)

    def _grade(self) -> Grade:
        window = self._window
        if window is None:
            return grade("unknown", self._why or "the measurement did not begin")
        if window.trouble:
            return grade("sampled", f"records until {window.trouble}")
        if window.lost:
            return grade("sampled", "CUPTI had no room for some records: figures are incomplete")
        if window.seconds > 0:
            return grade("sampled", f"for {duration(window.seconds)} torch.profiler had CUPTI to itself")
        return grade("exact", _RECORDS)

    def _device(self, device: DeviceReport, index: int, trust: Grade) -> OutsideMemory:
        window = self._window
        total = None if window is None else window.totals.get(index)
        pools = tuple(self._pool_changes(index))
        held = {one.name: one.change for one in pools}
        shared = bool(device.after.torch_why)  # PyTorch's own books are those of that pool
        return balance(
            device,
            self._libraries(index),
            pools,
            peak=None if window is None else total.peak if total is not None else 0,
            reserved=None if shared else held.get(STREAMS),
            graphs=held.get(GRAPHS),
            seconds=0.0 if window is None else window.seconds,
            grade=trust,
        )

    def _libraries(self, index: int) -> Iterator[LibraryMemory]:
        for owner, one in () if self._window is None else self._window.accounts.items():
            if owner.device == index and owner.library != ALLOCATOR:
                memory: Any = owner.memory
                yield LibraryMemory(
                    owner.library,
                    owner.file,
                    memory,
                    one.level,
                    one.peak,
                    one.allocated,
                    one.freed,
                    one.allocations,
                    owner.pooled,
                )

    def _pool_changes(self, index: int) -> Iterator[PoolMemory]:
        for (name, device), after in self._after.items():
            if device != index:
                continue
            before = self._before.get((name, device)) or PoolReading(name, device, 0, 0, 0, after.source)
            held, used = _minus(after.held, before.held), _minus(after.used, before.used)
            level = before.used if after.held is None else before.held
            peak = None
            if after.peak is not None and before.peak is not None and after.peak > before.peak:
                peak = after.peak - (level or 0)  # a record of this measurement
            now = after.used if after.held is None else after.held
            if held or used or peak:
                yield PoolMemory(name, held, used, now, peak, grade("exact", after.source))

    @staticmethod
    def _missing(device: DeviceReport, levels: Mapping[Owner, int], index: int) -> int:
        """PyTorch's segments by record minus those by its own count; 0 where the two cannot be compared."""
        recorded = sum(level for owner, level in levels.items() if owner.device == index and owner.library == ALLOCATOR)
        before, after = device.before.reserved, device.after.reserved
        if before is None or after is None or device.after.torch_why:
            return 0
        missing = recorded - (after - before)
        return 0 if missing and allocator.uses_expandable_segments() else missing


def exact_first(report: Report, libraries: Iterable[OutsideMemory]) -> Report:
    """The report without sampled peaks that exact ones tell already: those of the records, or a pool's own."""
    devices = dict(report.devices)
    for found in libraries:
        device = devices.get(found.device)
        if device is None or device.sampled is None:
            continue
        exact = [one.peak for one in found.pools if one.peak is not None and one.grade.trust == "exact"]
        if found.grade.trust == "exact" and found.peak is not None:
            exact.append(found.peak + max(found.idle, 0) + max(found.rest or 0, 0))
        if exact and max(exact) >= device.sampled.change - NOISE:
            devices[found.device] = replace(device, sampled=None)
    return replace(report, devices=devices)


def _minus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other
