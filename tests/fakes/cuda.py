"""A fake CUDA machine below the real CPU build of PyTorch, with a fake NVML library for the same devices.

::

    gpu = FakeGpu()                  # one H200; FakeGpu(2) has two
    gpu.install()                    # for torch.cuda, torch.accelerator, the CUDA runtime and pynvml
    block = gpu.alloc(4 << 20)       # allocate with PyTorch's allocator on cuda:0
    gpu.free(block)
    x = torch.ones(1000, device="cuda")   # a tensor; deleting it frees its block
    gpu.outside(256 << 20)           # another library of this process allocates memory
    gpu.nvml.devices[0].others[4711] = 1 << 30
    gpu.uninstall()

Only the parts that a machine without a GPU lacks are replaced: the C functions of torch._C that PyTorch's Python code
calls, the CUDA runtime, and the library that pynvml calls. The fake behaves like CUDA. The first call that needs
a context creates it, which uses 612 MiB in this process and 8 MiB that are not attributed to a process. The first
matmul uses 66 MiB outside PyTorch and a workspace. Calls that are forbidden during graph capture raise an error and
are added to ``violations``.
"""

from __future__ import annotations

import collections
import contextlib
import time
import types
import weakref

from fakes.allocator import THREAD, Allocator
from fakes.nvml import FakeNvml, FakeNvmlDevice
from fakes.patches import Patches

MIB = 1 << 20
CONTEXT = 612 * MIB
PAGE_TABLES = 8 * MIB
KERNELS = 66 * MIB
WORKSPACE = 32 * MIB
_GRANULE = 2 * MIB


class FakeDevice:
    """A GPU: its NVML device, its allocator, and the state of its CUDA context."""

    def __init__(self, index, nvml_device, *, name="NVIDIA H200"):
        self.index, self.nvml_device, self.name = index, nvml_device, name
        self.context = False
        self.context_by = None
        self.warm = False
        self.broken = None
        self.busy = False
        self.allocator = Allocator(index, self.take, self.give)

    def take(self, size):
        if size > self.nvml_device.free:
            return False
        self.nvml_device.own += size
        return True

    def give(self, size):
        self.nvml_device.own -= size

    @property
    def uuid(self):
        return self.nvml_device.uuid.removeprefix("GPU-").removeprefix("MIG-")


