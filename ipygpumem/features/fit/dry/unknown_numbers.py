"""Placeholders for the values of tensors without data, such as the loss that a step prints or appends to a list."""

from __future__ import annotations

import contextlib
import numbers
import threading
import unittest.mock
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipygpumem.features.fit.dry.replaced_functions import DataRequiredError

if TYPE_CHECKING:
    from ipygpumem.features.fit.dry.fake_device import FakeDevice

_REQUIRES_VALUE = (
    "bool", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "hash", "eq", "ne", "lt", "le", "gt",
    "ge",
)  # fmt: skip
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class UnknownNumber:
    """Number whose value is unknown. It can be stored, formatted and used in arithmetic with other numbers.

    Other operations, such as comparisons and conversions, raise `DataRequiredError`.
    ``isinstance`` treats the object as an instance of ``kind``.
    """

    __slots__ = ("_kind",)

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property
    def __class__(self) -> Any:
        return self._kind

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise TypeError("the class of an unknown number cannot be changed")

    def __repr__(self) -> str:
        return "?"

    def __format__(self, _: str) -> str:
        return "?"

    def __reduce__(self) -> Any:
        return UnknownNumber, (self._kind,)


def _raise(*_: Any) -> Any:
    raise DataRequiredError("needs the value that item() has returned, which is unknown because the tensor has no data")


def _calculate(_: Any, other: Any) -> Any:
    # type() instead of isinstance(), which UnknownNumber deceives
    return UnknownNumber(float) if type(other) is UnknownNumber or isinstance(other, numbers.Number) else _raise()


def _same(number: Any) -> Any:
    return number


for _name in _REQUIRES_VALUE:
    setattr(UnknownNumber, f"__{_name}__", _raise)
for _name in _ARITHMETIC:
    setattr(UnknownNumber, f"__{_name}__", _calculate)
    setattr(UnknownNumber, f"__r{_name}__", _calculate)
for _name in ("neg", "pos", "abs"):
    setattr(UnknownNumber, f"__{_name}__", _same)


@contextlib.contextmanager
def unknown_items(torch: Any, device: FakeDevice) -> Iterator[None]:
    """In the current thread, let ``Tensor.item`` return an `UnknownNumber` for tensors without data.

    Each such call sets ``has_unknown_numbers``.
    """
    item, own_thread = torch.Tensor.item, threading.get_ident()
    exception = import_module("torch._subclasses.fake_tensor").DataDependentOutputException

    def item_or_unknown(tensor: Any) -> Any:
        try:
            return item(tensor)
        except exception:
            if threading.get_ident() != own_thread:
                raise
        device.has_unknown_numbers = True
        is_float = tensor.dtype.is_floating_point
        return UnknownNumber(complex if tensor.dtype.is_complex else float if is_float else int)

    with unittest.mock.patch.object(torch.Tensor, "item", item_or_unknown):
        yield
