"""Inspect tensors and their storages without calling hooks or overrides, copying data, or synchronizing.

Tensor subclasses may override almost every attribute. The C getters of the base class are therefore called with
overrides disabled. Attributes whose C getters would still run user code are not read.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import warnings
from collections.abc import Iterator
from itertools import compress
from types import FunctionType
from typing import Any, Literal, NamedTuple

from ipygpumem.core.introspection import attempt, is_instance, mro, preserve_shown_warnings, type_dict

Role = Literal["tensor", "storage", "module", "optimizer"]

_NAME_ATTRIBUTES = ("tensor_data_names", "optional_tensor_data_names")
"""Attributes in which torchao's classes list the names of their inner tensors."""
_MAX_NAME_LEVELS = 5
_ROUNDING = 512  # PyTorch's CUDA allocator rounds sizes up to multiples of this number of bytes
_get_address, _get_size = operator.methodcaller("data_ptr"), operator.methodcaller("nbytes")
_get_device, _get_storage_id = operator.attrgetter("device"), operator.attrgetter("_cdata")


def is_saved_tensor(value: Any) -> bool:
    """A ``SavedTensor`` is an object of autograd that the garbage collector cannot traverse."""
    return type(value).__name__ == "SavedTensor"


class StorageLocation(NamedTuple):
    """Device, data pointer and size in bytes of a storage, and its StorageImpl's address, which is 0 if unknown."""

    device: str
    address: int
    size: int
    storage: int = 0

    @property
    def rounded_size(self) -> int:
        """Size in bytes, on CUDA devices rounded up to a multiple of 512 bytes."""
        return -(-self.size // _ROUNDING) * _ROUNDING if self.device.startswith("cuda") else self.size


_new_location: Any = functools.partial(tuple.__new__, StorageLocation)  # three times as fast as calling the class


class StorageInspector:
    """Inspector that recognizes tensors, storages, modules and optimizers by type, and reads attributes of tensors."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._base = torch._C.TensorBase
        self._strided = torch.strided
        self._untyped_storage = self._base.untyped_storage
        self._roots: tuple[tuple[Any, Role], ...] = (
            (torch._C.TensorBase, "tensor"),
            (torch.UntypedStorage, "storage"),
            (torch.nn.Module, "module"),
            (torch.optim.Optimizer, "optimizer"),
        )
        names = ("is_leaf", "grad", "grad_fn", "_base", "layout", "dtype", "shape", "requires_grad")
        getters: list[Any] = [getattr(self._base, name).__get__ for name in names]
        self._is_leaf, self._grad, self._grad_fn, self._view_base, *getters = getters
        self._layout, self._dtype, self._shape, self._requires_grad = getters
        self.tensor_class = torch.Tensor
        self._descriptions: dict[Any, tuple[str, int]] = {}
        self._device_names: dict[Any, str] = {}
        # with PyTorch 2.4, a garbage collection that deleted a StorageWeakRef crashed; fixed in 2.10 or earlier
        has_weak_references = torch.__version__ >= (2, 10)  # takes 40 µs
        self._weak_reference = torch.multiprocessing.reductions.StorageWeakRef if has_weak_references else None
        self._data_address: Any = getattr(torch._C, "_data_address", None)
        self._is_cow = None if self._data_address is None else getattr(torch._C, "_is_cow_tensor", None)
        self._saved_names: dict[int, tuple[str, ...]] = {}
        self._dispatching_types: dict[int, bool] = {}
        self._roles: dict[int, tuple[type, Role | None]] = {}

    def role(self, kind: type) -> Role | None:
        if id(kind) not in self._roles:
            bases = mro(kind)
            roles = (role for root, role in self._roots if any(base is root for base in bases))
            self._roles[id(kind)] = kind, next(roles, None)  # a reference to the class prevents the reuse of its id
        return self._roles[id(kind)][1]

    def classes(self) -> list[type]:
        classes = [root for root, role in self._roots if role in {"tensor", "storage"}]
        for cls in classes:  # the loop appends the subclasses
            classes += type.__subclasses__(cls)
        return classes

    @contextlib.contextmanager
    def without_overrides(self) -> Iterator[None]:
        c_module = self._torch._C
        with preserve_shown_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with c_module.DisableTorchFunction(), c_module._DisableTorchDispatch():
                yield

    def storages(self, tensor: Any) -> list[tuple[Any, StorageLocation]]:
        """Return (storage, location) pairs. A sparse tensor has several storages; a tensor without memory has none."""
        try:
            layout = self._layout(tensor)
            if layout is not self._strided and str(layout).startswith("torch.sparse"):
                return [pair for part in self._sparse_parts(tensor) for pair in self.storages(part)]
            storage = self._untyped_storage(tensor)
            address = self._data_address(tensor) if self._is_cow is not None and self._is_cow(tensor) else None
            locations = self.storage_locations(storage, address)
            return [(storage, locations[0])] if locations else []
        except Exception:  # a tensor without storage, for example a meta or MKL-DNN tensor
            return []

    def unrelated_storages(self, tensors: list[Any]) -> tuple[list[Any], list[Any], list[StorageLocation]]:
        """Return the tensors that are independent of autograd and of other tensors, their storages and their locations.

        These tensors are strided, do not require gradients, and have no gradient and no base tensor. The three lists
        have the same order. They are empty if a storage cannot be read, has no memory or belongs to several of the
        tensors, or if a tensor is a lazy (copy-on-write) clone.
        """
        try:
            properties = (self._requires_grad, self._grad, self._view_base, self._layout)
            columns = zip(*(map(read, tensors) for read in properties), strict=True)
            is_unrelated = [
                not requires_grad and gradient is None and base is None and layout is self._strided
                for requires_grad, gradient, base, layout in columns
            ]
            tensors = list(compress(tensors, is_unrelated))
            if self._is_cow is not None and any(map(self._is_cow, tensors)):
                return [], [], []
            storages = list(map(self._untyped_storage, tensors))
            names = {device: str(device) for device in set(map(_get_device, storages))}
            devices, addresses = map(names.__getitem__, map(_get_device, storages)), map(_get_address, storages)
            values = zip(devices, addresses, map(_get_size, storages), map(_get_storage_id, storages), strict=True)
            locations = list(map(_new_location, values))
            if len({location[:2] for location in locations}) < len(tensors) or not all(map(all, locations)):
                return [], [], []
        except Exception:
            return [], [], []
        return tensors, storages, locations

    def weak_reference(self, storage: Any) -> Any:
        """The reference prevents reuse of the StorageImpl's address. None before PyTorch 2.10."""
        return None if self._weak_reference is None else self._weak_reference(storage)

    def storage_locations(self, storage: Any, address: int | None = None) -> list[StorageLocation]:
        """Return a list that contains the location of a storage; an empty list if the storage has no memory.

        ``address`` is the data pointer of the storage, or None if it must be read.
        """
        try:
            device = storage.device
            name = self._device_names.get(device)
            if name is None:
                name = self._device_names[device] = str(device)
            address = storage.data_ptr() if address is None and name != "meta" else address
            nbytes = storage.nbytes()
            values = name, address, nbytes, getattr(storage, "_cdata", 0)
            return [_new_location(values)] if address and nbytes else []
        except Exception:
            return []

    def _sparse_parts(self, tensor: Any) -> list[Any]:
        if self.defines_torch_dispatch(tensor):
            return []
        layout = str(self._base.layout.__get__(tensor))
        names = {
            "torch.sparse_coo": ("_indices", "_values"),
            "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
            "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
        }.get(layout, ("ccol_indices", "row_indices", "values"))
        return [getattr(self._base, name)(tensor) for name in names]

    def defines_torch_dispatch(self, tensor: Any) -> bool:
        """Return whether the class of a tensor defines ``__torch_dispatch__``, which may run when the shape is read."""
        kind = type(tensor)
        result = self._dispatching_types.get(id(kind))
        if result is None:
            bases = (base for base in mro(kind) if base is not self._torch.Tensor)
            result = self._dispatching_types[id(kind)] = any("__torch_dispatch__" in type_dict(base) for base in bases)
        return result

    def describe(self, tensor: Any) -> tuple[str, int | None]:
        """Return a description such as ``float32 [4096, 4096]``, and the size in bytes, which is None if unknown."""
        dtype = self._dtype(tensor)
        try:
            is_dispatching = self._dispatching_types.get(id(type(tensor)))
            if is_dispatching is None:
                is_dispatching = self.defines_torch_dispatch(tensor)
            if not is_dispatching and self._layout(tensor) is self._strided:
                key = dtype, self._shape(tensor)
                description = self._descriptions.get(key)
                if description is None:
                    text = f"{str(dtype).removeprefix('torch.')} {list(key[1])}"
                    description = self._descriptions[key] = text, math.prod(key[1]) * dtype.itemsize
                return description
        except Exception:  # noqa: S110 (a nested tensor has no shape)
            pass
        return str(dtype).removeprefix("torch."), None  # a sparse tensor also stores indices

    def descriptions(self, tensors: list[Any]) -> list[tuple[str, int | None]]:
        """The tensors must not be instances of subclasses of `torch.Tensor`."""
        keys = list(zip(map(self._dtype, tensors), map(self._shape, tensors), strict=True))
        by_key = {key: self.describe(tensor) for key, tensor in dict(zip(keys, tensors, strict=True)).items()}
        return list(map(by_key.__getitem__, keys))

    def related(self, tensor: Any) -> tuple[Any, Any, Any]:
        """Return the gradient of a leaf tensor, the base tensor and the autograd node. Missing values are None."""
        gradient = node = None
        try:
            if self._is_leaf(tensor):
                gradient = self._grad(tensor)
            else:
                node = self._grad_fn(tensor)
            return gradient, self._view_base(tensor), node
        except Exception:
            return gradient, None, node

    def saved(self, node: Any) -> tuple[list[Any], bool]:
        """Return a tuple ``(values, incomplete)``: values saved by an autograd node, and whether some cannot be read.

        No hook is called. For a tensor packed by a hook, the packed value and the unpack hook are returned.
        """
        kind = type(node)
        names = self._saved_names.get(id(kind))
        if names is None:
            names = self._saved_names[id(kind)] = tuple(
                name for base in mro(kind) for name in type_dict(base) if name.startswith(("_raw_saved_", "variable"))
            )
        values, incomplete = [], False
        for name in names:
            try:
                value = getattr(node, name)
                for saved_value in value if type(value) is tuple or type(value) is list else (value,):
                    parts, complete = self.saved_parts(saved_value)
                    values += parts
                    incomplete |= not complete
            except Exception:  # noqa: S112 (freed by the backward pass)
                continue
        return [value for value in values if value is not None], incomplete

    def saved_parts(self, saved_value: Any) -> tuple[list[Any], bool]:
        """Return a tuple ``(objects, complete)``: the objects in a saved value, and whether all can be read."""
        if not is_saved_tensor(saved_value):
            return [saved_value], True
        kind = type(saved_value)
        if not hasattr(kind, "data"):
            return [], False
        data = saved_value.data
        if hasattr(kind, "unpack_hook"):
            return [data, saved_value.unpack_hook], True  # reading the hook does not call it
        return [data], data is None or self.role(type(data)) == "tensor"

    @staticmethod
    def next_nodes(node: Any) -> list[Any]:
        functions = attempt(lambda: tuple(node.next_functions)) or ()
        return [next_node for next_node, _ in functions if next_node is not None]


def flattened_names(cls: type) -> set[str]:
    """Return possible names of a tensor subclass's inner tensors, such as the constants in ``__tensor_flatten__``."""
    names: set[str] = set()
    for namespace in map(type_dict, mro(cls)):
        flatten = namespace.get("__tensor_flatten__")
        constants = flatten.__code__.co_consts if type(flatten) is FunctionType else ()
        values = contents((constants, *(namespace.get(attribute) for attribute in _NAME_ATTRIBUTES)), _MAX_NAME_LEVELS)
        names.update(value for value in values if type(value) is str)
    return names


def contents(container: Any, levels: int) -> list[Any]:
    """Values nested more than ``levels`` levels deep are omitted."""
    base: Any = next((base for base in (dict, list, tuple) if is_instance(container, base)), None)
    if base is None:
        return [container]
    values = list(dict.values(container) if base is dict else base.__iter__(container))
    return [item for value in values for item in contents(value, levels - 1)] if levels else []