class FakeGpu:
    """A machine with ``count`` GPUs, or with one GPU for each of ``nvml_devices``."""

    def __init__(self, count=1, nvml_devices=None, *, backend="native"):
        nvml_devices = nvml_devices or [
            FakeNvmlDevice(uuid=f"GPU-{index:08x}-1111-2222-3333-444455556666", pci=f"00000000:{0x18 + index:02X}:00.0")
            for index in range(count)
        ]
        self.nvml = FakeNvml(nvml_devices)
        self.devices = [FakeDevice(index, nvml_device) for index, nvml_device in enumerate(nvml_devices)]
        self.backend = backend
        self.current = 0
        self.capturing = ""
        self.capture_mode = 0
        self.violations = []
        self.calls = collections.Counter()
        self.pinned = 0
        self.raw = {}
        self.fill_kernel = 0
        """Memory that the first kernel that fills a tensor takes when it is loaded."""
        self.oom_observers = []
        self.storages = {}
        self.initialized = False
        self.history = None
        self._patches = Patches()

    # operations for tests

    def __getitem__(self, index):
        return self.devices[index]

    @property
    def nvml_device(self):
        return self.devices[0].nvml_device

    def alloc(self, size, device=0, *, stream=0, pool=(0, 0)):
        """Allocate a block with PyTorch's allocator.

        Raises:
            torch.OutOfMemoryError: There is not enough memory.
        """
        import torch

        torch.cuda.init()
        self._context(device, "alloc")
        block = self.devices[device].allocator.alloc(size, stream, pool)
        if block is None:
            nvml_device = self.devices[device].nvml_device
            for observer in self.oom_observers:
                observer(device, size, nvml_device.total - nvml_device.driver_reserved, nvml_device.free)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU {device}")
        return block

    def free(self, block, *, used_by=None):
        index = (block.address - 0x7F0000000000) >> 40
        self.devices[index].allocator.free(block, used_by=used_by)

    def outside(self, size, device=0):
        """Allocate memory (or free it, if the size is negative) as another library of this process."""
        self._context(device, "another library")
        self.devices[device].nvml_device.own += -(-size // _GRANULE) * _GRANULE

    def load_fill_kernel(self, device):
        size, self.fill_kernel = self.fill_kernel, 0
        if size:
            self.outside(size, device)

    def wait_for_samples(self):
        """Wait until the sampler has taken at least one complete sample of every device."""
        # one sample may be in progress before its call of NVML, and another one after it
        last = self.nvml.calls["nvmlDeviceGetMemoryInfo_v2"] + 3 * len(self.devices)
        end = time.monotonic() + 60
        while self.nvml.calls["nvmlDeviceGetMemoryInfo_v2"] < last:
            assert time.monotonic() < end, "the sampler does not run"
            time.sleep(0.002)

    def break_device(self, device=0, error="CUDA error: an illegal memory access was encountered"):
        """Simulate a failed kernel: all later CUDA calls of this process raise."""
        self.devices[device].broken = error

    def discard_exceptions(self):
        """Behave as PyTorch 2.11: the stack of a free in a backward pass discards an exception (pytorch#175196).

        Here, every free in a backward pass that raises an exception has this effect.
        """
        import torch

        engine = _Engine(torch.autograd.Variable._execution_engine)
        self._patches.set(torch.autograd.Variable, "_execution_engine", engine)
        for device in self.devices:
            device.allocator.stack_of_free_gathered = engine.stack_of_free_gathered

    # CUDA's behavior

    def _context(self, index, by):
        self._forbidden(by)
        device = self.devices[index]
        if device.broken:
            import torch

            # up to PyTorch 2.7, all CUDA errors are RuntimeErrors
            raise getattr(torch, "AcceleratorError", RuntimeError)(device.broken)
        if not device.context:
            device.context, device.context_by = True, by
            device.nvml_device.own += CONTEXT
            device.nvml_device.unattributed += PAGE_TABLES

    def _forbidden(self, by):
        # allocations of a captured graph are allowed; in relaxed mode a thread may call anything that does not use
        # the captured stream
        uses_stream = self.capturing == "current" and by in {"cudaStreamQuery", "cudaStreamSynchronize"}
        if self.capturing and by not in {"alloc", "exchangeDevice"} and (self.capture_mode != 2 or uses_stream):
            self.violations.append(by)
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({by})")

    def _call(self, name):
        self.calls[name] += 1

    # the C functions of torch._C

    def _functions(self):
        """Return the functions that this version of PyTorch has; even CPU builds have those of torch.accelerator."""
        import torch

        names = {name.removeprefix("c") for name in dir(self) if name.startswith("c_")}
        names -= {name for name in names if name.startswith("_accelerator") and not hasattr(torch._C, name)}
        if not hasattr(torch.cuda, "host_memory_stats"):  # added in PyTorch 2.7
            names.remove("_cuda_hostMemoryStats")
        if not hasattr(torch.cuda.memory, "_allocation_traceback"):  # added in PyTorch 2.12
            names.remove("_cuda_allocationTraceback")
        if not hasattr(torch.cuda.memory, "_set_memory_metadata"):  # added in PyTorch 2.10
            names -= {"_cuda_setMemoryMetadata", "_cuda_getMemoryMetadata"}
        return {name: getattr(self, f"c{name}") for name in names}

    def c_cuda_init(self):
        self.initialized = True

    def c_cuda_getDeviceCount(self):  # noqa: N802
        return len(self.devices)

    def c_cuda_getDevice(self):  # noqa: N802
        return self.current

    def c_cuda_setDevice(self, index):  # noqa: N802
        self.exchange(index)

    def c_cuda_isInBadFork(self):  # noqa: N802
        return False

    def c_cuda_hasPrimaryContext(self, index):  # noqa: N802
        if not 0 <= index < len(self.devices):
            raise RuntimeError("hasPrimaryContext expects to be called with a valid device index")
        return self.devices[index].context

    def c_cuda_synchronize(self):
        self._call("synchronize")
        self._context(self.current, "synchronize")
        self.devices[self.current].busy = False

    def c_cuda_getAllocatorBackend(self):  # noqa: N802
        return self.backend

    def _allocator(self, index, what="getDeviceStats"):
        if self.backend == "pluggable":
            raise RuntimeError(f"CUDAPluggableAllocator does not yet support {what}. If you need it, file an issue")
        if not 0 <= index < len(self.devices):
            raise RuntimeError(f"Invalid device argument {index}: did you call init? ({what})")
        return self.devices[index].allocator

    def c_cuda_memoryStats(self, index):  # noqa: N802
        self._call("memoryStats")
        return self._allocator(index).memory_stats()

    def c_cuda_resetPeakMemoryStats(self, index):  # noqa: N802
        self._call("resetPeakMemoryStats")
        self._allocator(index, "resetPeakStats").reset_peaks()

    def c_cuda_resetAccumulatedMemoryStats(self, index):  # noqa: N802
        self._allocator(index, "resetAccumulatedStats").reset_accumulated()

    def c_accelerator_getDeviceStats(self, index):  # noqa: N802
        return self._allocator(index).memory_stats(accelerator=True)

    def c_accelerator_resetPeakStats(self, index):  # noqa: N802
        self._allocator(index, "resetPeakStats").reset_peaks()

    def c_accelerator_resetAccumulatedStats(self, index):  # noqa: N802
        self._allocator(index, "resetAccumulatedStats").reset_accumulated()

    def c_accelerator_isAllocatorInitialized(self):  # noqa: N802
        return self.initialized

    def c_accelerator_getDeviceIndex(self):  # noqa: N802
        return self.current

    def c_accelerator_getAccelerator(self):  # noqa: N802
        """Return None, as the CPU build does. Otherwise, the compiler would use the streams of the real runtime."""

    def c_cuda_hostMemoryStats(self):  # noqa: N802
        stat = {"current": self.pinned, "peak": self.pinned, "allocated": self.pinned, "freed": 0}
        return {"allocated_bytes": stat, "active_bytes": dict(stat), "num_host_alloc": 0, "num_host_free": 0}

    def c_cuda_emptyCache(self):  # noqa: N802
        self._call("emptyCache")
        for device in self.devices:
            device.allocator.empty_cache()

    def c_cuda_getCurrentStream(self, index):  # noqa: N802
        return 0, index, 1

    def c_cuda_isHistoryEnabled(self):  # noqa: N802
        self._require_native("recordHistory")
        return self.history is not None

    def _require_native(self, what):
        if self.backend != "native":
            name = "CUDAPluggableAllocator" if self.backend == "pluggable" else self.backend
            raise RuntimeError(f"{name} does not yet support {what}. If you need it, file an issue")

    def c_cuda_record_memory_history(  # noqa: PLR0917 (PyTorch's own order)
        self, enabled, context, stacks, max_entries, clear=False, compiles=False, annotations=False, skip_actions=()
    ):
        self._call("record_memory_history")
        self._require_native("recordHistory")
        self.history = None
        if enabled is not None:
            self.history = {
                "context": context,
                "stacks": stacks,
                "max_entries": max_entries,
                "skip_actions": tuple(skip_actions),
            }
        for device in self.devices:
            if clear or enabled is None:
                device.allocator.trace.clear()
            device.allocator.history = self.history if enabled == "all" else None

    def c_cuda_attach_out_of_memory_observer(self, observer):
        self._require_native("attachOutOfMemoryObserver")
        self.oom_observers.append(observer)

    def c_cuda_memorySnapshot(self, options=None):  # noqa: N802
        self._call("memorySnapshot")
        self._require_native("snapshot")
        return {
            "segments": [segment for device in self.devices for segment in device.allocator.snapshot()],
            "device_traces": [[dict(event) for event in device.allocator.trace] for device in self.devices],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": [],
        }

    def c_cuda_allocationTraceback(self, data_ptr):  # noqa: N802
        segments = (segment for device in self.devices for segment in device.allocator.segments)
        blocks = (block for segment in segments for block in segment.blocks if block.address == data_ptr)
        return next((block.frames for block in blocks if block.state == "active_allocated"), None)

    def c_cuda_setMemoryMetadata(self, metadata):  # noqa: N802
        THREAD.metadata = metadata

    def c_cuda_getMemoryMetadata(self):  # noqa: N802
        return getattr(THREAD, "metadata", "")

    # functions that torch binds at import

    def exchange(self, index):
        """Set the device and create its context, as ``cudaSetDevice`` does since CUDA 12. Ignore negative indices."""
        if index < 0:
            return -1
        old, self.current = self.current, index
        if old != index:
            self._context(index, "exchangeDevice")
        return old

    def maybe_exchange(self, index):
        """Set the device only if it has a context. Ignore negative indices."""
        if index < 0:
            return -1
        old = self.current
        if self.devices[index].context:
            self.current = index
        return old

    def capture_flag(self):
        return self.capturing == "current" and self.devices[self.current].context

    def properties(self, index):
        device = self.devices[index]
        return types.SimpleNamespace(
            name=device.name,
            uuid=device.uuid,
            total_memory=device.nvml_device.total - device.nvml_device.driver_reserved,
            major=9,
            minor=0,
            multi_processor_count=132,
            max_threads_per_multi_processor=2048,
            pci_domain_id=int(device.nvml_device.pci[:8], 16),
            pci_bus_id=int(device.nvml_device.pci[9:11], 16),
            pci_device_id=int(device.nvml_device.pci[12:14], 16),
        )

    def mem_get_info(self, index):
        self._call("cudaMemGetInfo")
        self._context(index, "cudaMemGetInfo")
        nvml_device = self.devices[index].nvml_device
        return nvml_device.free, nvml_device.total - nvml_device.driver_reserved

    def malloc(self, size):
        self._call("cudaMalloc")
        try:
            self._context(self.current, "cudaMalloc")
        except RuntimeError:  # the runtime returns error codes
            return 700, 0
        size = -(-size // _GRANULE) * _GRANULE
        if not self.devices[self.current].take(size):
            return 2, 0
        pointer = 0x7E0000000000 + (len(self.raw) + 1) * (1 << 32)
        self.raw[pointer] = (self.current, size)
        return 0, pointer

    def exchange_mode(self, mode):
        old, self.capture_mode = self.capture_mode, mode
        return old

    def raw_free(self, pointer):
        self._call("cudaFree")
        self._forbidden("cudaFree")
        index, size = self.raw.pop(pointer)
        self.devices[index].give(size)

    # installation

    def install(self):
        import torch

        from fakes.tensors import replacements
        from ipygpumem.sources import cuda

        put = self._patches.set
        for name, function in self._functions().items():
            put(torch._C, name, function)
        put(torch.cuda, "_is_in_bad_fork", lambda: False)
        put(torch.cuda, "_initialized", False)
        put(torch.cuda, "_cached_device_count", None)
        put(torch.cuda, "_exchange_device", self.exchange)
        put(torch.cuda, "_maybe_exchange_device", self.maybe_exchange)
        put(torch.cuda, "_get_device_properties", self.properties)
        put(torch.cuda, "_device_count_nvml", lambda: -1)
        put(torch.cuda, "_cudart", types.SimpleNamespace(cudaMemGetInfo=self.mem_get_info))
        put(torch.cuda, "Stream", _stream(self))
        put(torch.cuda, "default_generators", tuple(torch.Generator() for _ in self.devices))
        put(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", self.capture_flag)
        for owner, name, value in replacements(self):
            put(owner, name, value)
        put(cuda, "_runtime", lambda: _Runtime(self))
        self.nvml.install()
        return self

    def uninstall(self):
        self.nvml.uninstall()
        self._patches.restore()

    @contextlib.contextmanager
    def capture(self, stream="current"):
        """Capture a CUDA graph on the current stream, or (``"side"``) on a stream that PyTorch does not query."""
        self.capturing = stream
        try:
            yield
        finally:
            self.capturing = ""

    def hold(self, owner, block):
        """Free the block when its owner is deleted."""
        weakref.finalize(owner, self.free, block)


class _Runtime:
    """The CUDA runtime as called with ctypes: functions store results through pointers and return error codes."""

    def __init__(self, gpu):
        self._gpu = gpu

    def cudaMalloc(self, pointer, size):  # noqa: N802
        error, pointer._obj.value = self._gpu.malloc(size.value)
        return error

    def cudaFree(self, pointer):  # noqa: N802
        self._gpu.raw_free(pointer.value)
        return 0

    def cudaThreadExchangeStreamCaptureMode(self, mode):  # noqa: N802
        mode._obj.value = self._gpu.exchange_mode(mode._obj.value)
        return 0

    def cudaGetLastError(self):  # noqa: N802
        return 0


class _Engine:
    """The autograd engine of PyTorch 2.11."""

    def __init__(self, engine):
        self._engine = engine
        self._discarded = False

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def stack_of_free_gathered(self):
        import torch

        self._discarded |= torch._C._current_autograd_node() is not None

    def run_backward(self, *arguments, **options):
        self._discarded = False
        try:
            return self._engine.run_backward(*arguments, **options)
        except Exception:
            if self._discarded:
                message = f"{self._engine.run_backward!r} returned NULL without setting an exception"
                raise SystemError(message) from None
            raise


def _stream(gpu):
    class Stream:
        def __init__(self, stream_id=0, device_index=0, device_type=1):
            self.device_index = device_index

        def query(self):
            gpu._call("cudaStreamQuery")
            gpu._context(self.device_index, "cudaStreamQuery")
            return not gpu.devices[self.device_index].busy

        def synchronize(self):
            gpu._call("cudaStreamSynchronize")
            gpu._context(self.device_index, "cudaStreamSynchronize")
            gpu.devices[self.device_index].busy = False

    return Stream
