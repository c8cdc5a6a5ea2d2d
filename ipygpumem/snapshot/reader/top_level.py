"""Functions that read the top-level keys of a file."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

import numpy as np

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError
from ipygpumem.core.reading import DeviceReading
from ipygpumem.snapshot.model.annotations import AnnotationTable, pair_entries
from ipygpumem.snapshot.model.cells import Cell, RecorderMetadata, block_key
from ipygpumem.snapshot.model.columns import HOST, IndexByValue, Trace
from ipygpumem.snapshot.reader import checks
from ipygpumem.snapshot.reader.load import ReadLimits
from ipygpumem.snapshot.reader.trace_reader import TraceReader

_STAGES = ("START", "END")
_NO_DEVICE = -1
_SCHEMA = 1
_DEVICE = re.compile(r"(?:cuda:)?(0|[1-9][0-9]{0,2})")
_COUNTERS = tuple(field.name for field in fields(DeviceReading))
_CURVE_KEYS = ("device", "time_us", "bytes")
_MAX_CURVES = 16  # maximum per device; a recorder writes one or two


def top_level(value: Any) -> dict[str, Any]:
    """Return the top-level dict. A list of segments, which PyTorch before 2.0 wrote, is converted to a dict."""
    if type(value) is list:
        if not value or any(type(item) is not dict or "total_size" not in item for item in value):
            raise SnapshotFormatError("the data is a list without segments, not a memory snapshot")
        return {"segments": value}
    if type(value) is not dict:
        raise SnapshotFormatError(f"the data is {checks.type_name(value)}, not a memory snapshot")
    if "segments" not in value and "device_traces" not in value:
        raise SnapshotFormatError(
            "the data is a dict with neither 'segments' nor 'device_traces', so it is not a memory snapshot"
        )
    return value


def read_device_traces(value: Any, limits: ReadLimits, reader: TraceReader) -> list[Trace]:
    traces = checks.sequence(value, "device_traces")
    if len(traces) > limits.devices:
        raise SnapshotLimitError(f"device_traces has more than {limits.devices:,} devices")
    lists = [checks.sequence(events, f"device_traces[{device}]") for device, events in enumerate(traces)]
    ids = [id(events) for events in lists if events]
    if len(set(ids)) < len(ids):  # a few bytes could refer to one long list repeatedly
        raise SnapshotFormatError("device_traces contains the same list for several devices")
    return [reader.read(device, events) for device, events in enumerate(lists)]


def read_host_traces(value: Any, limits: ReadLimits, reader: TraceReader) -> tuple[Trace, ...]:
    """Return the events for pinned host memory.

    If a list is invalid, a trace with an error message replaces it, and the lists after it are skipped.
    """
    if value is None:
        return ()
    if type(value) is not list:
        return (reader.failed_trace(HOST, f"host_traces is {checks.type_name(value)}, not a list"),)
    if len(value) > limits.devices and type(value[0]) is list:
        return (reader.failed_trace(HOST, f"host_traces has more than {limits.devices:,} lists"),)
    nested = all(type(events) is list for events in value)
    traces = []
    list_ids = set()
    for number, events in enumerate(value if nested else [value]):
        where = f"host_traces[{number}]" if nested else "host_traces"
        try:
            if id(events) in list_ids:
                raise SnapshotFormatError(f"{where} is the same list as an earlier item")
            list_ids.add(id(events))
            traces.append(reader.read(HOST, events, where))
        except SnapshotError as error:
            traces.append(reader.failed_trace(HOST, str(error)))
            break
    return tuple(traces)


def host_segments(value: Any) -> Sequence[dict[str, Any]]:
    segments = checks.items(value, "host_segments")
    for place, item in enumerate(segments):
        checks.mapping(item, f"host_segments[{place}]")
    return segments


def read_settings(value: Any, budget: checks.RepeatedTextLimit) -> dict[str, Any]:
    settings = {} if value is None else checks.mapping(value, "allocator_settings")
    plain = {key: setting for key, setting in settings.items() if checks.is_plain(setting)}
    return plain | {
        key: budget.count(str(setting), "allocator_settings")  # JSON has no infinity
        for key, setting in plain.items()
        if type(setting) is str or (type(setting) is float and not isfinite(setting))
    }


def read_sources(value: Any, budget: checks.RepeatedTextLimit) -> dict[str, str]:
    sources = {} if value is None else checks.mapping(value, "source_code")
    where = "source_code: a value"
    return {name: budget.count(checks.text(source, where), where) for name, source in sources.items()}


def read_annotations(value: Any) -> AnnotationTable:
    """Return the annotated regions. An END entry ends the latest open region with the same name and device."""
    names = IndexByValue()
    name, device, time, starts = array("i"), array("q"), array("q"), bytearray()
    for place, item in enumerate(checks.items(value, "external_annotations")):
        where = f"external_annotations[{place}]"
        entry = checks.mapping(item, where)
        stage = checks.text(entry.get("stage"), f"{where}: stage")
        if stage not in _STAGES:
            continue  # written by a later version of PyTorch
        time.append(checks.integer(entry.get("time_us", 0), f"{where}: time_us", 0))
        index = entry.get("device", 0)
        device.append(_NO_DEVICE if index is None else checks.integer(index, f"{where}: device"))
        name.append(names[checks.text(entry.get("name"), f"{where}: name")])
        starts.append(stage == "START")
    return pair_entries(
        tuple(names), np.asarray(name), np.asarray(device), np.asarray(time), np.array(starts, np.bool_)
    )


def read_recorder_metadata(value: Any, devices: int, budget: checks.RepeatedTextLimit) -> RecorderMetadata:
    """Return the metadata that ipygpumem's recorder wrote. Unknown keys of later schema versions are ignored.

    ``devices`` is the maximum number of devices.
    """
    if value is None:
        return RecorderMetadata()
    own = checks.mapping(value, "ipygpumem")
    checks.integer(own.get("schema", _SCHEMA), "ipygpumem: schema", 1)
    recording = checks.mapping(own.get("recording", {}), "ipygpumem: recording")
    dropped = checks.items(recording.get("dropped", ()), "ipygpumem: dropped")
    numbers = checks.mapping(own.get("numbers", {}), "ipygpumem: numbers")
    names: dict[int, str] = {}
    totals: dict[int, int] = {}
    limits: dict[int, int] = {}
    threads: dict[int, int] = {}
    for place, item in enumerate(checks.items(own.get("devices", ()), "ipygpumem: devices")):
        device = checks.mapping(item, f"ipygpumem: devices[{place}]")
        index = checks.integer(device.get("index", place), "ipygpumem: device index", 0, devices - 1)
        if device.get("name") is not None:
            names[index] = budget.count(checks.text(device["name"], "ipygpumem: device name"), "ipygpumem: device name")
        if device.get("total") is not None:
            totals[index] = checks.integer(device["total"], "ipygpumem: device total", 0)
        if device.get("limit") is not None:
            limits[index] = checks.integer(device["limit"], "ipygpumem: device limit", 1)
        if device.get("threads") is not None:
            threads[index] = checks.integer(device["threads"], "ipygpumem: device threads", 1)
    return RecorderMetadata(
        version=checks.optional(own.get("version"), checks.text, "ipygpumem: version"),
        torch=checks.optional(own.get("torch"), checks.text, "ipygpumem: torch"),
        host=checks.optional(own.get("host"), checks.text, "ipygpumem: host"),
        cells=_read_cells(own.get("cells", ()), budget),
        execution_counts={name: checks.integer(number, "ipygpumem: numbers", 0) for name, number in numbers.items()},
        dropped=tuple(checks.optional(count, checks.integer, "ipygpumem: dropped") for count in dropped),
        device_names=names,
        device_totals=totals,
        device_limits=limits,
        device_threads=threads,
        variables=_read_variables(own.get("variables", ()), budget),
        readings=_read_readings(checks.mapping(own.get("readings", {}), "ipygpumem: readings"), devices),
        curves=_read_curves(checks.mapping(own.get("curves", {}), "ipygpumem: curves"), devices),
    )


def _read_variables(value: Any, budget: checks.RepeatedTextLimit) -> dict[bytes, str]:
    where = "ipygpumem: variables"
    variables: dict[bytes, str] = {}
    for item in checks.items(value, where):
        entry = checks.mapping(item, where)
        position = checks.integer(entry.get("device", 0), where, 0), checks.integer(entry.get("address", 0), where, 0)
        variables[block_key(*position)] = budget.count(checks.text(entry.get("name"), where), where)
    return variables


def _read_readings(readings: dict[str, Any], devices: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the counters of each device before and after the recording.

    Values that are not integers are ignored, and so are devices whose index is not below ``devices``.
    """
    return {
        when: {
            device: {name: counters[name] for name in _COUNTERS if _are_integers([counters.get(name)])}
            for device, counters in _dicts(readings.get(when))
            if (match := _DEVICE.fullmatch(device)) and int(match[1]) < devices
        }
        for when in ("before", "after")
        if when in readings
    }


