"""The keys at the top level of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.model.trace import HOST, Trace
from ipygpumem.snapshot.reader.checks import is_plain, mapping, sequence, text, type_name
from ipygpumem.snapshot.reader.trace_reader import placed_runs, read_trace, unread_trace

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.limits import Limits
    from ipygpumem.snapshot.reader.table_builder import TableBuilder

__all__ = ["read_device_traces", "read_host_traces", "read_settings", "read_sources", "top_level"]


def top_level(value: Any) -> dict[str, Any]:
    """The dict at the top level. Torch before 2.0 wrote a bare list of segments."""
    if type(value) is list:
        if not value or any(type(item) is not dict or "total_size" not in item for item in value):
            raise SnapshotFormatError("not a memory snapshot: a list, but not of segments")
        return {"segments": value}
    if type(value) is not dict:
        raise SnapshotFormatError(f"not a memory snapshot: {type_name(value)}")
    if "segments" not in value and "device_traces" not in value:
        raise SnapshotFormatError("not a memory snapshot: a dict with neither segments nor device_traces")
    return value


def read_device_traces(value: Any, limits: Limits, tables: TableBuilder) -> list[Trace]:
    """The events of each device."""
    traces = sequence(value, "device_traces")
    if len(traces) > limits.devices:
        raise SnapshotLimitError(f"device_traces has more than {limits.devices:,} devices")
    lists = [sequence(events, f"device_traces[{device}]") for device, events in enumerate(traces)]
    ids = [id(events) for events in lists if events]
    if len(set(ids)) < len(ids):  # a few bytes that refer to one long list again and again would grow without limit
        raise SnapshotFormatError("device_traces has the same list for several devices")
    tables.resolver.resolve(
        [run for device, events in enumerate(lists) for run in placed_runs(events, f"device_traces[{device}]")]
    )
    return [read_trace(device, events, tables) for device, events in enumerate(lists)]


def read_host_traces(value: Any, tables: TableBuilder) -> tuple[Trace, ...]:
    """Events of pinned memory. Their format is not documented: lists that do not look like events are left out."""
    if value is None:
        return ()
    if type(value) is not list:
        return (unread_trace(HOST, f"host_traces is {type_name(value)}, not a list", tables),)
    nested = all(type(events) is list for events in value)
    traces = []
    seen = set()
    for number, events in enumerate(value if nested else [value]):
        where = f"host_traces[{number}]" if nested else "host_traces"
        try:
            if id(events) in seen:
                raise SnapshotFormatError(f"{where} is the same list as another")
            seen.add(id(events))
            tables.resolver.resolve(placed_runs(events, where))
            traces.append(read_trace(HOST, events, tables, where))
        except SnapshotError as error:
            traces.append(unread_trace(HOST, str(error), tables))
    return tuple(traces)


def read_settings(value: Any) -> dict[str, Any]:
    """The allocator's settings, as far as they are plain values."""
    settings = {} if value is None else mapping(value, "allocator_settings")
    return {key: setting for key, setting in settings.items() if is_plain(setting)}


def read_sources(value: Any) -> dict[str, str]:
    """Source text by file name."""
    sources = {} if value is None else mapping(value, "source_code")
    return {name: text(source, "source_code: a text") for name, source in sources.items()}
