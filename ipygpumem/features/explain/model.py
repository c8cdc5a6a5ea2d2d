"""Data classes for waterfall charts that lead from nvidia-smi's value to ``torch.cuda.memory_allocated()``.

The parts between two known totals add up exactly to their difference. Memory that is counted twice is a negative part.
This module also computes the cached memory that ``torch.cuda.empty_cache()`` would release.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ipygpumem.core.reading import Accuracy, HostReading, exact_if_known, make_accuracy
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import VISIBLE, size

Kind = Literal["total", "driver", "others", "unattributed", "outside", "cache", "tensors"]
"""Kind of a step: ``total`` or, for a part, the kind of its memory. It determines the color of the bar."""

NVIDIA_SMI = "nvidia-smi shows"
LISTED_TWICE = "listed twice"
RELEASABLE = "cached, can be released"
_NAMES: dict[Kind, str] = {
    "others": "other processes",
    "unattributed": "unattributed",
    "outside": "outside PyTorch in this process",
    "cache": "PyTorch's cache",
}
_HOST_NAMES: dict[Kind, str] = {"others": "other processes and the system", "outside": "other memory of this process"}


@dataclass(frozen=True, slots=True)
class ExplanationStep:
    """A total or a part in a waterfall chart.

    ``amount`` is in bytes (None if unknown), ``todo`` is advice on reducing it or a short explanation, and ``note`` is
    additional information.
    """

    label: str
    kind: Kind
    amount: int | None
    grade: Accuracy
    todo: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class DeviceExplanation(Serializable):
    """Waterfall chart of the memory usage of one device or of the host.

    Attributes:
        device: Name of the device, or ``host``.
        label: Product name of the device.
        steps: Totals, from the memory in use on the device or the host to that of the tensors, and the parts between
            them.
    """

    device: str
    label: str
    steps: tuple[ExplanationStep, ...]
    notes: tuple[str, ...] = ()

    written_properties = ("summary",)

    @property
    def title(self) -> str:
        return f"{self.device}, {self.label}" if self.label else self.device

    @property
    def totals(self) -> list[ExplanationStep]:
        return [step for step in self.steps if step.kind == "total"]

    @property
    def summary(self) -> str:
        end = self.steps[-1]
        start = next((step for step in self.steps if step.label == NVIDIA_SMI), self.steps[0])
        for step in (start, end):
            if step.amount is None:
                return f"{self.device}: {step.label}: unknown ({step.grade.reason})"
        usage = f"{start.label} {size(start.amount or 0)}, of which {size(end.amount or 0)} is {end.label}"
        parts = self.steps[self.steps.index(start) + 1 :]
        sums = {kind: sum(step.amount or 0 for step in parts if step.kind == kind) for kind in _NAMES}
        phrases = [self._part(kind, nbytes) for kind, nbytes in sums.items() if abs(nbytes) >= VISIBLE]
        releasable = next((step for step in parts if step.label == RELEASABLE), None)
        if releasable is not None and phrases:
            phrases[-1] += f", of which torch.cuda.empty_cache() would release {size(releasable.amount or 0)}"
        remainder = f" The rest: {'; '.join(phrases)}." if phrases else ""
        return f"{self.device}: {usage}.{remainder}"

    def _part(self, kind: Kind, nbytes: int) -> str:
        if kind == "unattributed" and nbytes < 0:
            return f"{size(-nbytes)} {LISTED_TWICE}"
        if kind == "outside" and any(step.grade.trust == "device" for step in self.steps):
            return f"{size(nbytes)} outside PyTorch in this process or another"
        return f"{size(nbytes)} {_HOST_NAMES.get(kind, '') if self.device == 'host' else _NAMES[kind]}"


def host_waterfall(reading: HostReading, tensors: int, notes: Iterable[str] = ()) -> DeviceExplanation:
    """``tensors`` is the total size of CPU tensors in bytes."""
    steps = []
    resident = make_accuracy("exact", "resident memory of this process")
    if reading.total is not None and reading.available is not None:
        used = reading.total - reading.available
        accuracy = make_accuracy("derived", "total minus available memory")
        steps.append(ExplanationStep("this machine uses", "total", used, accuracy))
        if reading.rss is not None:
            accuracy = make_accuracy("derived", "the remainder; shared pages are counted in each process")
            steps.append(ExplanationStep(_HOST_NAMES["others"], "others", used - reading.rss, accuracy))
    accuracy = exact_if_known(reading.rss, resident.reason, "this system does not report the resident memory")
    steps.append(ExplanationStep("this process (RSS)", "total", reading.rss, accuracy))
    if reading.rss is not None:
        difference = reading.rss - tensors
        label = _HOST_NAMES["outside"]
        reason = "the remainder, for example the interpreter, libraries, NumPy arrays and Python objects"
        if difference < 0:
            label, reason = "not resident", "pages of tensors are not resident until data is written to them"
        steps.append(ExplanationStep(label, "outside", difference, make_accuracy("derived", reason)))
    bound = make_accuracy("bound", "total size of the storages; pages to which no data was written use no memory")
    todo = "%gpumem who --host lists the holders"
    steps.append(ExplanationStep("tensors in host memory", "total", tensors, bound if tensors else resident, todo))
    return DeviceExplanation("host", "", tuple(steps), tuple(notes))


_INACTIVE = "inactive"
_DEFAULT_POOL = (0, 0)
_PAGE_SIZES = {"small": 2 << 20, "large": 20 << 20}
"""Page sizes of expandable segments in bytes, by segment type. Memory is mapped and unmapped in whole pages."""


@dataclass(frozen=True, slots=True)
class CachedMemory:
    """Cached memory of one device. Sizes are in bytes.

    Attributes:
        releasable: Memory that ``torch.cuda.empty_cache()`` would release.
        fragmented: Free memory in fragmented segments, which cannot be released because they contain blocks in use.
        private: Free memory in private pools of CUDA graphs and of ``torch.cuda.MemPool``.
        segments: Number of fragmented segments.
        free_blocks: Number of free blocks in fragmented segments.
        used_blocks, used: Number and total size of the blocks in use in fragmented segments.
        pools: Number of private pools.
        expandable: Whether there are expandable segments, which are released in whole pages.
    """

    releasable: int = 0
    fragmented: int = 0
    private: int = 0
    free_blocks: int = 0
    segments: int = 0
    used_blocks: int = 0
    used: int = 0
    pools: int = 0
    expandable: bool = False

    @property
    def total(self) -> int:
        return self.releasable + self.fragmented + self.private


def cached_memory(segments: list[dict[str, Any]], index: int) -> CachedMemory:
    values: Counter[str] = Counter()
    pools, expandable = set(), False
    for segment in segments:
        if segment["device"] != index:
            continue
        free_blocks = [block for block in segment["blocks"] if block["state"] == _INACTIVE]
        free = sum(block["size"] for block in free_blocks)
        pool = tuple(segment.get("segment_pool_id", _DEFAULT_POOL))
        expandable |= bool(segment.get("is_expandable"))
        if pool != _DEFAULT_POOL:
            pools.add(pool)
            values["private"] += free
            continue
        releasable = _releasable(segment, free_blocks, free)
        values["releasable"] += releasable
        if free > releasable:
            values["fragmented"] += free - releasable
            values["free_blocks"] += len(free_blocks)
            values["segments"] += 1
            values["used_blocks"] += len(segment["blocks"]) - len(free_blocks)
            values["used"] += segment["total_size"] - free
    return CachedMemory(**values, pools=len(pools), expandable=expandable)


def _releasable(segment: dict[str, Any], free_blocks: list[dict[str, Any]], free: int) -> int:
    if not segment.get("is_expandable"):
        return free if len(free_blocks) == len(segment["blocks"]) else 0
    page = _PAGE_SIZES.get(segment.get("segment_type", ""), _PAGE_SIZES["large"])
    offset, nbytes = 0, 0
    for block in segment["blocks"]:
        if block["state"] == _INACTIVE:
            first_page = -(-offset // page)
            end_page = (offset + block["size"]) // page
            nbytes += max(end_page - first_page, 0) * page
        offset += block["size"]
    return nbytes