def _read_curves(curves: dict[str, Any], devices: int) -> dict[str, dict[str, Any]]:
    """Return the sampled curves, without malformed curves and curves of devices whose index is not below ``devices``.

    Raises `SnapshotLimitError` if a device has too many curves, or if the same list is repeated too often.
    """
    result = {}
    counts = [0] * devices
    list_ids: set[int] = set()
    repeated = 0
    for name, curve in _dicts(curves):
        columns: list[Any] = [curve.get(key) for key in _CURVE_KEYS]
        device, *lists = columns
        if any(type(values) is not list for values in lists):
            continue
        repeated += sum(len(values) for values in lists if id(values) in list_ids)
        if repeated > checks.MAX_REPETITIONS:
            raise SnapshotLimitError("ipygpumem: curves: the same list is repeated too often")
        list_ids.update(map(id, lists))
        if len(lists[0]) == len(lists[1]) and all(map(_are_integers, (*lists, [device]))) and 0 <= device < devices:
            result[name] = dict(zip(_CURVE_KEYS, columns, strict=True))
            counts[device] += 1
            if counts[device] > _MAX_CURVES:  # the viewer labels each curve
                raise SnapshotLimitError(f"ipygpumem: curves: device {device} has more than {_MAX_CURVES} curves")
    return result


def _are_integers(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int} and all(-checks.MAX_TOTAL < value < checks.MAX_TOTAL for value in values)


def _dicts(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the items of ``value`` that have a string as key and a dict as value; none if ``value`` is not a dict."""
    pairs = value.items() if type(value) is dict else ()
    return ((key, item) for key, item in pairs if type(item) is dict and type(key) is str)


def _read_cells(value: Any, budget: checks.RepeatedTextLimit) -> tuple[Cell, ...]:
    cells = []
    for place, item in enumerate(checks.items(value, "ipygpumem: cells")):
        where = f"ipygpumem: cells[{place}]"
        cell = checks.mapping(item, where)
        success = cell.get("success")
        cells.append(
            Cell(
                number=checks.optional(cell.get("number"), checks.integer, f"{where}: number"),
                filename=budget.count(
                    checks.optional(cell.get("filename"), checks.text, f"{where}: filename") or "", where
                ),
                start_us=checks.integer(cell.get("start_us"), f"{where}: start_us", 0),
                end_us=checks.integer(cell.get("end_us"), f"{where}: end_us", 0),
                success=success if type(success) is bool else None,
            )
        )
    return tuple(sorted(cells, key=lambda cell: (cell.start_us, -cell.end_us)))
