"""The keys at the top level of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.model.trace import HOST, Trace
from ipygpumem.snapshot.reader.checks import is_plain, mapping, sequence, text, type_name

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.limits import Limits
    from ipygpumem.snapshot.reader.trace_reader import TraceReader

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


def read_device_traces(value: Any, limits: Limits, reader: TraceReader) -> list[Trace]:
    """The events of each device."""
    traces = sequence(value, "device_traces")
    if len(traces) > limits.devices:
        raise SnapshotLimitError(f"device_traces has more than {limits.devices:,} devices")
    lists = [sequence(events, f"device_traces[{device}]") for device, events in enumerate(traces)]
    ids = [id(events) for events in lists if events]
    if len(set(ids)) < len(ids):  # a few bytes that refer to one long list again and again would grow without limit
        raise SnapshotFormatError("device_traces has the same list for several devices")
    return [reader.read(device, events) for device, events in enumerate(lists)]


def read_host_traces(value: Any, reader: TraceReader) -> tuple[Trace, ...]:
    """Events of pinned memory. Their format is not documented: lists that do not look like events are left out."""
    if value is None:
        return ()
    if type(value) is not list:
        return (reader.unread(HOST, f"host_traces is {type_name(value)}, not a list"),)
    nested = all(type(events) is list for events in value)
    traces = []
    list_ids = set()
    for number, events in enumerate(value if nested else [value]):
        where = f"host_traces[{number}]" if nested else "host_traces"
        try:
            if id(events) in list_ids:
                raise SnapshotFormatError(f"{where} is the same list as another")
            list_ids.add(id(events))
            traces.append(reader.read(HOST, events, where))
        except SnapshotError as error:
            traces.append(reader.unread(HOST, str(error)))
    return tuple(traces)


def read_settings(value: Any) -> dict[str, Any]:
    """The allocator's settings, as far as they are plain values."""
    settings = {} if value is None else mapping(value, "allocator_settings")
    return {key: setting for key, setting in settings.items() if is_plain(setting)}


def read_sources(value: Any) -> dict[str, str]:
    """Source text by file name."""
    sources = {} if value is None else mapping(value, "source_code")
    return {name: text(source, "source_code: a text") for name, source in sources.items()}
