"""The steps of a card's waterfall: whose each part is, how far it can be trusted, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.units import size
from ipygpumem.features.explain.model import RETURNABLE, SHOWS, TWICE, Step, Waterfall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.core.baseline import Baseline
    from ipygpumem.core.other_process import OtherProcess
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.features.explain.cache import Cache

__all__ = ["Standing", "device_waterfall"]

_NEIGHBOURS = 5
"""Neighbours that have steps of their own."""
_NVML = "NVML"
_STAYS = "stays as long as this process"
_ADVICE = {
    "NCCL": "torch.distributed.destroy_process_group()",
    "CuPy": "cupy.get_default_memory_pool().free_all_blocks()",
    "JAX/XLA": "XLA_PYTHON_CLIENT_PREALLOCATE=false, before JAX starts",
    "TensorFlow": "tf.config.experimental.set_memory_growth(...), before it starts",
    "cuFFT": "torch.backends.cuda.cufft_plan_cache.clear()",
    "cuBLAS": "stays with its handles: one for each thread that multiplies",
    "CUDA's default memory pool": "cudaMemPoolTrimTo gives back what is not in use",
    "memory of CUDA graphs": "delete the graphs, then cudaDeviceGraphMemTrim",
}
_SIGNS = ("CuPy", "JAX", "TensorFlow")


@dataclass(frozen=True, slots=True)
class Standing:
    """Memory outside PyTorch that has a name now, in bytes. ``managed`` moves between card and host."""

    name: str
    amount: int
    grade: Grade
    managed: bool = False


def _advice(name: str) -> str:
    if name in _ADVICE:
        return _ADVICE[name]
    known = next((sign for sign in _SIGNS if name.startswith(sign)), "")
    return _ADVICE.get("JAX/XLA" if known == "JAX" else known, "")


def device_waterfall(
    reading: DeviceReading,
    *,
    label: str = "",
    baseline: Baseline | None = None,
    kernels: bool = True,
    recorded: bool = False,
    neighbours: Sequence[OtherProcess] = (),
    standing: Sequence[Standing] = (),
    cache: Cache | None = None,
    why_no_cache: str = "",
    notes: Iterable[str] = (),
) -> Waterfall:
    """A device's waterfall.

    Args:
        reading: The device now.
        label: The card's name.
        baseline: What was measured at the start, where it is this device's.
        kernels: Whether the first kernels are told as they were measured then; else names in `standing` have them.
        recorded: Whether CUPTI records what libraries allocate.
        neighbours: The other processes by name.
        standing: Memory outside PyTorch that has a name.
        cache: PyTorch's free blocks.
        why_no_cache: Why they cannot be told apart.
        notes: What else is to be known.
    """
    steps = [*_card(reading), *_others(reading, neighbours, standing)]
    own = baseline if baseline is not None and baseline.device == reading.name else None
    steps += _outside(reading, own, standing, kernels=kernels, recorded=recorded)
    steps += _pytorch(reading, cache, why_no_cache)
    return Waterfall(reading.name, label, tuple(steps), tuple(notes))


def _card(reading: DeviceReading) -> list[Step]:
    trust = grade("exact", reading.source or "") if reading.used is not None else grade("unknown", reading.why)
    told = SHOWS if reading.used is None or _NVML in (reading.source or "") else f"used, by {reading.source}"
    if not reading.driver_reserved:
        return [Step(told, "total", reading.in_use, trust)]
    driver = Step(
        "driver reserve", "driver", reading.driver_reserved, trust, "the driver's own: nvidia-smi leaves it out"
    )
    return [Step("device used", "total", reading.used, trust), driver, Step(told, "total", reading.in_use, trust)]


def _others(reading: DeviceReading, neighbours: Sequence[OtherProcess], standing: Sequence[Standing]) -> list[Step]:
    if reading.process is None:
        return []
    own = Step("this process", "total", reading.process, grade("exact", reading.why))
    if reading.others is None or reading.unattributed is None:
        return [own]
    trust = grade("exact", "NVML's process list")
    steps = [
        Step(one.title, "others", one.amount, trust, _remedy(one)) for one in neighbours[:_NEIGHBOURS] if one.amount
    ]
    rest = reading.others - sum(step.amount or 0 for step in steps)
    if rest:
        steps.append(Step("further processes" if steps else "other processes", "others", rest, trust))
    nobodys = reading.unattributed
    managed = sum(one.amount for one in standing if one.managed)
    moved = min(managed, max(nobodys, 0))
    if moved:
        names = ", ".join(dict.fromkeys(one.name for one in standing if one.managed))
        why = f"{size(managed)} are managed by {names}; how much of it is on the card nobody tells"
        steps.append(Step("managed memory", "unattributed", moved, grade("bound", why), "goes with its arrays"))
    if nobodys - moved:
        driver = "" if reading.driver_reserved is not None else "what the driver keeps for itself, "
        reason = f"in no process's entry: {driver}page tables, managed memory, processes that are hidden here"
        twice = "NVML's entries add up to more than the card has given away"
        trust, label = (grade("exact", reason), "unattributed") if nobodys > 0 else (grade("derived", twice), TWICE)
        steps.append(Step(label, "unattributed", nobodys - moved, trust))
    return [*steps, own]


def _remedy(one: OtherProcess) -> str:
    if one.role == "kernel":
        return "shut that kernel down, if it is not needed"
    if one.role == "DataLoader worker":
        return "a worker that touches CUDA: keep its tensors on the CPU"
    if one.relation == "child":
        return "ends with that child"
    if one.relation == "own":
        return f"yours: kill {one.pid}, if it is a leftover"
    return f"{one.user}'s" if one.relation == "other" else ""


def _outside(
    reading: DeviceReading, baseline: Baseline | None, standing: Sequence[Standing], *, kernels: bool, recorded: bool
) -> list[Step]:
    """The parts between this process (or, where that is not known, the card) and what PyTorch reserved."""
    outside = reading.outside
    if outside is None:
        return []
    steps = []
    measured = "measured when CUDA started here, and taken to stand since"
    if baseline is not None and baseline.context:
        steps.append(Step("CUDA context", "outside", baseline.context, grade("derived", measured), _STAYS))
    if baseline is not None and baseline.kernels and kernels:
        measured = "measured when the first kernels ran, and taken to stand since"
        remark = "code and handles of CUDA's libraries"
        steps.append(Step("first kernels", "outside", baseline.kernels, grade("derived", measured), _STAYS, remark))
    named = sorted((one for one in standing if not one.managed and one.amount), key=lambda one: -one.amount)
    steps += [Step(one.name, "outside", one.amount, one.grade, _advice(one.name)) for one in named]
    rest = outside - sum(step.amount or 0 for step in steps)
    if rest:
        context = [] if any(step.label == "CUDA context" for step in steps) else ["CUDA context"]
        steps.append(_rest(reading, rest, [*context, *([] if recorded else ["libraries"])]))
    return steps


def _rest(reading: DeviceReading, rest: int, among: list[str]) -> Step:
    if reading.process is None:
        why = f"this process outside PyTorch, or others: {reading.why}"
        return Step("not told apart", "outside", rest, grade("device", why), "%gpumem processes lists who is there")
    if rest < 0:
        return Step("counted twice", "outside", rest, grade("unknown", "parts count some memory twice, or it went"))
    label = ", ".join([*among, "kernel code, stacks, graphs"])
    why = "what is left: no name is known for it"
    return Step(label, "outside", rest, grade("derived", why), "%%gpumem --outside names what a cell adds")


def _pytorch(reading: DeviceReading, cache: Cache | None, why: str) -> list[Step]:
    counter = grade("exact", reading.torch_why or "allocator counter")
    unknown = grade("unknown", reading.torch_why or reading.why)
    trust = counter if reading.reserved is not None else unknown
    steps = [Step("PyTorch reserved", "total", reading.reserved, trust)]
    if reading.pending:
        todo = "torch.cuda.synchronize(): then it is cache"
        steps.append(Step("pending: freed, wait for a stream", "cache", reading.pending, counter, todo))
    if reading.cached is not None:
        steps += _cache(reading.cached, cache, why)
    return [*steps, Step("allocated (tensors)", "total", reading.allocated, trust, "%gpumem who names the holders")]


def _cache(cached: int, cache: Cache | None, why: str) -> list[Step]:
    if cache is None:
        trust = grade("exact", "allocator counter")
        return (
            [Step("cached", "cache", cached, trust, "torch.cuda.empty_cache() gives a part back", why)]
            if cached
            else []
        )
    steps = []
    listed = grade("exact", "the allocator's list of segments")
    paged = grade("derived", "from the allocator's list of segments, which go back in whole pages")
    trust = paged if cache.expandable else listed
    if cache.returnable:
        todo = "torch.cuda.empty_cache(), or %gpumem free --cache"
        steps.append(Step(RETURNABLE, "cache", cache.returnable, trust, todo))
    if cache.pinned:
        kept = f"{_many(cache.pieces, 'free piece')} in {_many(cache.segments, 'segment')}"
        by = f"kept by {_many(cache.blocks, 'block')} of {size(cache.used)} in the same"
        todo = "let go of those (%gpumem who)" + ("" if cache.expandable else ", or expandable_segments:True")
        steps.append(Step("cached, cannot go back", "cache", cache.pinned, trust, todo, f"{kept}, {by}"))
    if cache.private:
        remark = f"{_many(cache.pools, 'pool')}, kept for the next replay"
        todo = "delete the graphs (or the MemPool), then empty_cache()"
        steps.append(Step("private pools of graphs, not in use", "cache", cache.private, listed, todo, remark))
    if cached != cache.total:
        moved = grade("derived", "memory moved between two looks")
        steps.append(Step("cached, not told apart", "cache", cached - cache.total, moved))
    return steps


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
