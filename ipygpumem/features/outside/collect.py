"""Collector of memory outside PyTorch by library, and the handler of the setting that enables it for all cells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

from ipygpumem.core.errors import CuptiError
from ipygpumem.core.reading import Accuracy, make_accuracy
from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.core.samples import NOISE
from ipygpumem.core.units import difference, duration, signed
from ipygpumem.features.outside.allocation_totals import AllocationOwner, AllocationTotals, RecordingInterval
from ipygpumem.features.outside.cupti_recorder import cupti_recorder
from ipygpumem.features.outside.model import ALLOCATOR, LibraryMemory, OutsideMemory, PoolMemory, balance
from ipygpumem.measurement.measurement import Measurement
from ipygpumem.measurement.plan import Collector, CompletedMeasurement, with_notes
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.library_pools import GRAPHS, STREAMS, PoolReading, pool_readings

_Pools = dict[tuple[str, int], PoolReading]


class OutsideCollector(Collector):
    """Collector of CUPTI's records for one measurement. Without CUPTI, only the counters of memory pools are read."""

    section = "libraries"
    cost = 0.0

    def __init__(self, *, every_cell: bool = False) -> None:
        self._every_cell = every_cell  # report each problem only once
        self._problem = ""
        self._acquired = False
        self._interval: RecordingInterval | None = None
        self._before: _Pools = {}
        self._after: _Pools = {}
        self._pid = os.getpid()

    def attach(self, measurement: Measurement) -> None:
        """Start recording before the first reading so that the measurement excludes CUPTI's own memory."""
        try:
            cupti_recorder().acquire()
            self._acquired = True
        except CuptiError as error:
            self._problem = str(error)
        measurement.observers.append(self)

    def start(self) -> None:
        self._before = _pools()
        if self._acquired:
            try:
                self._interval = cupti_recorder().open_interval()
            except CuptiError as error:
                self._problem = str(error)

    def stop(self) -> None:
        """This method is also called if the measurement could not be started."""
        if os.getpid() != self._pid:
            return
        if not self._after:
            if self._interval is not None:
                with contextlib.suppress(Exception):
                    cupti_recorder().close_interval(self._interval)
            self._after = _pools()
        if self._acquired:
            self._acquired = False
            with contextlib.suppress(Exception):
                cupti_recorder().release()

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:  # noqa: ARG002 (needs no recording)
        libraries, notes = [], []
        confidence = self._confidence()
        if confidence.trust != "exact" and self._is_new_problem(confidence):
            notes.append(f"memory outside PyTorch by library: {confidence.reason}")
        for device in report.devices.values():
            if not device.after.context:
                continue
            index = int(device.name.rpartition(":")[2])
            libraries.append(self._device(device, index, confidence))
            missing_bytes = self._missing(device, index)
            if confidence.trust == "exact" and missing_bytes:
                notes.append(
                    f"{device.name}: the change in reserved memory that CUPTI recorded differs from PyTorch's counter "
                    f"by {signed(missing_bytes)}, possibly because another profiler received some of the records"
                )
        report = replace(_without_redundant_samples(report, libraries), libraries=tuple(libraries))
        return with_notes(report, *notes)

    def _is_new_problem(self, confidence: Accuracy) -> bool:
        if not self._every_cell or confidence.trust != "unknown":
            return True
        known_problems = cupti_recorder().reported_problems
        is_new = confidence.reason not in known_problems
        known_problems.add(confidence.reason)
        return is_new

    def _confidence(self) -> Accuracy:
        interval = self._interval
        if interval is None:
            return make_accuracy("unknown", self._problem or "the measurement was not started")
        if interval.problem:
            return make_accuracy("sampled", f"recording ended early: {interval.problem}")
        if interval.lost:
            return make_accuracy("sampled", "CUPTI dropped records because no buffer was free; values may be too low")
        if interval.seconds > 0:
            return make_accuracy(
                "sampled", f"no recording for {duration(interval.seconds)} while torch.profiler used CUPTI"
            )
        return make_accuracy("exact", "CUPTI's records of allocations")

    def _device(self, device: DeviceReport, index: int, confidence: Accuracy) -> OutsideMemory:
        interval = self._interval or RecordingInterval(0)
        pools = tuple(self._pool_changes(index))
        changes = {pool.name: pool.change for pool in pools}
        shared = bool(device.after.torch_why)  # PyTorch allocates from CUDA's default pool itself
        libraries = [
            LibraryMemory(owner.library, owner.file, owner.memory, **asdict(totals), pooled=owner.pooled)
            for owner, totals in interval.owners.items()
            if owner.device == index and owner.library != ALLOCATOR
        ]
        return balance(
            device,
            libraries,
            pools,
            peak=None if self._interval is None else interval.devices.get(index, AllocationTotals()).peak,
            reserved=None if shared else changes.get(STREAMS),
            graphs=changes.get(GRAPHS),
            seconds=interval.seconds,
            grade=confidence,
        )

    def _pool_changes(self, index: int) -> Iterator[PoolMemory]:
        for (name, device), after in self._after.items():
            if device != index:
                continue
            before = self._before.get((name, device)) or PoolReading(name, device, 0, 0, 0, after.source)
            reserved, used = difference(before.reserved, after.reserved), difference(before.used, after.used)
            now, initial = (after.used, before.used) if after.reserved is None else (after.reserved, before.reserved)
            peak = None
            if after.peak is not None and before.peak is not None and after.peak > before.peak:
                peak = after.peak - (initial or 0)  # a new peak was reached during this measurement
            if reserved or used or peak:
                yield PoolMemory(name, reserved, used, now, peak, make_accuracy("exact", after.source))

    def _missing(self, device: DeviceReport, index: int) -> int:
        """Return the change in reserved memory recorded by CUPTI minus the change counted by PyTorch, in bytes.

        Return 0 if either change is unknown.
        """
        change = difference(device.before.reserved, device.after.reserved)
        if self._interval is None or change is None or device.after.torch_why or allocator.uses_expandable_segments():
            return 0
        recorded_totals = self._interval.owners.get(AllocationOwner.allocator(index), AllocationTotals())
        return recorded_totals.change - change


