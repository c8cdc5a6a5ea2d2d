"""Limits on memory usage, and the check of reports against these limits."""

from __future__ import annotations

from collections.abc import Iterator

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import Accuracy, make_accuracy
from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.core.units import MIB, many, parse_size, precise_size, signed


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A limit that the measured code exceeded, and the measured value.

    Attributes:
        where: Name of the device, or ``host``.
        kind: Limited value: ``peak``, ``held`` or ``outside``.
        amount: Measured change in bytes.
        limit: Limit in bytes.
    """

    where: str
    kind: str
    amount: int
    limit: int

    def __str__(self) -> str:
        amount, limit = signed(self.amount), precise_size(self.limit)
        if amount[1:] == limit or self.amount < MIB // 20:  # avoid "+2.0 GiB, over the limit of 2.0 GiB"
            amount, limit = many(self.amount, "byte", "+"), many(self.limit, "byte")
        metric = "memory outside PyTorch" if self.kind == "outside" else self.kind
        return f"{self.where} {metric} {amount}, over the limit of {limit}"


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits on the growth of memory usage during a measurement, in bytes. None means that there is no limit.

    Attributes:
        peak: Limit on the peak of PyTorch's allocated memory.
        held: Limit on PyTorch's allocated memory at the end.
        outside: Limit on memory outside PyTorch at the end.
        host: Limit on the peak of resident host memory.
    """

    peak: int | None = None
    held: int | None = None
    outside: int | None = None
    host: int | None = None

    @classmethod
    def parse(cls, *limits: str | int | None) -> MemoryLimits:
        names = "limit", "limit_held", "limit_outside", "limit_host"
        return cls(
            *(None if limit is None else parse_size(limit, name) for name, limit in zip(names, limits, strict=False))
        )

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.peak, self.held, self.outside, self.host))

    def check(self, report: Report) -> tuple[tuple[ExceededLimit, ...], tuple[str, ...]]:
        excesses: list[ExceededLimit] = []
        notes: list[str] = []
        for where, kind, amount, limit, accuracy in self._values(report):
            if accuracy.trust == "exact" and amount is not None:
                if amount > limit:
                    excesses.append(ExceededLimit(where, kind, amount, limit))
            elif amount is None or accuracy.trust != "bound" or amount > limit:  # a bound may suffice
                metric = "outside PyTorch" if kind == "outside" else kind
                limited = f"the limit of {precise_size(limit)} ({where}, {metric})"
                notes.append(f"{limited} was not checked: {accuracy.reason}")
        return tuple(excesses), tuple(notes)

    def unmeasured(self, reason: str) -> tuple[str, ...]:
        kinds = (("peak", self.peak), ("held", self.held), ("outside PyTorch", self.outside))
        limits = ", ".join(f"{kind} {precise_size(limit)}" for kind, limit in kinds if limit is not None)
        note = f"limits on GPU memory ({limits}) were not checked because no GPU was measured: {reason}"
        return (note,) if limits else ()

    def _values(self, report: Report) -> Iterator[tuple[str, str, int | None, int, Accuracy]]:
        for name, device in report.devices.items():
            for kind, amount, limit in (
                ("peak", device.peak, self.peak),
                ("held", device.held, self.held),
                ("outside", device.outside, self.outside),
            ):
                if limit is not None:
                    yield name, kind, amount, limit, _accuracy(device, kind)
        if self.host is not None:
            yield "host", "peak", report.host.peak, self.host, report.host.grades["peak"]


def _accuracy(device: DeviceReport, kind: str) -> Accuracy:
    if kind == "outside" and device.started:  # the CUDA context is created once per process and does not count
        return make_accuracy(
            "unknown",
            "CUDA was initialized during the measurement; to exclude the memory of the initialization, call "
            "ipygpumem.preload_pytorch() before the measurement",
        )
    return device.grades[kind]
