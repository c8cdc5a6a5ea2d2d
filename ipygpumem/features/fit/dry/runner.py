"""Run a step on fake tensors, which have no data, and compute its memory usage."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import collect_garbage, is_library_file, pause_gc
from ipygpumem.core.reading import AllocatorCounters
from ipygpumem.core.redaction import redact_code
from ipygpumem.core.units import GIB, MIB, many, parse_size, size_with_unit
from ipygpumem.core.units import size as size_text
from ipygpumem.features.fit.advice.contexts import AUTOCAST
from ipygpumem.features.fit.advice.observer import StepObserver
from ipygpumem.features.fit.axes import Size
from ipygpumem.features.fit.dry.contexts import BF16, DRY_OFFLOADING
from ipygpumem.features.fit.dry.fake_device import FakeDevice
from ipygpumem.features.fit.dry.optimizer_state import OptimizerStateTracker
from ipygpumem.features.fit.dry.replaced_functions import DataRequiredError
from ipygpumem.features.fit.step_code import StepCode, check_result
from ipygpumem.features.fit.step_runner import FitError, MemoryCapacity, device_capacity
from ipygpumem.features.holders.reference_graph import naming_functions
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.scaling.simulated_recording import SimulatedRecording
from ipygpumem.snapshot.scaling.step import StepRecording

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.model_blocks import ModelBlock
    from ipygpumem.features.fit.dry.storage_log import StorageLog
    from ipygpumem.features.fit.state import SavedState
    from ipygpumem.features.fit.step_objects import StepObjects
    from ipygpumem.measurement.runtime import EventPosition

_OUTSIDE = 690 * MIB
"""Assumed memory usage outside PyTorch in bytes, for the CUDA context and kernels, as measured on an NVIDIA H200."""
_UNLIMITED = 1 << 45  # more than any GPU has, and less than the addresses of a replay
_HOPPER = 9
_HOPPER_MEMORY = 79 * GIB
"""Memory size from which a GPU that is not in this machine is assumed to be a Hopper GPU or a later one."""
_NEEDS_DATA = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
}
_VALUE = "aten._local_scalar_dense.default"
_DATA_LOADER = str(Path("torch", "utils", "data"))
_NO_LOADER = "create the batch in the step without a data loader, for example with torch.randn, or run without --dry"
_OPERATIONS = {
    _VALUE: "the value of a tensor (for example for float() or a condition)",
    "aten.nonzero.default": "the positions of nonzero values (for example for nonzero() or a Boolean index)",
}
_DATA_ERROR = re.compile(
    r"FakeTensor|fake tensor|data pointer|tensor subclasses|must be 'meta'|WeakValueDictionary", re.IGNORECASE
)
_STORAGE_ERROR = re.compile(r"doesn't have storage|resize storage|set the storage of a tensor", re.IGNORECASE)
_SEARCH = "With torch.backends.cudnn.benchmark, cuDNN can use larger workspaces, which the estimate does not include."
_NO_GPU = re.compile(r"not (compiled|linked) with.*CUDA|no NVIDIA (driver|GPU)|support for cuda", re.IGNORECASE)


class DryRunObserver(StepObserver):
    """Observer of a run on fake tensors. All durations are 0."""

    def __init__(self, torch: Any, blocks: Iterable[ModelBlock], device: Any) -> None:
        super().__init__(torch, blocks)
        self.device = device

    def position(self) -> EventPosition:
        """Return the number of allocations and frees so far, by device index."""
        return {0: len(self.device.log.requests)}

    def storage_ids(self, values: Any) -> list[int]:
        """Return the IDs of the allocations of all tensors in nested containers."""
        return [id(item) for item in map(self.device.allocation, self._tensors(values)) if item is not None]

    @staticmethod
    def _elapsed(*_: Any) -> float:
        return 0.0


class DryRun:
    """The result of a run of the step on fake tensors, with the attributes of `StepRun` except ``snapshot``."""

    def __init__(self, recording: SimulatedRecording, observer: StepObserver | None, log: StorageLog) -> None:
        peak = recording.allocated
        self.peaks = {0: AllocatorCounters(peak, recording.reserved, peak, recording.step.peak)}
        self.observer, self.workspaces = observer, log.first_uses
        begin, end = {0: -len(log.before)}, {0: len(log.requests)}  # positions as returned by `DryRunObserver.position`
        self.recorder: Any = SimpleNamespace(begin_position=begin, end_position=end, history=SimpleNamespace(own=True))
        self._recording = recording

    def step(self, _: int) -> StepRecording:
        return self._recording.step


class DryRunner:
    """Runs a step on fake tensors. It has the same methods as `StepRunner`.

    Args:
        code: The step.
        device: Memory of a GPU, in bytes or as a string such as ``"80 GiB"``, or the name of a device in this machine,
            such as ``"cuda:0"``; None for the current device.

    Raises:
        OptionError: PyTorch cannot be imported, ``device`` is invalid or names a GPU that PyTorch does not find, or
            ``device`` is None and PyTorch finds no GPU.
    """

    contexts = (AUTOCAST, BF16, DRY_OFFLOADING)
    keeps_contents = True

    def __init__(self, code: StepCode, device: int | str | None) -> None:
        try:
            self.torch: Any = import_module("torch")
        except ImportError as error:
            raise OptionError(f"a memory estimate requires PyTorch, which cannot be imported: {error}") from None
        self._code = code
        self.context: Callable[[Any], Any] = nullcontext
        self._total: int | None = None
        self._index = 0
        self.device: FakeDevice | None = None
        available = self.torch.cuda.is_available()
        name = str(device) if device is not None else "cuda" if available else ""
        if not name:
            raise OptionError("PyTorch finds no GPU: pass the memory of the GPU, such as --on '24 GiB'")
        match = re.fullmatch(r"cuda(?::(\d+))?", name)
        if match is None:
            self._total = parse_size(name)
            if self._total <= _OUTSIDE:
                raise OptionError(
                    f"{name!r} is not more than the {size_text(_OUTSIDE)} that CUDA itself uses: "
                    "pass the memory of the GPU with a unit, such as '24 GiB'"
                )
            self._name, self._label = "GPU", f"with {size_with_unit(name)}"
        elif not available:
            raise OptionError(f"PyTorch finds no GPU {name!r}: pass the memory of the GPU, such as --on '24 GiB'")
        else:
            self._index = int(match[1] or self.torch.cuda.current_device())
            if self._index >= self.torch.cuda.device_count():
                device_names = ", ".join(f"cuda:{index}" for index in range(self.torch.cuda.device_count()))
                raise OptionError(f"PyTorch finds no GPU {name!r}: choose from {device_names}")
            self._name, self._label = f"cuda:{self._index}", self.torch.cuda.get_device_name(self._index)

    def start(self) -> None:
        """Do nothing, because runs on fake tensors need no GPU."""

    def updates(self, objects: StepObjects, _: Any) -> Any:
        """Prepare the runs of a step that uses ``objects``, and delete the gradients, which the first run creates.

        Return a context manager that yields an `OptimizerStateTracker`.
        """
        torch = self.torch
        if self._total is None:
            hopper = torch.cuda.get_device_capability(self._index)[0] >= _HOPPER
        else:
            hopper = self._total >= _HOPPER_MEMORY
        for tensor in objects.tensors:
            if tensor.is_leaf and tensor.grad is not None:
                tensor.grad = None
        self.device = FakeDevice(torch, objects, hopper=hopper)
        return nullcontext(OptimizerStateTracker())

    def describe(self, _: int, __: int | str | None) -> tuple[str, str]:
        return self._name, self._label

    def run(self, size: Size, *, record: bool = False, observer: StepObserver | None = None) -> DryRun:  # noqa: ARG002
        """Run the step once on fake tensors. All runs are recorded.

        Raises:
            FitError: The step cannot run on fake tensors, for example because it needs the data of tensors.
            OptionError: The step returned a generator or coroutine, whose code has not run.
        """
        __tracebackhide__ = True
        if self.device is None:
            raise ValueError("updates has not been called")
        log = self.device.log
        log.start()
        reason = None
        try:
            # interrupts must not prevent the restoration of PyTorch's functions
            observing, inner = observer or nullcontext(), self.context(self)
            deferred = DeferredInterrupts()
            with deferred, pause_gc(), self._without_compilation(), self.device.running(), observing, inner:
                check_result(self._code.text, self._code.run(size))
        except Exception as error:
            reason = _reason(error, has_unknown_numbers=self.device.has_unknown_numbers)
            if reason is None:
                raise
        finally:
            collect_garbage()
        if reason is not None:
            raise FitError(reason)  # not inside the handler, because the traceback refers to tensors of the step
        self.device.label_tensors()
        self.device.remove()
        return DryRun(
            SimulatedRecording(
                log.before,
                log.requests,
                settings=_allocator_settings(),
                sources=self._code.sources,
                numbers=self._code.numbers,
            ),
            observer,
            log,
        )

    def observer(self, blocks: Iterable[ModelBlock]) -> StepObserver:
        return DryRunObserver(self.torch, blocks, self.device)

    def release(self, saved: SavedState) -> None:
        """Exclude the tensors that the step has replaced from the estimate."""
        if self.device is not None:
            self.device.remove(saved.replaced_tensors())

    def _without_compilation(self) -> Any:
        """Return a context manager that runs compiled functions without compiling them."""
        set_stance = getattr(self.torch.compiler, "set_stance", None)  # PyTorch 2.6
        if set_stance is None or "torch._dynamo" not in sys.modules:
            return nullcontext()
        return set_stance("force_eager")

    def devices(self) -> list[int]:
        return [0]

    def current_device(self) -> int:
        return 0

    def available(self, _: int) -> MemoryCapacity:
        """Return unlimited memory, because a run on fake tensors uses no GPU memory."""
        return MemoryCapacity(_UNLIMITED, 0)

    def limit(self, _: int, __: int | str | None) -> int:
        """Return the memory that PyTorch can use on the target GPU, including that of the step's tensors, in bytes."""
        if self._total is not None:
            return self._total - _OUTSIDE
        capacity = device_capacity(current(), self._index)
        device = self.device
        existing = 0 if device is None or not device.native else sum(item.size for item in device.log.before)
        return capacity.limit - max(capacity.allocated - existing, 0)

    def close(self) -> list[str]:
        """Delete the fake tensors. Return notes, for example if objects that were not restored refer to them."""
        if (device := self.device) is None:
            return []
        device.close()
        collect_garbage(1)
        self.device = None
        notes = [_SEARCH] if device.searches_algorithms else []
        if count := device.remaining():
            objects = "Objects that are not part of the step's state"
            notes.append(f"{objects} refer to {many(count, 'fake tensor')} without data.")
        return notes


