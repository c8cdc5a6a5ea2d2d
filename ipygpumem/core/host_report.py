"""Changes in the host memory of this process during a measurement."""

from __future__ import annotations

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import Accuracy, HostReading, make_accuracy
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import difference

_EARLIER_PEAK = "the process reached its peak resident memory before this measurement"
_PROFILED = "includes the memory of torch.profiler's records"
_NOT_REPORTED = make_accuracy("unknown", "the operating system does not report this value")
_RESIDENT = make_accuracy("exact", "resident memory of this process")
_PEAK = make_accuracy("exact", "peak resident memory recorded by the operating system")
_PINNED = make_accuracy("exact", "PyTorch's host allocator")
_PINNED_NOT_COUNTED = make_accuracy(
    "unknown", "CUDA is not initialized or has failed, or this version of PyTorch does not count pinned memory"
)


@dataclass(frozen=True, slots=True)
class HostReport(Serializable):
    """Changes in the host memory of this process during a measurement, in bytes. Unknown values are None.

    Attributes:
        before, after: Readings at the start and at the end of the measurement.
        profiled: Whether torch.profiler was running. Its records use resident memory, so the changes in resident memory
            are then upper bounds.
    """

    before: HostReading
    after: HostReading
    profiled: bool = False

    written_properties = ("held", "peak", "pinned", "grades")

    @property
    def held(self) -> int | None:
        """Change in resident memory."""
        return difference(self.before.rss, self.after.rss)

    @property
    def peak(self) -> int | None:
        """Peak resident memory, relative to resident memory at the start: exact, or an upper bound (see `grades`)."""
        if self.after.peak is None or self.before.rss is None:
            return None
        # Linux updates the recorded peak from per-CPU counters with a delay, so it can be below the current usage
        return max(self.after.peak, self.before.rss, self.after.rss or 0) - self.before.rss

    @property
    def pinned(self) -> int | None:
        """Change in the pinned memory reserved by PyTorch's host allocator."""
        return difference(self.before.pinned, self.after.pinned)

    @property
    def exact(self) -> bool:
        """Whether `peak` is exact.

        It is exact if torch.profiler was not running, and the recorded peak rose or was not higher than the resident
        memory at the start.
        """
        if self.profiled or self.before.peak is None or self.after.peak is None or self.before.rss is None:
            return False
        return self.after.peak > self.before.peak or self.before.peak <= self.before.rss

    @property
    def grades(self) -> dict[str, Accuracy]:
        """Accuracy of each value, by name."""
        held = _NOT_REPORTED if self.held is None else _RESIDENT
        peak = _NOT_REPORTED if self.peak is None else _PEAK
        if self.held is not None and self.profiled:
            held = make_accuracy("bound", _PROFILED)
        if self.peak is not None and not self.exact:
            peak = make_accuracy("bound", _PROFILED if self.profiled else _EARLIER_PEAK)
        pinned = _PINNED_NOT_COUNTED if self.pinned is None else _PINNED
        return {"held": held, "peak": peak, "pinned": pinned}
