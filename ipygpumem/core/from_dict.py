"""From plain data back to facts: strict, and harmless whatever the data.

A file of reports may come from anywhere. So every value is checked against the type of its field, numbers have bounds,
and control characters, which could rewrite somebody's terminal, become question marks.
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

__all__ = ["Plain", "mapping", "printable"]

_Fact = TypeVar("_Fact")
_LARGEST = 1 << 63
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for the tab, line ends, switches of the writing direction, halves of characters."""


def printable(text: str) -> str:
    """A text without what moves a cursor or breaks a line."""
    return _CONTROL.sub("?", text)


class Plain:
    """Builds dataclasses of plain data. ``names``: types that their modules import for type checkers only.

    A field that is missing takes its default; a key that is no field is passed over, as a later version may write it.
    ``lenient``: so does a field that has a default and does not fit.
    """

    def __init__(self, names: dict[str, Any], *, lenient: bool = False) -> None:
        self._names = names
        self._lenient = lenient
        self._reader: Callable[[Any], _Reader] = cache(self._make)
        self._readers = cache(self._readers_of)

    def read(self, kind: type[_Fact], value: Any, where: str = "") -> _Fact:
        """A dataclass from a dict.

        Raises:
            ReportError: It is none; the message says where in the data.
        """
        fact: _Fact = self._reader(kind)(value, where)
        return fact

    def fields(self, kind: Any, value: Any, where: str = "", skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """The fields of a dataclass by name, but for some.

        Raises:
            ReportError: As `read`.
        """
        given = mapping(value, where)
        found = {}
        for name, reader, required in self._readers(kind, skip):
            path = f"{where}.{name}" if where else name
            if name not in given:
                if required:
                    raise ReportError(f"{path} is missing")
                continue
            try:
                found[name] = reader(given[name], path)
            except ReportError:
                if required or not self._lenient:
                    raise
        return found

    def _make(self, kind: Any) -> _Reader:
        origin, arguments = get_origin(kind), get_args(kind)
        if dataclasses.is_dataclass(kind):
            make: Any = kind
            return lambda value, where: make(**self.fields(kind, value, where))
        if origin is Literal:
            return _choice(arguments)
        if origin in {Union, types.UnionType}:
            return self._optional(arguments)
        if origin is tuple and arguments[1:] == (...,):
            return self._many(arguments[0])
        if origin is tuple:
            return self._several(arguments)
        return _SCALARS[kind]

    def _readers_of(self, kind: Any, skip: tuple[str, ...]) -> list[tuple[str, _Reader, bool]]:
        hints = get_type_hints(kind, localns=self._names)
        wanted = (one for one in dataclasses.fields(kind) if one.name not in skip)
        return [(one.name, self._reader(hints[one.name]), _required(one)) for one in wanted]

    def _optional(self, kinds: tuple[Any, ...]) -> _Reader:
        (inner,) = [self._reader(one) for one in kinds if one is not type(None)]
        return lambda value, where: None if value is None else inner(value, where)

    def _many(self, kind: Any) -> _Reader:
        inner = self._reader(kind)
        return lambda value, where: tuple(inner(one, f"{where}[{i}]") for i, one in enumerate(_list(value, where)))

    def _several(self, kinds: tuple[Any, ...]) -> _Reader:
        inner = [self._reader(one) for one in kinds]

        def read(value: Any, where: str) -> Any:
            given = _list(value, where)
            if len(given) != len(inner):
                raise ReportError(f"{where} has {len(given)} parts, not {len(inner)}")
            return tuple(one(part, f"{where}[{i}]") for i, (one, part) in enumerate(zip(inner, given, strict=True)))

        return read


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A dict as it is.

    Raises:
        ReportError: It is none.
    """
    if not isinstance(value, dict):
        raise _wrong(value, where, "an object")
    return value


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):  # a tuple, where it never went through JSON
        raise _wrong(value, where, "a list")
    return list(value)


def _choice(words: tuple[Any, ...]) -> _Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, str) or value not in words:
            raise ReportError(f"{where} is none of {', '.join(words)}")
        return value

    return read


def _int(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, where, "a whole number")
    if not -_LARGEST <= value < _LARGEST:
        raise ReportError(f"{where} is no number of 64 bits")
    return value


def _float(value: Any, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong(value, where, "a number")
    if not -_LARGEST <= value < _LARGEST or not math.isfinite(value):
        raise ReportError(f"{where} is no finite number")
    return float(value)


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def _str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    return printable(value)


_SCALARS: dict[Any, _Reader] = {int: _int, float: _float, bool: _bool, str: _str}
_WORDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number"}


def _wrong(value: Any, where: str, expected: str) -> ReportError:
    found = "null" if value is None else _WORDS.get(type(value), "a number")
    return ReportError(f"{where or 'the report'} is {found}, not {expected}")