def _reason(error: Exception, *, has_unknown_numbers: bool) -> str | None:
    """Return why a step cannot run on fake tensors, or None if the error has another cause."""
    kind, text = type(error).__name__, first_line(error)
    stack = traceback.extract_tb(error.__traceback__)
    package_root = str(Path(__file__).parents[3])
    place = [
        frame for frame in stack if not is_library_file(frame.filename) and not frame.filename.startswith(package_root)
    ]
    line = ""
    if place:
        frame = place[-1]
        source = "" if frame.line is None else f" ({redact_code(frame.line)})"
        line = f"{naming_functions().label(frame.filename, frame.lineno or 0, frame.name)}{source} "
    if isinstance(error, DataRequiredError):
        is_loader = any(_DATA_LOADER in frame.filename for frame in stack)
        return f"{line}{text}: {_NO_LOADER if is_loader else error.suggestion}"
    if kind in _NEEDS_DATA:
        operation = str(getattr(error, "func", text))
        requirement = _OPERATIONS.get(operation, f"the values of tensors (for {operation})")
        hint = "use item() for a value that is only printed or stored, or " if operation == _VALUE else ""
        return f"{line}needs {requirement}: {hint}remove this code from the step, or run without --dry"
    if has_unknown_numbers and (isinstance(error, TypeError) or "UnknownNumber" in text):
        problem = f"failed ({text}), possibly because item() returned no number"
        return f"{line}{problem}: remove this code from the step, or run without --dry"
    if _STORAGE_ERROR.search(text) or _DATA_ERROR.search(text):
        problem = "accesses the storage" if _STORAGE_ERROR.search(text) else "needs the data"
        return f"{line}{problem} of a tensor ({text}): remove this code from the step, or run without --dry"
    if _NO_GPU.search(text):
        return f"{line}needs a GPU ({text}): remove this code from the step"
    return None


def _allocator_settings() -> str:
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return "" if "expandable" in settings else settings
