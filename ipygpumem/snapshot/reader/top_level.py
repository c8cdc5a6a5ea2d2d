"""The keys at the top of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.model.trace import HOST, Trace, placed_runs, read_trace, unread_trace
from ipygpumem.snapshot.reader.checks import kind, mapping, sequence

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.limits import Limits
    from ipygpumem.snapshot.reader.table_builder import Book

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
    lists = [sequence(entries, f"device_traces[{device}]") for device, entries in enumerate(traces)]
    seen = set()
    for device, items in enumerate(lists):
        # a few bytes that refer to one long list again and again would grow without bound
        if items and id(items) in seen:
            raise SnapshotFormatError(f"device_traces[{device}] is the same list as another device's")
        seen.add(id(items))
    book.resolver.take(
        [one for device, items in enumerate(lists) for one in placed_runs(items, f"device_traces[{device}]")]
    )
    return [read_trace(device, items, book) for device, items in enumerate(lists)]


def host_traces(value: Any, book: Book) -> tuple[Trace, ...]:
    """Events of pinned memory. Their form is not documented: a list of what does not look like events is left out."""
    if value is None:
        return ()
    if type(value) is not list:
        return (unread_trace(HOST, f"host_traces is {kind(value)}, not a list", book),)
    apart = all(type(items) is list for items in value)
    lists = value if apart else [value]
    found = []
    seen = set()
    for number, items in enumerate(lists):
        where = f"host_traces[{number}]" if apart else "host_traces"
        try:
            if id(items) in seen:
                raise SnapshotFormatError(f"{where} is the same list as another")
            seen.add(id(items))
            book.resolver.take(placed_runs(items, where))
            found.append(read_trace(HOST, items, book, where))
        except SnapshotError as problem:
            found.append(unread_trace(HOST, str(problem), book))
    return tuple(found)


def plain_settings(value: Any) -> dict[str, Any]:
    """The allocator's settings, as far as they are plain values."""
    if value is None:
        return {}
    settings = mapping(value, "allocator_settings")
    return {key: item for key, item in settings.items() if type(item) in _SCALARS and not _huge(item)}


def _huge(item: Any) -> bool:
    """Python does not write whole numbers of more than 4,300 digits."""
    return type(item) is int and item.bit_length() > _BITS