def _pools() -> _Pools:
    return {(pool.name, pool.device): pool for pool in pool_readings(pytorch.devices_in_use())}


def _without_redundant_samples(report: Report, memory: Iterable[OutsideMemory]) -> Report:
    """Remove sampled peaks of memory outside PyTorch that do not exceed an exact peak from CUPTI or a memory pool."""
    devices = dict(report.devices)
    for outside in memory:
        device = devices.get(outside.device)
        if device is None or device.sampled is None:
            continue
        peaks = [pool.peak for pool in outside.pools if pool.peak is not None and pool.grade.trust == "exact"]
        if outside.grade.trust == "exact" and outside.peak is not None:
            peaks.append(outside.peak + max(outside.idle, 0) + max(outside.rest or 0, 0))
        if peaks and max(peaks) >= device.sampled.change - NOISE:
            devices[outside.device] = replace(device, sampled=None)
    return replace(report, devices=devices)


class OutsideSetting:
    """Handler of the setting ``GPUMem.outside``. If it is enabled, recording remains active between cells."""

    def __init__(self) -> None:
        self._acquired = False

    def apply(self, *, enabled: bool) -> None:
        recorder = cupti_recorder()
        recorder.reported_problems.clear()
        if enabled and not self._acquired:
            try:
                recorder.acquire()
                self._acquired = True
            except CuptiError as error:
                recorder.reported_problems.add(str(error))
                print(f"ipygpumem: memory outside PyTorch cannot be broken down by library: {error}")  # noqa: T201
        elif self._acquired and not enabled:
            self._acquired = False
            recorder.release()

    def remove(self) -> None:
        self._acquired = False
        cupti_recorder().close()
