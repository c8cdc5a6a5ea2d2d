"""Samples as the curves of a snapshot file: the whole card, and what of it was outside PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.samples import not_ours
from ipygpumem.measurement.reserved_bound import Steps, segment_moves, segment_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.core.samples import Sample
    from ipygpumem.measurement.sampler import SampleWindow

__all__ = ["USED", "curves", "outside_name", "steps_of"]

USED = "device used"


def steps_of(
    snapshot: Mapping[str, Any], windows: Sequence[SampleWindow], started_us: int, dropped: Sequence[int | None]
) -> None:
    """Give each card of each window what a recording knows of PyTorch's segments; nothing where it has no times."""
    held: dict[int, int] = {}
    for segment in snapshot.get("segments", ()):
        held[segment["device"]] = held.get(segment["device"], 0) + segment["total_size"]
    traces = snapshot.get("device_traces", ())
    for index in {index for window in windows for index in window.tracks}:
        complete = index < len(dropped) and dropped[index] == 0
        if (
            index >= len(traces)
            or not (complete or traces[index])
            or any("time_us" not in one for one in traces[index][:1])
        ):
            continue
        moves = segment_moves(traces[index])
        for window in windows:
            if index in window.tracks:
                window.tracks[index].steps = segment_steps(
                    moves, held.get(index, 0), since=started_us / 1e6, origin=window.epoch, complete=complete
                )


def curves(
    windows: Sequence[SampleWindow], before: Mapping[str, DeviceReading], after: Mapping[str, DeviceReading]
) -> dict[str, dict[str, Any]]:
    """Curves by name as FORMAT has them; a device after the first has its own name behind the curve's."""
    found: dict[str, dict[str, Any]] = {}
    several = len({index for window in windows for index in window.tracks}) > 1
    for window in windows:
        for index, track in window.tracks.items():
            name = f"cuda:{index}"
            start, end = before.get(name), after.get(name)
            if start is None or end is None:
                continue
            suffix = f", {name}" if several else ""
            _extend(found, USED + suffix, index, window, [(one, one.used) for one in track.samples])
            known = _outside(track.samples, track.steps, start, end)
            _extend(found, outside_name(start, end) + suffix, index, window, known)
    return found


def outside_name(before: DeviceReading, after: DeviceReading) -> str:
    """What is left without PyTorch: this process's, or everybody's where nobody can tell."""
    own = before.process is not None and after.process is not None
    return "outside PyTorch" if own else "outside PyTorch and other processes"


def _outside(
    samples: Iterable[Sample], steps: Steps | None, before: DeviceReading, after: DeviceReading
) -> list[tuple[Sample, int]]:
    if steps is None or before.source != after.source:
        return []
    rest = before.driver_reserved or 0
    if before.process is not None and after.process is not None:
        rest += not_ours(before, after)
    levels = ((one, steps.at(one.begin, one.end)) for one in samples)
    # a segment that came or went at that very moment may be in the one figure and not in the other
    return [(one, max(one.used - rest - level, 0)) for one, level in levels if level is not None]


def _extend(
    found: dict[str, dict[str, Any]], name: str, index: int, window: SampleWindow, points: list[tuple[Sample, int]]
) -> None:
    if not points:
        return
    curve = found.setdefault(name, {"device": index, "time_us": [], "bytes": []})
    curve["time_us"] += [round((window.epoch + one.begin) * 1e6) for one, _ in points]
    curve["bytes"] += [amount for _, amount in points]
