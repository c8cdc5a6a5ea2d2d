"""Convert dataclasses to JSON-serializable data. `ipygpumem.core.from_dict` is the inverse."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, ClassVar


class PlainData:
    """Base class of dataclasses that are written to files.

    A field's metadata can set its key, ``field(metadata={"key": "peaks"})``; the key None excludes the field. The
    properties in ``written_properties`` are also written, but not read back.
    """

    __slots__ = ()
    written_properties: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data. Sizes are in bytes, and unknown values are None."""
        return _fields(self) | {name: plain(getattr(self, name)) for name in self.written_properties}


def plain(value: Any) -> Any:
    """Convert dataclasses to dicts and tuples to lists, recursively."""
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return _fields(value) if dataclasses.is_dataclass(value) else value


def _fields(value: Any) -> dict[str, Any]:
    return {key: plain(getattr(value, field.name)) for field, key in written_fields(value.__class__)}


@cache
def written_fields(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], str]]:
    """Return the fields of a dataclass that are written, together with their keys."""
    keys = [(field, field.metadata.get("key", field.name)) for field in dataclasses.fields(kind)]
    return [(field, key) for field, key in keys if key is not None]
