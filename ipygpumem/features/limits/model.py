"""Limits of a measurement, and what exceeded them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.units import MIB, in_bytes, parse_size, signed
from ipygpumem.core.units import amount as amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipygpumem.core.report import DeviceReport, HostReport, Report

__all__ = ["ExceededLimit", "Limits"]


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """One figure over its limit, both in bytes. ``kind`` is peak, held or outside; ``where`` a device or ``host``."""

    where: str
    kind: str
    amount: int
    limit: int

    def __str__(self) -> str:
        """As a phrase: ``"cuda:0 peak +3.1 GiB, over the limit of 2.0 GiB"``."""
        amount, limit = signed(self.amount), amount_text(self.limit)
        if amount[1:] == limit or self.amount < MIB // 20:  # 512 bytes too much must not read as 2.0 GiB over 2.0 GiB
            amount, limit = in_bytes(self.amount, "+"), in_bytes(self.limit)
        figure = "memory outside PyTorch" if self.kind == "outside" else self.kind
        return f"{self.where} {figure} {amount}, over the limit of {limit}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a measurement may take at most, in bytes; None is no limit.

    ``peak``, ``held`` and ``outside`` are those of the report, of each device by itself; ``host`` is the peak of this
    process's resident memory. All are changes against the start of the measurement.
    """

    peak: int | None = None
    held: int | None = None
    outside: int | None = None
    host: int | None = None

    @classmethod
    def read(
        cls,
        peak: str | int | None = None,
        held: str | int | None = None,
        outside: str | int | None = None,
        host: str | int | None = None,
    ) -> Limits:
        """Limits from sizes as people write them: ``"2 GiB"``, ``0``.

        Raises:
            OptionError: One is no size, or below zero.
        """
        return cls(*map(_size, (peak, held, outside, host)))

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.peak, self.held, self.outside, self.host))

    def check(self, report: Report) -> tuple[tuple[ExceededLimit, ...], tuple[str, ...]]:
        """Every figure of a report that is over its limit for certain; and, in sentences, what could not be checked."""
        excesses: list[ExceededLimit] = []
        doubts: list[str] = []
        for where, kind, amount, limit, trust in self._figures(report):
            if trust.trust == "exact" and amount is not None:
                if amount > limit:
                    excesses.append(ExceededLimit(where, kind, amount, limit))
            elif amount is None or trust.trust != "bound" or amount > limit:  # at most this, and that is allowed
                word = "outside PyTorch" if kind == "outside" else kind
                doubts.append(f"the limit of {amount_text(limit)} ({where}, {word}) was not checked: {trust.reason}")
        return tuple(excesses), tuple(doubts)

    def unmeasured(self, why: str) -> tuple[str, ...]:
        """The same where there is no GPU to check them on."""
        kinds = (("peak", self.peak), ("held", self.held), ("outside PyTorch", self.outside))
        given = ", ".join(f"{kind} {amount_text(limit)}" for kind, limit in kinds if limit is not None)
        return (f"the limit on GPUs ({given}) was not checked, no GPU was measured: {why}",) if given else ()

    def _figures(self, report: Report) -> Iterator[tuple[str, str, int | None, int, Grade]]:
        for name, device in report.devices.items():
            grades = device.grades
            for kind, amount, limit in (
                ("peak", device.peak, self.peak),
                ("held", device.held, self.held),
                ("outside", device.outside, self.outside),
            ):
                if limit is not None:
                    yield name, kind, amount, limit, _trust(device, kind, grades[kind])
        if self.host is not None:
            yield "host", "peak", report.host.peak, self.host, _host_trust(report.host)


def _size(text: str | int | None) -> int | None:
    if text is None:
        return None
    count = parse_size(text)
    if count < 0:
        raise OptionError(f"a limit is not below zero: {text!r}")
    return count


def _trust(device: DeviceReport, kind: str, trust: Grade) -> Grade:
    """The context that every program needs once is nobody's excess."""
    if kind == "outside" and device.started:
        return grade("unknown", "CUDA itself started meanwhile; ipygpumem.preload_pytorch() before it keeps them apart")
    return trust


def _host_trust(host: HostReport) -> Grade:
    return host.grades["peak"]
