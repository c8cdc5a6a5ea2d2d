"""PyTorch's allocator: the only module that imports torch. Nothing here starts CUDA but `start` and `warm`."""

from __future__ import annotations

import _thread
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line
from ipygpumem.core.reading import Counters, DeviceMemory
from ipygpumem.sources.cuda import uncaptured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "OLDEST",
    "AllocatorState",
    "allocated_now",
    "allocator_state",
    "backend",
    "busy",
    "capturing",
    "cuda_version",
    "current_device",
    "device_memory",
    "empty_cache",
    "expandable",
    "has_context",
    "importable",
    "listen_for_ooms",
    "module",
    "pinned",
    "problem",
    "raw",
    "records",
    "segments",
    "start",
    "started",
    "state",
    "stats",
    "synchronize",
    "unwrap",
    "wrap",
]

OLDEST = (2, 4)
_SLOT = "_ipygpumem_oom_listeners"

_originals: dict[str, Callable[..., Any]] = {}
"""The C functions of torch._C that stand behind wrappers of `ipygpumem.measurement.peaks` and `.history`."""


@dataclass(frozen=True, slots=True)
class AllocatorState:
    """One device's allocator at one instant: bytes now, their peaks since the last reset, and event counts.

    ``segments`` counts all that were ever taken and given back: it stands still only while none moves.
    """

    now: Counters
    peak: Counters
    inactive_split: int
    retries: int
    ooms: int
    allocations: int
    segments: int


def module() -> Any | None:
    """Torch, if somebody has imported it already."""
    torch = sys.modules.get("torch")
    # half-way through its own import the module has no version yet
    return torch if torch is not None and hasattr(torch, "__version__") and hasattr(torch, "cuda") else None


def importable() -> bool:
    """Whether torch is installed, imported or not."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # somebody put None in its place
        return False


def cuda_version() -> str | None:
    """The CUDA that the imported torch was built for."""
    torch = module()
    return None if torch is None else torch.version.cuda


def problem(*, load: bool) -> str | None:
    """Why PyTorch has no GPU memory to tell of, in a few words; None where it has (or, not loaded, may have).

    ``load`` imports torch, and asks the driver for its devices; without it nothing is touched.
    """
    if load:
        try:
            importlib.import_module("torch")
        except Exception as error:
            return f"torch cannot be imported ({type(error).__name__}: {first_line(error)})"
    torch = module()
    if torch is None:
        return None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        return f"torch {torch.__version__} is older than {OLDEST[0]}.{OLDEST[1]}"
    if not hasattr(torch._C, "_cuda_memoryStats"):
        return f"torch {torch.__version__} is built without CUDA"
    if load and not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU"
    return None


def started() -> Any | None:
    """Torch, if CUDA has started in this process."""
    torch = module()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def start(torch: Any, index: int) -> None:
    """Start CUDA and its context on one device, without an allocation."""
    torch.cuda.init()
    torch.cuda.synchronize(index)


def has_context(torch: Any, index: int) -> bool:
    """Whether this process has a primary context on the device."""
    return bool(torch._C._cuda_hasPrimaryContext(index))


def backend(torch: Any) -> str:
    """The allocator behind torch.cuda: ``native``, ``cudaMallocAsync`` or a pluggable one's name."""
    return str(torch.cuda.get_allocator_backend())


def expandable() -> bool:
    """Whether the allocator grows its segments piece by piece: then it asks CUDA by another call than cudaMalloc."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if "expandable_segments:true" in settings.replace(" ", "").lower():
        return True
    try:
        return any(one.get("is_expandable") for one in segments())
    except Exception:  # a backend that keeps no list
        return False


def capturing(torch: Any) -> bool:
    """Whether the current stream is being captured into a CUDA graph: then no call may reach the device."""
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except Exception:  # after a failed kernel every CUDA call fails: one more reason to make none
        return True


def busy(torch: Any, index: int) -> bool | None:
    """Whether work is still queued on the device's current stream. A question, not a synchronisation."""
    try:
        with uncaptured() as excused:
            return not torch.cuda.current_stream(index).query() if excused else None
    except Exception:  # after a failed kernel every CUDA call fails: then nobody knows
        return None


def synchronize(indexes: Iterable[int]) -> None:
    """Wait for the current stream of each device, but not while that is captured into a CUDA graph.

    Not for the whole device: that would void a capture on another stream, of which PyTorch cannot know.
    """
    torch = started()
    if torch is None or capturing(torch):
        return
    with uncaptured() as excused:
        for index in indexes if excused else ():
            with contextlib.suppress(Exception):  # a failed kernel is nothing to wait for
                torch.cuda.current_stream(index).synchronize()


def device_memory(torch: Any, index: int) -> DeviceMemory | None:
    """The card as CUDA itself tells it, for machines without NVML. Needs a context; None after a failed kernel."""
    try:
        with uncaptured() as excused:
            if not excused:
                return None
            free, total = torch.cuda.mem_get_info(index)
    except Exception:
        return None
    return DeviceMemory(total=int(total), used=int(total - free), reserved=None, source="cudaMemGetInfo")


def stats(torch: Any, index: int) -> dict[str, Any]:
    """The allocator's nested counters, below our own wrapper.

    Raises:
        RuntimeError: A pluggable allocator keeps none.
    """
    nested: dict[str, Any] = (_originals.get("_cuda_memoryStats") or torch._C._cuda_memoryStats)(index)
    return nested


