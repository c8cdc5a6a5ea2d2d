"""Compute the steps of a device's waterfall chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import Accuracy, Baseline, DeviceReading, exact_if_known, make_accuracy
from ipygpumem.core.units import many, size
from ipygpumem.features.explain.model import (
    LISTED_TWICE,
    NVIDIA_SMI,
    RELEASABLE,
    CachedMemory,
    DeviceExplanation,
    ExplanationStep,
)
from ipygpumem.sources.library_pools import GRAPHS, STREAMS

_MAX_PROCESSES = 5
_PERMANENT = "exists until this process ends"
_ADVICE = {
    "NCCL": "torch.distributed.destroy_process_group()",
    "CuPy": "cupy.get_default_memory_pool().free_all_blocks()",
    "JAX": "set XLA_PYTHON_CLIENT_PREALLOCATE=false before JAX is initialized",
    "TensorFlow": "call tf.config.experimental.set_memory_growth(...) before TensorFlow is initialized",
    "cuFFT": "torch.backends.cuda.cufft_plan_cache.clear()",
    "cuBLAS": "memory of cuBLAS handles; each thread has its own handle",
    STREAMS: "cudaMemPoolTrimTo would release the unused memory",
    GRAPHS: "delete the CUDA graphs, then call cudaDeviceGraphMemTrim",
}
_PREFIXES = ("CuPy", "JAX", "TensorFlow")


@dataclass(frozen=True, slots=True)
class NamedMemory:
    """Memory of one library or memory pool outside PyTorch. ``amount`` is in bytes."""

    name: str
    amount: int
    grade: Accuracy
    managed: bool = False

    @property
    def advice(self) -> str:
        return _ADVICE.get(next((prefix for prefix in _PREFIXES if self.name.startswith(prefix)), self.name), "")


def device_waterfall(
    reading: DeviceReading,
    *,
    label: str = "",
    baseline: Baseline | None = None,
    kernels: bool = True,
    recorded: bool = False,
    processes: Sequence[OtherProcess] = (),
    named: Sequence[NamedMemory] = (),
    cache: CachedMemory | None = None,
    cache_problem: str = "",
    notes: Iterable[str] = (),
) -> DeviceExplanation:
    """Return the waterfall chart of a device.

    ``baseline`` is ignored if it was measured on another device. ``kernels`` is false if CUPTI's records in ``named``
    include the memory of the first kernels, which was measured at the baseline. ``recorded`` is true if CUPTI records
    allocations. ``cache_problem`` is the reason why ``cache`` is None.
    """
    if baseline is not None and baseline.device != reading.name:
        baseline = None
    steps = [
        *_device_steps(reading),
        *_process_steps(reading, processes, named),
        *_outside_steps(reading, baseline, named, kernels=kernels, recorded=recorded),
        *_pytorch_steps(reading, cache, cache_problem),
    ]
    return DeviceExplanation(reading.name, label, tuple(steps), tuple(notes))


def _device_steps(reading: DeviceReading) -> list[ExplanationStep]:
    accuracy = exact_if_known(reading.used, reading.source or "", reading.why)
    is_nvml = reading.used is None or "NVML" in (reading.source or "")
    in_use = ExplanationStep(NVIDIA_SMI if is_nvml else f"used ({reading.source})", "total", reading.in_use, accuracy)
    if not reading.driver_reserved:
        return [in_use]
    todo = "not included in nvidia-smi's value"
    reserved = ExplanationStep("driver reserved", "driver", reading.driver_reserved, accuracy, todo)
    return [ExplanationStep("device used", "total", reading.used, accuracy), reserved, in_use]


def _process_steps(
    reading: DeviceReading, processes: Sequence[OtherProcess], named_memory: Sequence[NamedMemory]
) -> list[ExplanationStep]:
    if reading.process is None:
        return []
    own = ExplanationStep("this process", "total", reading.process, make_accuracy("exact", reading.why))
    if reading.others is None or reading.unattributed is None:
        return [own]
    accuracy = make_accuracy("exact", "NVML's process list")
    steps = [
        ExplanationStep(process.title, "others", process.amount, accuracy, _process_advice(process))
        for process in processes[:_MAX_PROCESSES]
        if process.amount
    ]
    remainder = reading.others - sum(step.amount or 0 for step in steps)
    if remainder:
        steps.append(ExplanationStep("more processes" if steps else "other processes", "others", remainder, accuracy))
    return [*steps, *_unattributed_steps(reading, reading.unattributed, named_memory), own]


def _unattributed_steps(
    reading: DeviceReading, unattributed: int, named_memory: Sequence[NamedMemory]
) -> list[ExplanationStep]:
    steps = []
    managed_memory = [memory for memory in named_memory if memory.managed]
    managed = sum(memory.amount for memory in managed_memory)
    on_device = min(managed, max(unattributed, 0))
    if on_device:
        names = ", ".join(dict.fromkeys(memory.name for memory in managed_memory))
        reason = f"{size(managed)} of managed memory ({names}), of which an unknown part is on the device"
        todo = "freed when the library's arrays are deleted"
        steps.append(ExplanationStep("managed memory", "unattributed", on_device, make_accuracy("bound", reason), todo))
    remainder = unattributed - on_device
    if remainder and unattributed > 0:
        driver = "" if reading.driver_reserved is not None else "memory reserved by the driver, "
        reason = (
            f"not attributed to any process: {driver}page tables, managed memory, or processes that are not visible"
            " here (for example in other containers)"
        )
        steps.append(ExplanationStep("unattributed", "unattributed", remainder, make_accuracy("exact", reason)))
    elif remainder:
        reason = "the sizes in NVML's process list add up to more than the memory in use"
        steps.append(ExplanationStep(LISTED_TWICE, "unattributed", remainder, make_accuracy("derived", reason)))
    return steps


def _process_advice(process: OtherProcess) -> str:
    if process.role == "kernel":
        return "another Jupyter kernel; shut it down if it is no longer needed"
    if process.role == "DataLoader worker":
        return "DataLoader worker that uses CUDA; to avoid this, keep its tensors on the CPU"
    if process.relation == "child":
        return "freed when this child process ends"
    if process.relation == "own":
        return f"your process; run kill {process.pid} if you no longer need it"
    return f"belongs to {process.user}" if process.relation == "other" else ""


def _outside_steps(
    reading: DeviceReading, baseline: Baseline | None, named: Sequence[NamedMemory], *, kernels: bool, recorded: bool
) -> list[ExplanationStep]:
    if reading.outside is None:
        return []
    steps = []
    if baseline is not None and baseline.context:
        accuracy = make_accuracy("derived", "measured when CUDA was initialized, and assumed not to change")
        steps.append(ExplanationStep("CUDA context", "outside", baseline.context, accuracy, _PERMANENT))
    if baseline is not None and baseline.kernels and kernels:
        accuracy = make_accuracy("derived", "measured when the first kernels were loaded, and assumed not to change")
        note = "code and handles of CUDA libraries"
        steps.append(ExplanationStep("first kernels", "outside", baseline.kernels, accuracy, _PERMANENT, note))
    memories = sorted((memory for memory in named if not memory.managed and memory.amount), key=lambda m: -m.amount)
    steps += [ExplanationStep(item.name, "outside", item.amount, item.grade, item.advice) for item in memories]
    remainder = reading.outside - sum(step.amount or 0 for step in steps)
    if not remainder:
        return steps
    if reading.process is None:
        accuracy = make_accuracy("device", f"outside PyTorch in this process, or in other processes: {reading.why}")
        todo = "%gpumem processes lists all processes"
        return [*steps, ExplanationStep("this process or another", "outside", remainder, accuracy, todo)]
    if remainder < 0:
        accuracy = make_accuracy("unknown", "some memory is counted twice or was freed while values were read")
        return [*steps, ExplanationStep("counted twice", "outside", remainder, accuracy)]
    names = ["kernel code, local memory, CUDA graphs"]
    if not recorded:
        names.insert(0, "libraries")
    if not any(step.label == "CUDA context" for step in steps):
        names.insert(0, "CUDA context")
    accuracy = make_accuracy("derived", "the remainder, which is not attributed to any library")
    todo = "%%gpumem --outside lists the memory of a cell by library"
    return [*steps, ExplanationStep(", ".join(names), "outside", remainder, accuracy, todo)]


def _pytorch_steps(reading: DeviceReading, cache: CachedMemory | None, cache_problem: str) -> list[ExplanationStep]:
    counter = make_accuracy("exact", reading.torch_why or "allocator counter")
    accuracy = counter if reading.reserved is not None else make_accuracy("unknown", reading.torch_why or reading.why)
    steps = [ExplanationStep("PyTorch reserved", "total", reading.reserved, accuracy)]
    if reading.pending:
        todo = "returned to the cache after torch.cuda.synchronize()"
        label = "pending (freed, waiting for another stream)"
        steps.append(ExplanationStep(label, "cache", reading.pending, counter, todo))
    if reading.cached is not None and cache is not None:
        steps += _cache_steps(reading.cached, cache)
    elif reading.cached:
        todo = "torch.cuda.empty_cache() would release part of it"
        accuracy = make_accuracy("exact", "allocator counter")
        steps.append(ExplanationStep("cached", "cache", reading.cached, accuracy, todo, cache_problem))
    todo = "%gpumem who lists the holders"
    return [*steps, ExplanationStep("allocated (tensors)", "total", reading.allocated, steps[0].grade, todo)]


def _cache_steps(cached: int, cache: CachedMemory) -> list[ExplanationStep]:
    steps = []
    list_accuracy = make_accuracy("exact", "the allocator's list of segments")
    paged = make_accuracy("derived", "the allocator's list of segments; expandable segments are released in pages")
    accuracy = paged if cache.expandable else list_accuracy
    if cache.releasable:
        todo = "torch.cuda.empty_cache() or %gpumem free --cache"
        steps.append(ExplanationStep(RELEASABLE, "cache", cache.releasable, accuracy, todo))
    if cache.fragmented:
        free, used = many(cache.free_blocks, "free block"), many(cache.used_blocks, "block")
        note = f"{free} in {many(cache.segments, 'segment')} with {used} in use ({size(cache.used)} in total)"
        setting = "" if cache.expandable else " or use expandable_segments:True"
        todo = f"free the tensors in these segments (%gpumem who lists them){setting}"
        steps.append(ExplanationStep("cached, cannot be released", "cache", cache.fragmented, accuracy, todo, note))
    if cache.private:
        note = f"{many(cache.pools, 'pool')}, reserved for the CUDA graphs or the MemPool that use them"
        todo = "delete the CUDA graphs or the MemPool, then call torch.cuda.empty_cache()"
        steps.append(ExplanationStep("cached in private pools", "cache", cache.private, list_accuracy, todo, note))
    if cached != cache.total:
        change_accuracy = make_accuracy("derived", "the cache changed between two readings")
        steps.append(
            ExplanationStep("cached, changed while values were read", "cache", cached - cache.total, change_accuracy)
        )
    return steps
