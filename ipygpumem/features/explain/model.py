"""Waterfall model: the steps from memory usage in nvidia-smi to ``torch.cuda.memory_allocated()``.

The parts between two totals add up exactly to the difference of the totals. Separate parts represent memory that cannot
be attributed and, as a negative value, memory that is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.serialization import PlainData
from ipygpumem.core.units import VISIBLE, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.reading import HostReading

Kind = Literal["total", "driver", "others", "unattributed", "outside", "cache", "tensors"]
"""Kind of memory of a step, which determines the color of its bar. ``total`` denotes a total instead of a part."""

NVIDIA_SMI = "nvidia-smi shows"
LISTED_TWICE = "listed twice"
RELEASABLE = "cached, can be freed"
_NAMES: dict[Kind, str] = {
    "others": "other processes",
    "unattributed": "unattributed",
    "outside": "outside PyTorch in this process",
    "cache": "PyTorch's cache",
}
_HOST_NAMES: dict[Kind, str] = {
    "others": "other processes and the system",
    "outside": "other memory of this process",
}


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """Step of a waterfall: its size ``amount`` in bytes, None if unknown, and ``todo``, advice on reducing it."""

    label: str
    kind: Kind
    amount: int | None
    grade: Grade
    todo: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall(PlainData):
    """Memory usage of one device, or of main memory (``host``); ``label`` is the product name.

    ``steps`` contains totals in decreasing order, with parts between them.
    """

    device: str
    label: str
    steps: tuple[WaterfallStep, ...]
    notes: tuple[str, ...] = ()

    written_properties = ("summary",)

    @property
    def title(self) -> str:
        """Device and product name."""
        return f"{self.device}, {self.label}" if self.label else self.device

    @property
    def totals(self) -> list[WaterfallStep]:
        """Steps that are totals, from the whole device to the tensors."""
        return [step for step in self.steps if step.kind == "total"]

    @property
    def summary(self) -> str:
        """Summary of the waterfall in two sentences."""
        end = self.steps[-1]
        start = next((step for step in self.steps if step.label == NVIDIA_SMI), self.steps[0])
        for step in (start, end):
            if step.amount is None:
                return f"{self.device}: {step.label}: unknown ({step.grade.reason})"
        text = f"{self.device}: {start.label} {size(_nbytes(start))}, of which {size(_nbytes(end))} are {end.label}."
        parts = self.steps[self.steps.index(start) + 1 :]
        sums = {kind: sum(_nbytes(step) for step in parts if step.kind == kind) for kind in _NAMES}
        phrases = [self._part(kind, nbytes) for kind, nbytes in sums.items() if abs(nbytes) >= VISIBLE]
        releasable = next((step for step in parts if step.label == RELEASABLE), None)
        if releasable is not None and phrases:
            phrases[-1] += f", of which torch.cuda.empty_cache() frees {size(_nbytes(releasable))}"
        return f"{text} The rest: {'; '.join(phrases)}." if phrases else text

    def _part(self, kind: Kind, nbytes: int) -> str:
        if kind == "unattributed" and nbytes < 0:
            return f"{size(-nbytes)} {LISTED_TWICE}"
        if kind == "outside" and any(step.grade.trust == "device" for step in self.steps):
            return f"{size(nbytes)} outside PyTorch in this or other processes"
        return f"{size(nbytes)} {_HOST_NAMES.get(kind, '') if self.device == 'host' else _NAMES[kind]}"


def _nbytes(step: WaterfallStep) -> int:
    return step.amount or 0


def host_waterfall(reading: HostReading, tensors: int, notes: Iterable[str] = ()) -> Waterfall:
    """Return the waterfall of main memory. ``tensors`` is the total size of CPU tensors in bytes."""
    steps = []
    resident = grade("exact", "resident memory of this process")
    if reading.total is not None and reading.available is not None:
        used = reading.total - reading.available
        steps.append(
            WaterfallStep("machine used", "total", used, grade("derived", "memory of the machine not available"))
        )
        if reading.rss is not None:
            accuracy = grade("derived", "the difference; shared pages count for each process")
            steps.append(WaterfallStep("other processes and the system", "others", used - reading.rss, accuracy))
    accuracy = resident if reading.rss is not None else grade("unknown", "this system does not report it")
    steps.append(WaterfallStep("this process (RSS)", "total", reading.rss, accuracy))
    if reading.rss is not None:
        difference = reading.rss - tensors
        label = "other memory of this process"
        reason = "the difference: the interpreter, libraries, NumPy arrays, Python objects"
        if difference < 0:
            label, reason = "not resident", "pages of tensors that have not been written yet are not resident"
        steps.append(WaterfallStep(label, "outside", difference, grade("derived", reason)))
    bound = grade("bound", "whole storages of the tensors that were found; unwritten pages use no memory")
    todo = "%gpumem who --host names the holders"
    steps.append(WaterfallStep("tensors in main memory", "total", tensors, bound if tensors else resident, todo))
    return Waterfall("host", "main memory", tuple(steps), tuple(notes))
