"""Which arguments an operator writes to, from PyTorch's operator schemas."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

__all__ = ["OTHER", "SCALARS", "TENSOR", "written_arguments"]

TENSOR, OTHER = "tensor", "other"
SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex", type(None): "none"}


@lru_cache(maxsize=4096)
def written_arguments(name: str, signature: tuple[Any, ...]) -> tuple[bool, ...] | None:
    """Return for each argument whether a matching overload of the operator writes to it; None if none matches.

    ``signature`` has for each argument `TENSOR`, a value of `SCALARS` or `OTHER`; a set of these for a list.
    """
    if "::" not in name:  # not an operator: PyTorch would raise an error
        return None
    torch: Any = sys.modules["torch"]
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
    except RuntimeError:
        return None
    matching = [
        schema.arguments
        for schema in schemas
        if len(schema.arguments) == len(signature)
        and all(map(lambda kind, argument: _matches(torch._C, kind, argument.type), signature, schema.arguments))
    ]
    if not matching:
        return None
    columns = zip(*matching, strict=True)
    return tuple(any(getattr(argument.alias_info, "is_write", False) for argument in column) for column in columns)


def _matches(c_module: Any, kind: Any, expected: Any) -> bool:
    """Whether an argument can have a schema's type. Arguments that the profiler does not record appear as None."""
    if isinstance(expected, c_module.OptionalType):
        return kind == "none" or _matches(c_module, kind, expected.getElementType())
    if isinstance(expected, c_module.AnyType):
        return True
    if expected.isSubtypeOf(c_module.ListType.ofTensors()):
        return isinstance(kind, frozenset) and kind <= {TENSOR}
    for schema_type, kinds in (
        (c_module.TensorType, {TENSOR}),
        (c_module.NoneType, {"none"}),
        (c_module.BoolType, {"bool"}),
        (c_module.IntType, {"bool", "int"}),
        (c_module.FloatType, {"float"}),
        (c_module.ComplexType, {"complex"}),
        (c_module.NumberType, {"bool", "int", "float", "complex"}),
    ):
        if isinstance(expected, schema_type):
            return kind in kinds
    return kind == "none"  # type: ignore[no-any-return]
