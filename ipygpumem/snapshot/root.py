"""The keys at the top of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.errors import SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.check import kind, mapping, sequence
from ipygpumem.snapshot.trace import HOST, Trace, read_trace

if TYPE_CHECKING:
    from ipygpumem.snapshot.book import Book
    from ipygpumem.snapshot.limits import Limits

__all__ = ["device_traces", "host_traces", "plain_settings", "top"]

_BITS = 128
_SCALARS = (str, int, float, bool, type(None))


def top(value: Any) -> dict[str, Any]:
    """The top of a file. Torch before 2.0 wrote a bare list of segments."""
    if type(value) is list:
        if not value or any(type(item) is not dict or "total_size" not in item for item in value):
            raise SnapshotFormatError("a list, but not one of segments: no memory snapshot")
        return {"segments": value}
    if type(value) is not dict:
        raise SnapshotFormatError(f"{kind(value)}: no memory snapshot")
    if "segments" not in value and "device_traces" not in value:
        raise SnapshotFormatError("a dict with neither segments nor device_traces: no memory snapshot")
    return value


def device_traces(value: Any, limits: Limits, book: Book) -> list[Trace]:
    """The events of each device."""
    traces = sequence(value, "device_traces")
    if len(traces) > limits.devices:
        raise SnapshotLimitError(f"device_traces names more than {limits.devices:,} devices")
    columns = []
    seen = set()
    for device, entries in enumerate(traces):
        items = list(sequence(entries, f"device_traces[{device}]"))
        # a few bytes that refer to one long list again and again would grow without bound
        if items and id(entries) in seen:
            raise SnapshotFormatError(f"device_traces[{device}] is the same list as another device's")
        seen.add(id(entries))
        columns.append(read_trace(device, items, book))
    return columns


def host_traces(value: Any, book: Book) -> tuple[Trace, ...]:
    """Events of pinned memory. Their form is not documented: what does not look like events is left out."""
    if type(value) is not list or not value:
        return ()
    lists = value if all(type(item) is list for item in value) else [value]
    if len({id(items) for items in lists}) < len(lists):
        return ()
    try:
        return tuple(read_trace(HOST, items, book) for items in lists)
    except SnapshotFormatError:
        return ()


def plain_settings(value: Any) -> dict[str, Any]:
    """The allocator's settings, as far as they are plain values."""
    if value is None:
        return {}
    settings = mapping(value, "allocator_settings")
    return {key: item for key, item in settings.items() if type(item) in _SCALARS and not _huge(item)}


def _huge(item: Any) -> bool:
    """Python does not write whole numbers of more than 4,300 digits."""
    return type(item) is int and item.bit_length() > _BITS
