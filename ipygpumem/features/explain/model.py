"""A waterfall: the steps from the memory that nvidia-smi shows to ``torch.cuda.memory_allocated()``.

It has totals with parts between them, which add up to the difference of the totals, to the byte. Memory that cannot be
attributed is a separate part, and so is memory counted twice, which is negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.to_dict import PlainData
from ipygpumem.core.units import VISIBLE, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.reading import HostReading

Kind = Literal["total", "driver", "others", "unattributed", "outside", "cache", "tensors"]
"""The kind of a step's memory, which decides the color of its bar; ``total`` is not a part."""

NVIDIA_SMI = "nvidia-smi shows"
LISTED_TWICE = "listed twice"
RETURNABLE = "cached, can be freed"
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
    """One line of a waterfall: ``amount`` bytes, None if unknown, and ``todo``, what can be done about them."""

    label: str
    kind: Kind
    amount: int | None
    grade: Grade
    todo: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall(PlainData):
    """One device at one instant, or the main memory of ``host``; ``label`` is the product name.

    The steps are totals from the largest to the smallest, with the parts between them.
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
        """The totals, from the whole device to the tensors."""
        return [step for step in self.steps if step.kind == "total"]

    @property
    def summary(self) -> str:
        """The waterfall in two sentences."""
        end = self.steps[-1]
        start = next((step for step in self.steps if step.label == NVIDIA_SMI), self.steps[0])
        for step in (start, end):
            if step.amount is None:
                return f"{self.device}: {step.label}: unknown ({step.grade.reason})"
        text = f"{self.device}: {start.label} {size(_nbytes(start))}, of which {size(_nbytes(end))} are {end.label}."
        parts = self.steps[self.steps.index(start) + 1 :]
        sums = {kind: sum(_nbytes(step) for step in parts if step.kind == kind) for kind in _NAMES}
        phrases = [self._part(kind, nbytes) for kind, nbytes in sums.items() if abs(nbytes) >= VISIBLE]
        returnable = next((step for step in parts if step.label == RETURNABLE), None)
        if returnable is not None and phrases:
            phrases[-1] += f", of which torch.cuda.empty_cache() frees {size(_nbytes(returnable))}"
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
    """Return the waterfall of main memory, for machines without a GPU; ``tensors``: bytes of CPU tensors."""
    steps = []
    resident = grade("exact", "resident memory of this process")
    if reading.total is not None and reading.available is not None:
        used = reading.total - reading.available
        steps.append(
            WaterfallStep("machine used", "total", used, grade("derived", "memory of the machine not available"))
        )
        if reading.rss is not None:
            accuracy = grade("derived", "the difference; shared pages count in each process")
            steps.append(WaterfallStep("other processes and the system", "others", used - reading.rss, accuracy))
    accuracy = resident if reading.rss is not None else grade("unknown", "this system does not report it")
    steps.append(WaterfallStep("this process (RSS)", "total", reading.rss, accuracy))
    if reading.rss is not None:
        difference = reading.rss - tensors
        label = "everything else in it"
        reason = "the difference: the interpreter, libraries, NumPy arrays, Python objects"
        if difference < 0:
            label, reason = "not resident", "pages of tensors that have not been written yet are not resident"
        steps.append(WaterfallStep(label, "outside", difference, grade("derived", reason)))
    bound = grade("bound", "whole storages of the tensors that were found; unwritten pages use no memory")
    todo = "%gpumem who --host names the holders"
    steps.append(WaterfallStep("tensors in main memory", "total", tensors, bound if tensors else resident, todo))
    return Waterfall("host", "main memory", tuple(steps), tuple(notes))
