"""Recorded runs of a failed cell with a smaller size, from which a size that would have fitted is predicted."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipygpumem.core.introspection import attempt
from ipygpumem.features.oom.expandable_segments import ReplayTime
from ipygpumem.features.oom.model import FailedAllocation
from ipygpumem.measurement.event_lookup import EventLookup
from ipygpumem.measurement.event_position import EventPosition, event_position
from ipygpumem.measurement.recorder import Recorder
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.scaling.scaled_recording import ScaledRecording, ScaledStep
from ipygpumem.snapshot.scaling.size_model import SizeModel
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_requests import InitialState, StepRequests

_MAX_RUNS = 50
_MAX_SIZES = 4
_NAME, _NUMBER = re.compile(r"[^\W\d]\w*"), re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True, slots=True)
class CellRun:
    """A run of a cell.

    Attributes:
        code: Source code with every integer replaced by 0.
        values: Values of the integer variables by name, and the integers in the source code by index.
        begin: Position in the sequence of allocation events at which the run started.
        end: Position at which the run ended.
    """

    code: str
    values: dict[str | int, int]
    begin: EventPosition
    end: EventPosition


class EarlierRuns:
    """The last successful runs of cells while allocations were recorded, and the start of the current run."""

    def __init__(self) -> None:
        self._runs: deque[CellRun] = deque(maxlen=_MAX_RUNS)
        self._recorder: Recorder | None = None
        self._begin: EventPosition = {}

    def begin(self, recorder: Recorder | None) -> None:
        """Store the position at which a cell starts. Discard the runs that another recorder recorded."""
        if recorder is not self._recorder:
            self._runs.clear()
            self._recorder = recorder
        self._begin = {} if recorder is None else event_position()

    def end(self, source: str, variables: Mapping[str, Any]) -> None:
        """Store a successful run of a cell."""
        if self._begin:
            self._runs.append(self._run(source, variables, event_position()))

    def _run(self, source: str, variables: Mapping[str, Any], end: EventPosition) -> CellRun:
        values: dict[str | int, int] = {
            name: variables[name] for name in _NAME.findall(source) if type(variables.get(name)) is int
        }
        values |= enumerate(int(number[:18]) for number in _NUMBER.findall(source))
        return CellRun(_NUMBER.sub("0", source), values, self._begin, end)

    def fitting_size(
        self, snapshot: Snapshot, failure: FailedAllocation, source: str, variables: Mapping[str, Any], time: ReplayTime
    ) -> str:
        """Return a sentence about the largest size at which a failed cell would have fitted; empty if it is unknown.

        ``snapshot`` was saved when the allocation failed.
        """
        failed, reserved = (
            self._run(source, variables, {}),
            None if failure.reading is None else failure.reading.reserved,
        )
        if self._recorder is None or reserved is None or not self._runs or not time.allows(0):
            return ""
        timeline = snapshot.timeline(int(failure.device.removeprefix("cuda:")))
        lookup = EventLookup(timeline, self._recorder, complete=False)
        runs: dict[int, CellRun] = {}
        name: str | int | None = None
        for run in self._runs:
            if run.code == failed.code and run.values.keys() == failed.values.keys() and lookup.contains(run.begin):
                different = {key: value for key, value in run.values.items() if value != failed.values[key]}
                changed = {(value, failed.values[key]) for key, value in different.items()}
                if len(changed) == 1:
                    key = min(different, key=lambda key: not isinstance(key, str))
                    value = different[key]
                    if key == (name or key) and 0 < value < failed.values[key]:
                        name = key
                        runs[value] = run
        if name is None:
            return ""
        steps = [
            (value, StepRecording(snapshot, timeline.device, lookup.event(run.begin), lookup.event(run.end)))
            for value, run in sorted(runs.items())[-_MAX_SIZES:]
        ]
        steps = [(value, step) for value, step in steps if len(step.rows)]
        state = InitialState.at(snapshot, timeline.device, lookup.event(self._begin))
        capacity, limit, label = (
            reserved + failure.available,
            failed.values[name],
            f"{name} " if isinstance(name, str) else "",
        )
        for scaled, sizes in _predictions(steps, state):
            largest = scaled.largest(capacity, last=limit - 1, after_release=True) if time.allows(0) else None
            if largest is not None and largest >= steps[-1][0]:
                return f"{label}{largest:,} instead of {limit:,} would have fitted, {sizes}"
        return ""


def _predictions(steps: list[tuple[int, StepRecording]], state: InitialState) -> Iterator[tuple[ScaledStep, str]]:
    """Yield a prediction from all recorded sizes, and one for which all allocations grow in proportion to the size."""
    if len(steps) > 1:
        scaled = attempt(lambda: ScaledRecording.from_recordings(steps, "linear", state))
        if scaled is not None and not scaled.reasons:
            *sizes, last = (f"{size:,}" for size, _ in steps)
            yield scaled, f"as predicted from the recorded runs with {', '.join(sizes)} and {last}"
    for size, step in steps[-1:]:
        model = SizeModel.fit(((size, 2 * size),), np.stack([step.sizes, 2 * step.sizes], axis=1))
        yield (
            ScaledStep(model, StepRequests(step, state)),
            f"if the memory of the recorded run with {size:,} grows in proportion to this number",
        )
