"""Curves of device memory in use and of memory outside PyTorch, computed from samples and saved in snapshot files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipygpumem.core.reading import DeviceReading
from ipygpumem.core.samples import Sample, memory_of_others
from ipygpumem.measurement.reserved_bound import ReservedCurve
from ipygpumem.measurement.sampler import SampleWindow


def add_reserved_usage(
    snapshot: Mapping[str, Any], windows: Sequence[SampleWindow], started_us: int, dropped: Sequence[int | None]
) -> None:
    """Set `DeviceSamples.reserved` for each device with recorded events."""
    reserved: dict[int, int] = {}
    for segment in snapshot.get("segments", ()):
        reserved[segment["device"]] = reserved.get(segment["device"], 0) + segment["total_size"]
    for index, trace in enumerate(snapshot.get("device_traces", ())):
        sampled = [window for window in windows if index in window.tracks]
        complete = index < len(dropped) and dropped[index] == 0
        if not sampled or not (trace or complete):
            continue
        history = ReservedCurve(trace, reserved.get(index, 0), since=started_us / 1e6, complete=complete)
        for window in sampled:
            window.tracks[index].reserved = history


def sampled_curves(
    windows: Sequence[SampleWindow], before: Mapping[str, DeviceReading], after: Mapping[str, DeviceReading]
) -> dict[str, dict[str, Any]]:
    """Return the curves to store in a snapshot file, as a dict keyed by name (see snapshot/FORMAT.md)."""
    curves: dict[str, dict[str, Any]] = {}
    several = len({index for window in windows for index in window.tracks}) > 1
    for window in windows:
        for index, track in window.tracks.items():
            name = f"cuda:{index}"
            start, end = before.get(name), after.get(name)
            if start is None or end is None:
                continue
            own = start.process is not None and end.process is not None
            outside = "outside PyTorch" if own else "outside PyTorch + other processes"
            sizes = {
                "device used": [(sample, sample.used) for sample in track.samples],
                outside: _outside(window, index, start, end),
            }
            for label, points in sizes.items():
                if points:
                    curve_name = f"{label}, {name}" if several else label
                    curve = curves.setdefault(curve_name, {"device": index, "time_us": [], "bytes": []})
                    curve["time_us"] += [round((window.epoch + sample.begin) * 1e6) for sample, _ in points]
                    curve["bytes"] += [nbytes for _, nbytes in points]
    return curves


def _outside(window: SampleWindow, index: int, before: DeviceReading, after: DeviceReading) -> list[tuple[Sample, int]]:
    reserved = window.tracks[index].reserved
    if reserved is None or before.source != after.source:
        return []
    other_memory = before.driver_reserved or 0
    if before.process is not None and after.process is not None:
        other_memory += memory_of_others(before, after)
    epoch, samples = window.epoch, window.tracks[index].samples
    sizes = ((sample, reserved.at(epoch + sample.begin, epoch + sample.end)) for sample in samples)
    # the reserved memory is unknown while a segment is being allocated or freed
    return [(sample, max(sample.used - other_memory - size, 0)) for sample, size in sizes if size is not None]
