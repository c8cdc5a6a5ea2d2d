"""Run code on fake tensors, which have no data, and log the memory that it would use on a GPU.

Existing tensors are not replaced: each operation receives fake copies of them, so that it cannot write to the tensors.
If the code uses no tensors on a GPU, tensors in host memory are counted as if they were on a GPU.
"""

from __future__ import annotations

import contextlib
import logging
import unittest.mock
import weakref
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interrupts import DeferredInterruptsInFiles, ImmediateInterrupts
from ipygpumem.core.units import KIB, MIB
from ipygpumem.features.fit.dry.cuda_kernels import convolution_workspace, cuda_kernels, recurrent_on_gpu, rnn_kernels
from ipygpumem.features.fit.dry.module_names import OUTSIDE, ModuleNames
from ipygpumem.features.fit.dry.operation_cache import OperationCache
from ipygpumem.features.fit.dry.replaced_functions import grouped_copies, is_sparse, refuse_sparse, refused_access
from ipygpumem.features.fit.dry.storage_log import CallStackRecorder, StorageLog, map_tensors, meta_view
from ipygpumem.features.fit.dry.unknown_numbers import unknown_items
from ipygpumem.snapshot.scaling.simulated_recording import SimulatedAllocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ipygpumem.features.fit.step_objects import StepObjects

PARAMETERS, BUFFERS, GRADIENTS = "parameters", "buffers", "gradients"
OPTIMIZER_STATE, OTHER, LIBRARIES = "optimizer state", "other tensors", "library workspaces"
FORWARD, BACKWARD, UPDATE = "forward pass", "backward pass", "optimizer update"
_MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "addbmm")
_WORKSPACES = {True: 32 * MIB, False: 8320 * KIB}
"""Size in bytes of the cuBLAS workspace of each thread; the key is whether the GPU is a Hopper GPU or a later one."""
_LT_WORKSPACE = MIB
_TORCH_FILES = (
    "_subclasses", "_ops.py", "_dispatch", "_library", "_meta_registrations.py", "_prims", "_refs", "utils/_pytree.py",
    "utils/_python_dispatch.py", "utils/_stats.py", "utils/weak.py",
)  # fmt: skip
_OWN_FILES = ("cuda_kernels.py", "fake_device.py", "operation_cache.py", "replaced_functions.py", "storage_log.py",
    "unknown_numbers.py")  # fmt: skip


