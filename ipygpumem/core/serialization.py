"""Convert dataclasses to JSON-serializable data and back.

Report files can come from untrusted sources. When data is read, every value is therefore checked against the type of
its field, numbers are bounded, and control characters, which could change the state of a terminal, are replaced with
question marks.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from ipygpumem.core.errors import ReportError
from ipygpumem.core.text import printable

_Reader = Callable[[Any, str], Any]

SCHEMA = 1  # version of the format described in core/FORMAT.md; it increases when the meaning of a key changes

_Dataclass = TypeVar("_Dataclass")
_LIMIT = 1 << 60  # larger than any size; sums and differences of several values fit in 64 bits
_LATEST_TIME = 1 << 33  # in seconds since the Unix epoch, in the year 2242


class Serializable:
    """Base class of dataclasses that are written to files.

    The key of a field is its name, unless its metadata sets another key: ``field(metadata={"key": "peaks"})``. The key
    None excludes a field. The properties in ``written_properties`` are also written, but not read back.
    """

    __slots__ = ()
    written_properties: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON-serializable data. Sizes are in bytes, and unknown values are None."""
        return _written_values(self) | {name: plain(getattr(self, name)) for name in self.written_properties}


def plain(value: Any) -> Any:
    """Convert dataclasses to dicts and tuples to lists, recursively."""
    if isinstance(value, Serializable):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return _written_values(value) if dataclasses.is_dataclass(value) else value


def _written_values(value: Any) -> dict[str, Any]:
    return {key: plain(getattr(value, field.name)) for field, key in _written_fields(value.__class__)}


@cache
def _written_fields(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], str]]:
    keys = [(field, field.metadata.get("key", field.name)) for field in dataclasses.fields(kind)]
    return [(field, key) for field, key in keys if key is not None]


def mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _type_error(value, path, "an object")
    return value


def check_schema(data: dict[str, Any], maximum: int | None = None) -> int:
    schema = data.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ReportError("the data has no valid schema version, so it was not written by ipygpumem")
    if maximum is not None and schema > maximum:
        raise ReportError(
            f"the data has schema version {schema}, but this version of ipygpumem supports at most {maximum}: "
            "upgrade ipygpumem"
        )
    return schema


def check_ranges(report: Any) -> None:
    if not 0 <= report.time < _LATEST_TIME:
        raise ReportError(f"time is {report.time}, but must be in seconds since the Unix epoch")
    for name in ("seconds", "cell"):
        if (value := getattr(report, name) or 0) < 0:
            raise ReportError(f"{name} is {value}, but must not be negative")


class DataclassReader:
    """Reader that builds dataclasses from the output of `Serializable.to_dict`.

    Missing optional fields are set to their defaults. Unknown keys are ignored because later versions may write them.

    Args:
        names: Types by name, for annotations whose types are imported only under ``TYPE_CHECKING``.
        lenient: Whether optional fields with invalid values are set to their defaults instead of causing an error.
    """

    def __init__(self, names: dict[str, Any], *, lenient: bool = False) -> None:
        self._names = names
        self._lenient = lenient
        self._reader: Callable[[Any], _Reader] = cache(self._make_reader)
        self._field_readers = cache(self._make_field_readers)

    def read(self, kind: type[_Dataclass], value: Any, path: str = "") -> _Dataclass:
        """``path`` is the position of ``value`` in the data, for error messages."""
        return kind(**self.fields(kind, value, path))

    def fields(self, kind: Any, value: Any, path: str = "") -> dict[str, Any]:
        data = mapping(value, path)
        values = {}
        for field, key, reader in self._field_readers(kind):
            field_path = f"{path}.{key}" if path else key
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if key in data:
                try:
                    values[field.name] = reader(data[key], field_path)
                except ReportError:
                    if required or not self._lenient:
                        raise
            elif required:
                raise ReportError(f"{field_path} is missing")
        return values

    def _make_field_readers(self, kind: Any) -> list[tuple[dataclasses.Field[Any], str, _Reader]]:
        hints = get_type_hints(kind, localns=self._names)
        return [(field, key, self._reader(hints[field.name])) for field, key in _written_fields(kind)]

    def _make_reader(self, kind: Any) -> _Reader:
        origin, arguments = get_origin(kind), get_args(kind)
        if dataclasses.is_dataclass(kind):
            build: Any = kind
            return lambda value, path: self.read(build, value, path)
        if origin is Literal:
            return lambda value, path: _choice(arguments, value, path)
        if origin is None:
            return lambda value, path: _scalar(kind, value, path)
        readers = [self._reader(argument) for argument in arguments if argument not in {types.NoneType, ...}]
        if origin is dict:
            return lambda value, path: _dict(readers[1], value, path)
        if origin is tuple:
            return lambda value, path: _tuple(readers, value, path)
        return lambda value, path: None if value is None else readers[0](value, path)


def _dict(reader: _Reader, value: Any, path: str) -> dict[str, Any]:
    items = [(printable(key), part) for key, part in mapping(value, path).items()]
    return {key: reader(part, f"{path}.{key}") for key, part in items}


def _tuple(readers: list[_Reader], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):  # a tuple if the data was never JSON
        raise _type_error(value, path, "a list")
    if len(readers) == 1:
        readers = readers * len(value)
    if len(value) != len(readers):
        raise ReportError(f"{path} must have {len(readers)} items, but got {len(value)}")
    return tuple(reader(part, f"{path}[{i}]") for i, (reader, part) in enumerate(zip(readers, value, strict=True)))


def _choice(choices: tuple[str, ...], value: Any, path: str) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ReportError(f"{path} must be one of {', '.join(map(repr, choices))}")
    return value


def _scalar(kind: Any, value: Any, path: str) -> Any:
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _type_error(value, path, _TYPE_NAMES[kind])
    if isinstance(value, str):
        return printable(value)
    if not -_LIMIT <= value < _LIMIT:  # also true for NaN
        raise ReportError(f"{path} {'must be between -2**60 and 2**60' if kind is int else 'is not a finite number'}")
    return kind(value)


_TYPE_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


def _type_error(value: Any, path: str, expected: str) -> ReportError:
    actual = "null" if value is None else _TYPE_NAMES.get(type(value), "a number")
    return ReportError(f"{path or 'the report'} is {actual}, not {expected}")
