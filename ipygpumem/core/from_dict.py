"""Builds dataclasses from plain data: strictly, and safely for any data.

A file of reports can come from anywhere. So every value is checked against the type of its field, numbers are bounded,
and control characters, which could change a terminal, become question marks.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ipygpumem.core.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Callable

    _Reader = Callable[[Any, str], Any]

__all__ = ["DataReader", "mapping", "printable"]

_Facts = TypeVar("_Facts")
_LIMIT = 1 << 63
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except the tab, line ends, changes of writing direction, and surrogates."""


def printable(text: str) -> str:
    """Replace characters that move a cursor or end a line by question marks."""
    return _CONTROL.sub("?", text)


def mapping(value: Any, path: str) -> dict[str, Any]:
    """Return a dict unchanged.

    Raises:
        ReportError: The value is not a dict.
    """
    if not isinstance(value, dict):
        raise _type_error(value, path, "an object")
    return value


class DataReader:
    """Builds dataclasses from dicts.

    A missing field gets its default; a key that is not a field is ignored, as a later version may write it.

    Args:
        names: Types that the modules of the dataclasses import for type checkers only.
        lenient: Also use the default of a field whose value is invalid.
    """

    def __init__(self, names: dict[str, Any], *, lenient: bool = False) -> None:
        self._names = names
        self._lenient = lenient
        self._reader: Callable[[Any], _Reader] = cache(self._make_reader)
        self._field_readers = cache(self._make_field_readers)

    def read(self, kind: type[_Facts], value: Any, path: str = "") -> _Facts:
        """Build a dataclass from a dict.

        Raises:
            ReportError: A value is missing or invalid; the message has its path.
        """
        facts: _Facts = self._reader(kind)(value, path)
        return facts

    def fields(self, kind: Any, value: Any, path: str = "", skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """Read the fields of a dataclass except those in ``skip``, by name.

        Raises:
            ReportError: As for `read`.
        """
        data = mapping(value, path)
        values = {}
        for name, reader, required in self._field_readers(kind, skip):
            field_path = f"{path}.{name}" if path else name
            if name not in data:
                if required:
                    raise ReportError(f"{field_path} is missing")
                continue
            try:
                values[name] = reader(data[name], field_path)
            except ReportError:
                if required or not self._lenient:
                    raise
        return values

    def _make_field_readers(self, kind: Any, skip: tuple[str, ...]) -> list[tuple[str, _Reader, bool]]:
        hints = get_type_hints(kind, localns=self._names)
        fields = (field for field in dataclasses.fields(kind) if field.name not in skip)
        return [(field.name, self._reader(hints[field.name]), _is_required(field)) for field in fields]

    def _make_reader(self, kind: Any) -> _Reader:
        origin, arguments = get_origin(kind), get_args(kind)
        if dataclasses.is_dataclass(kind):
            build: Any = kind
            return lambda value, path: build(**self.fields(kind, value, path))
        if origin is Literal:
            return _choice_reader(arguments)
        if origin in {Union, types.UnionType}:
            (inner,) = [self._reader(argument) for argument in arguments if argument is not type(None)]
            return lambda value, path: None if value is None else inner(value, path)
        if origin is tuple and arguments[1:] == (...,):
            item = self._reader(arguments[0])
            return lambda value, path: tuple(item(part, f"{path}[{i}]") for i, part in enumerate(_list(value, path)))
        if origin is tuple:
            return self._fixed_tuple_reader(arguments)
        return _SCALARS[kind]

    def _fixed_tuple_reader(self, kinds: tuple[Any, ...]) -> _Reader:
        readers = [self._reader(kind) for kind in kinds]

        def read(value: Any, path: str) -> Any:
            parts = _list(value, path)
            if len(parts) != len(readers):
                raise ReportError(f"{path} has {len(parts)} parts, not {len(readers)}")
            pairs = enumerate(zip(readers, parts, strict=True))
            return tuple(reader(part, f"{path}[{i}]") for i, (reader, part) in pairs)

        return read


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):  # a tuple if the data was never JSON
        raise _type_error(value, path, "a list")
    return list(value)


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise ReportError(f"{path} must be one of {', '.join(choices)}")
        return value

    return read


def _int(value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _type_error(value, path, "an integer")
    if not -_LIMIT <= value < _LIMIT:
        raise ReportError(f"{path} does not fit in 64 bits")
    return value


def _float(value: Any, path: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _type_error(value, path, "a number")
    if not -_LIMIT <= value < _LIMIT or not math.isfinite(value):
        raise ReportError(f"{path} is not a finite number")
    return float(value)


def _bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _type_error(value, path, "true or false")
    return value


def _str(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _type_error(value, path, "a string")
    return printable(value)


_SCALARS: dict[Any, _Reader] = {int: _int, float: _float, bool: _bool, str: _str}
_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "an integer"}


def _type_error(value: Any, path: str, expected: str) -> ReportError:
    actual = "null" if value is None else _TYPE_NAMES.get(type(value), "a number")
    return ReportError(f"{path or 'the report'} is {actual}, not {expected}")