class FakeDevice:
    """A simulated GPU on which code runs on fake tensors, and whose allocations are logged.

    Args:
        torch: The module torch.
        objects: The objects that are reachable from the code.
        hopper: Whether the simulated GPU is a Hopper GPU or a later one.

    Attributes:
        log: Allocations and frees on the simulated GPU.
        has_unknown_numbers: Whether the code has received an `UnknownNumber` instead of the value of a tensor.
        searches_algorithms: Whether cuDNN would search for the fastest algorithms of convolutions on a GPU.
        native: Whether the code uses tensors on a real GPU. If not, tensors in host memory are counted instead.
    """

    def __init__(self, torch: Any, objects: StepObjects, *, hopper: bool) -> None:
        self._torch = torch
        self._objects = objects
        self._fake: Any = import_module("torch._subclasses.fake_tensor")
        self.log = StorageLog()
        self._stacks = CallStackRecorder()
        self._names = ModuleNames(instance for instance in objects.instances if isinstance(instance, torch.nn.Module))
        self.native = any(tensor.is_cuda for tensor in objects.tensors)
        self._workspace = _WORKSPACES[hopper]
        self._mode = self._fake.FakeTensorMode(allow_non_fake_inputs=True)
        self._operations = OperationCache(torch, self._fake.FakeTensor, self._mode)
        self._copies: Any = import_module("torch.utils.weak").WeakTensorKeyDictionary()
        self._known = {id(tensor) for tensor in objects.tensors}
        self._gradients: list[tuple[Any, Any]] = []
        self._workspaces: dict[str, list[SimulatedAllocation]] = {}
        self.has_unknown_numbers = self.searches_algorithms = self._in_backward = False
        self._modules_by_node: dict[int, str] = {}
        self._tree: Any = import_module("torch.utils._pytree")
        self._dispatch: Any = import_module("torch.utils._python_dispatch")
        self._aten = torch.ops.aten
        self._products = {getattr(self._aten, name).default for name in _MATRIX_PRODUCTS if hasattr(self._aten, name)}
        self._lifts = {self._aten.lift_fresh.default, self._aten.lift_fresh_copy.default}
        self._kernels: dict[Any, Callable[..., Any]] = rnn_kernels(torch)
        # exceptions in the code of these files can terminate the process, because PyTorch calls it in destructors
        library, package = Path(torch.__file__).parent, Path(__file__).parent
        files = (*(library / name for name in _TORCH_FILES), *(package / name for name in _OWN_FILES))
        self._interrupts = DeferredInterruptsInFiles(weakref.__file__, *map(str, files))
        self._add_model()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Return a context manager that runs code on fake tensors. Interrupts must be deferred before it is entered."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._dispatch._disable_current_modes())  # modes of the program may read data
            stack.enter_context(refused_access(self._torch))
            stack.enter_context(unknown_items(self._torch, self))
            logger = logging.getLogger(self._fake.__name__)  # logs errors of the step with tracebacks
            stack.enter_context(unittest.mock.patch.object(logger, "disabled", True))
            stack.enter_context(self._mode)
            stack.enter_context(grouped_copies(self._torch, self._copy))
            stack.enter_context((recurrent_on_gpu if self.native else cuda_kernels)(self._torch))
            stack.enter_context(self._dispatch_mode())
            with ImmediateInterrupts(), self._interrupts:
                yield

    def _add_model(self) -> None:
        """Log the parameters and buffers of modules and the state of optimizers as existing allocations."""
        with self._mode:
            for tensor in self._objects.tensors:
                if self._names.is_owned(tensor) and not is_sparse(tensor):
                    self._copy(tensor)
            for optimizer in self._objects.optimizers:
                for values in optimizer.state.values():
                    for value in values.values() if isinstance(values, dict) else ():
                        if self._torch.is_tensor(value):
                            self._copy(value)

    def label_tensors(self) -> None:
        """Label the allocations of gradients and of optimizer state with their category and module."""
        for optimizer in self._objects.optimizers:
            for parameter, values in optimizer.state.items():
                for value in values.values() if isinstance(values, dict) else ():
                    if self._torch.is_tensor(value):
                        self._label(value, OPTIMIZER_STATE, self._names.owner(parameter))
        for leaf in self._objects.tensors:
            if leaf.is_leaf and leaf.grad is not None:
                self._label(leaf.grad, GRADIENTS, self._names.owner(leaf))

    def remove(self, tensors: Iterable[Any] = ()) -> None:
        """Delete the fake copies of ``tensors`` and of the tensors whose data the step has replaced."""
        replaced_tensors = [tensor for tensor, copy in self._copies.items() if self.log.is_replaced(tensor, copy)]
        for tensor in (*tensors, *replaced_tensors):
            self._copies.pop(tensor, None)

    def close(self) -> None:
        """Restore the gradients of tensors that are not in ``objects``, which `SavedState` does not restore."""
        for tensor, gradient in self._gradients:
            if isinstance(tensor.grad, self._fake.FakeTensor):
                tensor.grad = gradient
        self._gradients.clear()

    def remaining(self) -> int:
        """Return the number of logged storages that still exist, except those of the fake copies."""
        copies = [copy for copy in self._copies.values() if isinstance(copy, self._fake.FakeTensor)]
        return self.log.remaining(copy.untyped_storage() for copy in copies)

    def convert_to_bf16(self) -> None:
        """Replace the fake copies of all tensors for which `bf16_copy` creates a bfloat16 copy."""
        for tensor in list(self._copies):
            self.bf16_copy(tensor)

    def bf16_copy(self, value: Any) -> Any:
        """Return the fake bfloat16 copy of a float32 leaf tensor with at least one dimension.

        For other float32 tensors, return the existing fake copy, if any. Return other values and subclasses unchanged.
        """
        torch = self._torch
        if type(value) not in {torch.Tensor, torch.nn.Parameter} or value.dtype != torch.float32:
            return value
        copy = self._copies.get(value)
        if value.dim() and value.is_leaf and (copy is None or copy.dtype != torch.bfloat16):
            device = "cpu" if value.is_meta else value.device
            copy = torch.empty_strided(value.size(), value.stride(), dtype=torch.bfloat16, device=device)
            self._copies[value] = copy.requires_grad_(value.requires_grad)
        return value if copy is None else copy

    def allocation(self, tensor: Any) -> SimulatedAllocation | None:
        """Return the allocation of a tensor, or None if the tensor uses no memory of the simulated GPU."""
        copy = self._copies.get(tensor, tensor)
        return self.log.get(copy.untyped_storage()) if isinstance(copy, self._fake.FakeTensor) else None

    def _label(self, tensor: Any, context: str, module: str) -> None:
        allocation = self.allocation(tensor)
        if allocation is not None:
            allocation.context, allocation.metadata = context, module

    def _counts(self, tensor: Any) -> bool:
        """Return whether a fake tensor uses memory of the simulated GPU."""
        if self.native:
            return bool(tensor.device.type == "cuda")
        return tensor.constant is None  # a scalar whose value is known, such as the number of steps, is on the host

    def _copy(self, tensor: Any) -> Any:
        """Return the fake copy of an existing tensor, and create it if necessary. Return other values unchanged."""
        torch = self._torch
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, self._fake.FakeTensor):
            return tensor
        copy = self._copies.get(tensor)
        if self.log.is_replaced(tensor, copy):
            device = torch.device("cuda" if self.native else "cpu") if copy is None else copy.device
            with self._dispatch._disable_current_modes():
                copy = self._copies[tensor] = self._fake.FakeTensor(self._mode, meta_view(torch, tensor), device)
        elif copy is None:
            refuse_sparse(tensor)
            if tensor.device.type == "cpu" and tensor.numel() == 1:
                with self._dispatch._disable_current_modes():
                    value = tensor.detach().clone()
                copy = self._mode.fake_tensor_converter.from_real_tensor(self._mode, value, make_constant=True)
            elif tensor.is_meta:  # a model that was built without data
                copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            else:
                copy = self._mode.from_tensor(tensor)
            self._copies[tensor] = copy
            if id(tensor) not in self._known and tensor.is_leaf:
                self._gradients.append((tensor, tensor.grad))
            if isinstance(copy, self._fake.FakeTensor) and self._counts(copy) and copy.layout is torch.strided:
                storage = copy.untyped_storage()
                if self.log.get(storage) is None:
                    context = PARAMETERS if isinstance(tensor, torch.nn.Parameter) else OTHER
                    if context == OTHER and self._names.is_owned(tensor):
                        context = BUFFERS
                    allocation = SimulatedAllocation(storage.nbytes(), [], context, self._names.owner(tensor))
                    self.log.add(storage, allocation, older=id(tensor) in self._known)
        return copy

    def _dispatch_mode(self) -> Any:
        device, query, tensor_class = self, self._torch.ops.prim.device.default, self._fake.FakeTensor
        base: Any = self._dispatch.TorchDispatchMode

        class FakeDeviceMode(base):  # type: ignore[misc]
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # nothing is compiled, and the wrapper that skips the compiler is slow

            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function is query and isinstance(args[0], tensor_class):
                    return args[0].fake_device  # the most frequent operation
                return device._run(function, args, kwargs or {})

        return FakeDeviceMode()

    def _run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on fake copies of its arguments, and log the storages of its results."""
        if function not in self._lifts:
            args, kwargs = map_tensors(self._torch, self._copy, (args, kwargs))
        backward = self._torch._C._current_graph_task_id() >= 0
        if self._in_backward and not backward:
            self.label_tensors()  # before the step deletes the gradients
        self._in_backward = backward
        try:
            result = self._operations.run(function, self._kernels.get(function, function), args, kwargs)
        except self._fake.DataDependentOutputException:
            if function is not self._aten._local_scalar_dense.default or not self._stacks.in_grad_scaler():
                raise
            return 0.0  # the gradients are finite
        new = list(self._new_storages(result))
        if new:  # PyTorch handles exceptions of such operations, unlike those of queries for a tensor's device
            self._interrupts.deliver()
        if new or function in self._products:
            workspace = self._convolution_workspace(function, args, result)
            self._log(new, is_product=function in self._products, convolution_workspace=workspace)
        return result

    def _convolution_workspace(self, function: Any, args: Any, result: Any) -> int:
        """Return the size of the cuDNN workspace in bytes if the function is a convolution, otherwise 0."""
        if function not in {forward := self._aten.convolution.default, self._aten.convolution_backward.default}:
            return 0
        self.searches_algorithms |= self._torch.backends.cudnn.benchmark
        return convolution_workspace(self._torch, *((result, *args) if function is forward else args))

    def _new_storages(self, result: Any) -> Iterator[Any]:
        for leaf in (result,) if isinstance(result, self._torch.Tensor) else self._tree.tree_leaves(result):
            if isinstance(leaf, self._torch.Tensor):
                refuse_sparse(leaf)
            if isinstance(leaf, self._fake.FakeTensor) and self._counts(leaf) and leaf.layout is self._torch.strided:
                storage = leaf.untyped_storage()
                if storage.nbytes() and self.log.get(storage) is None:
                    yield storage

    def _log(self, storages: list[Any], *, is_product: bool, convolution_workspace: int) -> None:
        frames, module, optimizer = self._stacks.capture()
        phase, name = (UPDATE, "(optimizer)") if optimizer else self._phase_and_module(module)
        for storage in {storage._cdata: storage for storage in storages}.values():
            self.log.add(storage, SimulatedAllocation(storage.nbytes(), frames, phase, name))
        if is_product and phase not in self._workspaces:
            sizes = [self._workspace] if self._workspaces else [self._workspace, _LT_WORKSPACE]
            workspaces = [SimulatedAllocation(size, frames, LIBRARIES, "(cuBLAS)") for size in sizes]
            self._workspaces[phase] = workspaces
            for allocation in workspaces:
                self.log.add_permanent(allocation)
        for allocation in self._workspaces[phase] if is_product else ():
            self.log.use_permanent(allocation)
        if convolution_workspace:
            workspace = SimulatedAllocation(convolution_workspace, frames, LIBRARIES, "(cuDNN)")
            self.log.requests += [(workspace, False), (workspace, True)]

    def _phase_and_module(self, module: Any) -> tuple[str, str]:
        """Return the phase of the step and the label of the module to which the running operation belongs."""
        torch, backward = self._torch, self._in_backward
        if module is not None:
            name = self._names.label(module)
        elif backward:
            node = torch._C._current_autograd_node()
            name = self._modules_by_node.get(-1 if node is None else node._sequence_nr(), OUTSIDE)
        else:
            name = OUTSIDE
        if not backward:
            self._modules_by_node[torch._C._autograd._get_sequence_nr() - 1] = name
        return BACKWARD if backward else FORWARD, name
