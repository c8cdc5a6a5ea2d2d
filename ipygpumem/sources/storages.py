"""Tensors and their storages, read without a call of anybody's code: no hook, no override, no copy, no wait.

Subclasses of tensors answer nearly every question with code of their own. So the C getters of the base class are asked,
with overrides switched off, and where even those would come to somebody's code nothing is asked.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    Role = Literal["tensor", "storage", "module", "optimizer"]

__all__ = ["Memory", "Types", "is_saved", "mro", "type_dict"]

mro = type.__dict__["__mro__"].__get__
"""The bases of a class as Python itself has them: a metaclass cannot answer in its place."""
type_dict = type.__dict__["__dict__"].__get__
"""What a class itself has, as Python has it."""


def is_saved(thing: Any) -> bool:
    """Whether this is autograd's own wrapper of a tensor, which Python's collector does not see through."""
    return type(thing).__name__ == "SavedTensor"


class Memory(NamedTuple):
    """Where a storage lies: device, address and bytes; ``storage`` is where PyTorch has it, 0 if that is not known."""

    device: str
    address: int
    size: int
    storage: int = 0


class Types:
    """What a torch makes of an object, by its type; and the questions that a tensor may be asked."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._base = torch._C.TensorBase
        self._roots: tuple[tuple[Any, Role], ...] = (
            (torch._C.TensorBase, "tensor"),
            (torch.UntypedStorage, "storage"),
            (torch.nn.Module, "module"),
            (torch.optim.Optimizer, "optimizer"),
        )
        names = ("is_leaf", "requires_grad", "grad", "grad_fn", "_base")
        self._leaf, self._requires, self._grad, self._grad_fn, self._view_of = (
            getattr(self._base, name).__get__ for name in names
        )
        self._cow = getattr(torch._C, "_is_cow_tensor", None)
        self._address = getattr(torch._C, "_data_address", None)
        self._saved: dict[int, tuple[str, ...]] = {}
        self._own_shape: dict[int, bool] = {}

    def role(self, kind: type) -> Role | None:
        """What the objects of a class are to torch."""
        bases = mro(kind)
        return next((role for root, role in self._roots if any(base is root for base in bases)), None)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Overrides off, in this thread; torch's warnings about looking are not for the user."""
        c_module = self._torch._C
        with warnings.catch_warnings(), c_module.DisableTorchFunction(), c_module._DisableTorchDispatch():
            warnings.simplefilter("ignore")
            yield

    def storages(self, tensor: Any) -> list[Memory]:
        """Where a tensor lies; a sparse one lies in several places, one without storage of its own in none."""
        return [memory for _, memory in self.located(tensor)]

    def located(self, tensor: Any) -> list[tuple[Any, Memory]]:
        """The same with the storages themselves."""
        try:
            if self._sparse(tensor):
                return [one for part in self._parts(tensor) for one in self.located(part)]
            storage = self._base.untyped_storage(tensor)
            cow = self._cow is not None and self._address is not None and self._cow(tensor)
            found = self.memory(storage, self._address(tensor) if cow and self._address is not None else None)
            return [(storage, one) for one in found]
        except Exception:  # a tensor without storage: meta, mkldnn, a subclass made of others
            return []

    def weak(self, storage: Any) -> Any:
        """A reference that keeps nothing but the storage's place in PyTorch, which no other has meanwhile."""
        try:
            return self._torch.multiprocessing.reductions.StorageWeakRef(storage)
        except Exception:
            return None

    def memory(self, storage: Any, address: int | None = None) -> list[Memory]:
        """Where a storage lies. ``address`` where asking for it would copy: of a copy-on-write storage."""
        try:
            device = storage.device
            if device.type == "meta":
                return []
            where = storage.data_ptr() if address is None else address
            size, own = int(storage.nbytes()), int(getattr(storage, "_cdata", 0))
        except Exception:
            return []
        return [Memory(str(device), where, size, own)] if where and size else []

    def _sparse(self, tensor: Any) -> bool:
        return str(self._base.layout.__get__(tensor)).startswith("torch.sparse")

    def _parts(self, tensor: Any) -> list[Any]:
        if self.dispatches(tensor):
            return []
        layout = str(self._base.layout.__get__(tensor))
        names = {
            "torch.sparse_coo": ("_indices", "_values"),
            "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
            "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
        }.get(layout, ("ccol_indices", "row_indices", "values"))
        return [getattr(self._base, name)(tensor) for name in names]

    def dispatches(self, tensor: Any) -> bool:
        """Whether its class answers for its shape with code of its own."""
        kind = type(tensor)
        known = self._own_shape.get(id(kind))
        if known is None:
            plain = self._torch.Tensor
            known = any("__torch_dispatch__" in type_dict(base) for base in mro(kind) if base is not plain)
            self._own_shape[id(kind)] = known
        return known

    def describe(self, tensor: Any) -> tuple[str, int | None]:
        """Type and shape as text (``float32 [4096, 4096]``), and the bytes of its own elements where they are known."""
        dtype = self._base.dtype.__get__(tensor)
        text = str(dtype).removeprefix("torch.")
        if self.dispatches(tensor) or self._base.layout.__get__(tensor) is not self._torch.strided:
            return text, None  # a sparse tensor's elements are not all it has
        try:
            shape = list(self._base.shape.__get__(tensor))
            count = 1
            for length in shape:
                count *= length
            return f"{text} {shape}", count * dtype.itemsize
        except Exception:  # a nested tensor has no shape
            return text, None

    def gradient(self, tensor: Any) -> Any | None:
        """A leaf's gradient. Of others nothing is asked: torch would warn."""
        try:
            if self._requires(tensor) and self._leaf(tensor):
                return self._grad(tensor)
        except Exception:
            return None
        return None

    def base(self, tensor: Any) -> Any | None:
        """The tensor that this one is a view of, and keeps."""
        try:
            return self._view_of(tensor)
        except Exception:
            return None

    def grad_fn(self, tensor: Any) -> Any | None:
        """The node of the autograd graph that made a tensor."""
        try:
            return None if self._leaf(tensor) else self._grad_fn(tensor)
        except Exception:
            return None

    def saved(self, node: Any) -> tuple[list[Any], bool]:
        """What a node of the graph saved for backward, below every hook; and whether some of it cannot be read.

        Where a hook packed it, what it made of it: any object; and the hook that would unpack it, not called.
        """
        kind = type(node)
        names = self._saved.get(id(kind))
        if names is None:
            names = tuple(
                name for base in mro(kind) for name in type_dict(base) if name.startswith(("_raw_saved_", "variable"))
            )
            self._saved[id(kind)] = names
        found, unread = [], False
        for name in names:
            try:
                value = getattr(node, name)
                for one in value if type(value) is tuple or type(value) is list else (value,):
                    parts, known = self.unpacked(one)
                    found += parts
                    unread |= not known
            except Exception:  # noqa: S112 (freed by a backward pass)
                continue
        return [one for one in found if one is not None], unread

    def unpacked(self, saved: Any) -> tuple[list[Any], bool]:
        """What a saved tensor keeps, and whether that is all: its data, and a hook, which may keep anything."""
        if not is_saved(saved):
            return [saved], True
        kind = type(saved)
        if not hasattr(kind, "data"):
            return [], False
        data = saved.data
        if hasattr(kind, "unpack_hook"):
            return [data, saved.unpack_hook], True  # the function itself: reading it runs nothing
        return [data], data is None or self.role(type(data)) == "tensor"

    @staticmethod
    def following(node: Any) -> list[Any]:
        """The nodes whose results a node's backward feeds."""
        try:
            return [one for one, _ in node.next_functions if one is not None]
        except Exception:
            return []