def raw(name: str) -> Callable[..., Any]:
    """The C function torch._C.NAME itself, below any wrapper of ours."""
    torch = sys.modules["torch"]
    return _originals.get(name) or getattr(torch._C, name)


def wrap(name: str, ours: Callable[..., Any] | None, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Put our wrapper in the place of torch._C.NAME, where this torch has that function and ours is not there yet.

    ``ours`` is the wrapper of an earlier call, None before the first; ``make(original)`` builds it.
    """
    c_module = sys.modules["torch"]._C
    current = getattr(c_module, name, None)
    if current is None:
        return
    original = _originals.setdefault(name, current)
    # current may also be another library's wrapper over ours: then we are behind it already
    if current is original:
        setattr(c_module, name, ours or make(original))


def unwrap(name: str, ours: Callable[..., Any]) -> bool:
    """Put the original back, unless somebody has wrapped ours since: that one must go on working."""
    c_module = sys.modules["torch"]._C
    if getattr(c_module, name, None) is not ours:
        return False
    setattr(c_module, name, _originals.pop(name))
    return True


def allocator_state(stats: dict[str, Any]) -> AllocatorState:
    """The counters that the ledger needs, from the nested dict of ``torch._C._cuda_memoryStats``."""
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    active, requested = stats["active_bytes"]["all"], stats["requested_bytes"]["all"]
    segments = stats["segment"]["all"]
    return AllocatorState(
        now=Counters(allocated["current"], reserved["current"], active["current"], requested["current"]),
        peak=Counters(allocated["peak"], reserved["peak"], active["peak"], requested["peak"]),
        inactive_split=stats["inactive_split_bytes"]["all"]["current"],
        retries=stats["num_alloc_retries"],
        ooms=stats["num_ooms"],
        allocations=stats["allocation"]["all"]["allocated"],
        segments=segments["allocated"] + segments["freed"],
    )


def state(torch: Any, index: int) -> AllocatorState:
    """One device's allocator now.

    Raises:
        RuntimeError: A pluggable allocator keeps no counters.
    """
    return allocator_state(stats(torch, index))


def empty_cache() -> bool:
    """Give what PyTorch keeps for its next tensors back to the card; whether that could be done."""
    torch = started()
    if torch is None or capturing(torch):
        return False
    torch.cuda.empty_cache()
    return True


def records() -> bool:
    """Whether somebody records PyTorch's allocation history now."""
    torch = started()
    return torch is not None and bool(torch._C._cuda_isHistoryEnabled())


def segments() -> list[dict[str, Any]]:
    """The allocator's own list of segments with their blocks, without traces where this torch can leave them out.

    A recording that runs gets one more event, ``snapshot``.

    Raises:
        RuntimeError: The allocator does not tell.
    """
    function = sys.modules["torch"].cuda.memory_snapshot
    traces = {"include_traces": False} if "include_traces" in inspect.signature(function).parameters else {}
    found: list[dict[str, Any]] = function(**traces)
    return found


def listen_for_ooms(callback: Callable[[int, int, int, int], None] | None) -> bool:
    """Have a callback called when an allocation fails: (device, bytes asked, bytes allowed, bytes free).

    PyTorch has no way to detach an observer, and keeps duplicates: so one trampoline is attached per process, kept on
    the torch module, and what it calls can be exchanged, or be None. Whether it stands.
    """
    torch = started()
    attach = None if torch is None else getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if torch is None or attach is None:
        return False
    slot = vars(torch).get(_SLOT)
    if slot is None:
        slot = []

        def trampoline(device: int, asked: int, allowed: int, free: int) -> None:
            try:
                for listener in tuple(slot):
                    listener(device, asked, allowed, free)
            except KeyboardInterrupt:  # the user's: it comes again outside
                _thread.interrupt_main()
            except BaseException:  # noqa: S110 (it would replace the user's own error)
                pass

        try:
            attach(trampoline)
        except RuntimeError:  # cudaMallocAsync, a pluggable allocator
            return False
        setattr(torch, _SLOT, slot)
    slot[:] = [] if callback is None else [callback]
    return True


def pinned(torch: Any) -> int | None:
    """Bytes of page-locked memory that PyTorch's host allocator owns; None where this torch does not count them."""
    statistics = getattr(torch._C, "_cuda_hostMemoryStats", None)
    try:
        return None if statistics is None else _pinned_bytes(statistics())
    except Exception:  # after a failed kernel
        return None


def _pinned_bytes(stats: dict[str, Any]) -> int | None:
    # torch 2.13 has allocated_bytes for what it owns; up to 2.12 that figure is called segment / reserved_bytes
    for family in ("reserved_bytes", "allocated_bytes"):
        if family in stats and "current" in stats[family]:
            return int(stats[family]["current"])
    return None


def current_device() -> int:
    """PyTorch's current device, without starting CUDA: before that it is the first."""
    torch = started()
    return 0 if torch is None else int(torch.cuda.current_device())


def allocated_now(index: int) -> int:
    """Bytes allocated on a device; 0 before CUDA starts."""
    return int(sys.modules["torch"].cuda.memory_allocated(index))
