"""Changes in the memory of one device during a measurement, and the accuracy of each value."""

from __future__ import annotations

from dataclasses import field
from operator import attrgetter

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import Accuracy, DeviceReading, exact_if_known, make_accuracy
from ipygpumem.core.samples import NOISE, OutsidePeak
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import difference, duration, many

_DIFFERENT_SOURCES = "the values at the start and at the end come from different sources, or one of them is missing"
_UNATTRIBUTED = (
    "not attributed to any process: page tables, managed memory, processes that are not visible here (for example in "
    "other containers)"
)
_PROPERTIES = "CUDA's device properties"
_compared = attrgetter(
    *("allocated", "reserved", "active", "process", "used", "driver_reserved", "highest", "mode", "source"),
    *("ooms", "rejections", "retries"),
)


@dataclass(frozen=True, slots=True)
class PeakCounters:
    """The highest value of each allocator counter during a measurement, in bytes.

    Attributes:
        allocated, reserved, active, requested: Peaks of the counters that `AllocatorCounters` describes.
        exact: Whether the peak of ``allocated`` is exact. Otherwise, the peak is an upper bound, because the counters
            were not reset and an earlier peak was higher. ``exact`` does not apply to the other three peaks, which can
            be upper bounds if the counters were not reset.
    """

    allocated: int
    reserved: int
    active: int
    requested: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class DeviceReport(Serializable):
    """Changes in the memory of one device during a measurement, in bytes. Unknown values are None (see `grades`).

    Attributes:
        before, after: Readings at the start and at the end of the measurement.
        high: Peaks of the allocator counters; None if they could not be read.
        sampled: Lower bound on peak memory outside PyTorch; None unless it exceeds both readings by more than 16 MiB.
        unsampled: Reason why samples are missing; empty if none are missing.
    """

    before: DeviceReading
    after: DeviceReading
    high: PeakCounters | None = field(default=None, metadata={"key": "peaks"})
    sampled: OutsidePeak | None = None
    unsampled: str = ""

    written_properties = (
        *("held", "peak", "cached", "pending", "outside", "outside_peak", "others", "unattributed", "process"),
        *("used", "total", "started", "ooms", "rejections", "retries", "grades"),
    )

    @property
    def name(self) -> str:
        """Name of the device, such as ``cuda:0``."""
        return self.after.name

    @property
    def held(self) -> int | None:
        """Allocated memory at the end minus the allocated memory at the start."""
        return difference(self.before.allocated, self.after.allocated)

    @property
    def peak(self) -> int | None:
        """Peak allocated memory minus the allocated memory at the start."""
        if self.high is None or self.before.allocated is None:
            return None
        return self.high.allocated - self.before.allocated

    @property
    def pending(self) -> int | None:
        """Change in the total size of freed blocks that another stream may still use."""
        return difference(self.before.pending, self.after.pending)

    @property
    def cached(self) -> int | None:
        """Change in the size of PyTorch's cache."""
        return difference(self.before.cached, self.after.cached)

    @property
    def process_wide(self) -> bool:
        """Whether both readings contain this process's memory usage. If so, `outside` excludes other processes."""
        return self.before.process is not None and self.after.process is not None

    @property
    def outside(self) -> int | None:
        """Change in memory outside PyTorch. With grade ``device``, it includes changes by other processes."""
        if self.process_wide:
            return difference(self.before.outside, self.after.outside)
        if not self._comparable:
            return None
        return difference(self.before.device_outside, self.after.device_outside)

    @property
    def outside_peak(self) -> int | None:
        """Lower bound on peak memory outside PyTorch, relative to the start; None if no bound is known.

        The value may include the memory of a process that ran only during the measurement or, if per-process memory
        usage is unknown, of any other process. See `ipygpumem.core.samples`.
        """
        bounds = [self.accounting_bound, None if self.sampled is None else self.sampled.change]
        return max((bound for bound in bounds if bound), default=None)

    @property
    def accounting_bound(self) -> int | None:
        """Lower bound on peak memory outside PyTorch, relative to the start, according to NVML's accounting mode.

        If the peak that NVML records for this process rises during a measurement, the new peak was reached during the
        measurement, and PyTorch's share of it was at most PyTorch's peak reserved memory. The value is None if the
        recorded peak did not rise, if the bound is not more than 16 MiB above the growth between the readings, or if a
        required value is unknown.
        """
        before, after, at_start = self.before.highest, self.after.highest, self.before.outside
        if before is None or after is None or after <= before or at_start is None or self.high is None:
            return None
        peak = after - self.high.reserved - at_start
        return peak if peak > max(self.outside or 0, 0) + NOISE else None

    @property
    def others(self) -> int | None:
        """Change in the memory usage of the other processes in NVML's process list."""
        return difference(self.before.others, self.after.others) if self.process_wide else None

    @property
    def unattributed(self) -> int | None:
        """Change in the memory that NVML does not attribute to any process (see `DeviceReading.unattributed`)."""
        if not self.process_wide or not self._comparable:
            return None
        return difference(self.before.unattributed, self.after.unattributed)

    @property
    def process(self) -> int | None:
        """Change in the memory of this process according to NVML."""
        return difference(self.before.process, self.after.process)

    @property
    def used(self) -> int | None:
        """Device memory in use at the end (not a change), including memory reserved by the driver."""
        return self.after.used

    @property
    def total(self) -> int | None:
        """Total memory of the device (not a change)."""
        return self.after.total

    @property
    def started(self) -> bool:
        """Whether the CUDA context of this process on the device was created during the measurement."""
        return self.after.context and not self.before.context

    @property
    def ooms(self) -> int:
        """Number of allocations that raised an out-of-memory error; 0 if unknown."""
        return difference(self.before.ooms, self.after.ooms) or 0

    @property
    def rejections(self) -> int:
        """Number of allocations rejected because of PyTorch's memory limit; 0 if unknown, as before PyTorch 2.12."""
        return difference(self.before.rejections, self.after.rejections) or 0

    @property
    def retries(self) -> int:
        """Number of failed cudaMalloc calls that caused PyTorch to release its cache and retry; 0 if unknown."""
        return difference(self.before.retries, self.after.retries) or 0

    def has_changed(self, minimum: int) -> bool:
        """Return whether this process changed its memory usage, or its peak, by at least ``minimum`` bytes.

        The result is also true if an allocation failed, or succeeded only after PyTorch had released its cache. If
        per-process memory usage is unknown, changes below 16 MiB outside PyTorch are attributed to other processes.
        """
        same_peak = self.high is None or self.high.allocated == self.before.allocated
        if same_peak and self.sampled is None and minimum > 0 and _compared(self.before) == _compared(self.after):
            return False  # the properties below would take most of the time of a cell that changes nothing
        exact_peak = self.peak if self.high is not None and self.high.exact else None
        metrics = [self.held, exact_peak, self.cached, self.pending, self.outside_peak]
        if self.process_wide or (self.outside is not None and abs(self.outside) >= NOISE):
            metrics.append(self.outside)
        is_changed = any(metric is not None and abs(metric) >= minimum for metric in metrics)
        return is_changed or max(self.ooms, self.rejections, self.retries) > 0

    @property
    def _comparable(self) -> bool:
        return self.before.source == self.after.source and self.after.source is not None

    @property
    def _process_problem(self) -> str:
        return (self.after if self.after.process is None else self.before).why

    @property
    def grades(self) -> dict[str, Accuracy]:
        """Accuracy of each value, by name."""
        torch_problem = self.after.torch_why or self.before.torch_why or "PyTorch's counters are not available"
        torch_accuracy = exact_if_known(self.held, self.after.torch_why or "allocator counter", torch_problem)
        problem = f"per-process memory usage is unknown: {self._process_problem}"
        problem = _DIFFERENT_SOURCES if self.process_wide else problem
        return {
            **dict.fromkeys(("held", "pending", "cached"), torch_accuracy),
            "peak": self._peak_accuracy(torch_accuracy),
            "outside": self._outside_accuracy(),
            "outside_peak": self._outside_peak_accuracy(),
            "others": exact_if_known(self.others, "NVML's list of the processes visible in this container", problem),
            "unattributed": exact_if_known(self.unattributed, _UNATTRIBUTED, problem),
            "used": exact_if_known(self.used, self.after.source or _PROPERTIES, self.after.why),
            "total": exact_if_known(self.total, self.after.source or _PROPERTIES, self.after.why),
        }

    def _peak_accuracy(self, torch_accuracy: Accuracy) -> Accuracy:
        if self.high is not None and self.peak is not None and not self.high.exact:
            reason = "the peak counters were not reset (peaks='untouched'), and an earlier peak was higher"
            return make_accuracy("bound", reason)
        if self.high is None and self.held is not None:
            return make_accuracy("unknown", "the counters could not be read at the end")
        return torch_accuracy

    def _outside_accuracy(self) -> Accuracy:
        if self.outside is None:
            unread = [reading.torch_why for reading in (self.after, self.before) if reading.reserved is None]
            problem = self.after.why if self.after.source is None else _DIFFERENT_SOURCES
            return make_accuracy("unknown", unread[0] if unread else problem)
        if self.process_wide:
            reason = f"NVML's entry for this process minus PyTorch's reserved memory; {self.after.why}"
            return make_accuracy("exact", reason)
        return make_accuracy("device", f"may include the memory of other processes: {self._process_problem}")

    def _outside_peak_accuracy(self) -> Accuracy:
        sampled, accounting_bound = self.sampled, self.accounting_bound
        if accounting_bound is not None and accounting_bound == self.outside_peak:
            return Accuracy("sampled", "peak recorded by NVML for this process, minus PyTorch's peak reserved memory")
        problem = f"; {self.unsampled}" if self.unsampled else ""
        if sampled is None:
            reason = "no sample exceeds the readings at the start and at the end by more than 16 MiB"
            return make_accuracy("unknown", f"{reason}{problem}")
        process = "a process that has ended" if self.process_wide else "another process"
        return Accuracy(
            "sampled",
            f"{many(sampled.count, 'sample')} of the device's memory (first after {duration(sampled.since)}, largest "
            f"gap {duration(sampled.gap)}{problem}), minus an upper bound on PyTorch's reserved memory; the memory may "
            f"belong to this process or to {process}",
        )
