"""Creation of the report on the allocations that failed in a cell."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipygpumem.core.introspection import attempt, is_library_file
from ipygpumem.core.units import VISIBLE, size
from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.reference_graph import naming_functions
from ipygpumem.features.oom.earlier_runs import EarlierRuns, fit_command
from ipygpumem.features.oom.expandable_segments import ReplayTimeLimit, with_expandable_segments
from ipygpumem.features.oom.model import AVOIDED, FailedAllocation, OutOfMemoryReport, advice
from ipygpumem.measurement.measurement import notebook_sources
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot import Snapshot

_MAX_CELLS = 3
_GENERAL_FIT_COMMAND = "%gpumem fit batch=1..64 step(batch), where step is your function of the batch size"


@dataclass(frozen=True, slots=True)
class FailedCell:
    source: str
    variables: Mapping[str, Any]
    earlier: EarlierRuns


def failure_report(
    failures: list[FailedAllocation],
    count: int,
    *,
    caught: bool,
    snapshot: Path | None = None,
    cell: FailedCell | None = None,
) -> OutOfMemoryReport | None:
    """Return the report on the allocations that failed in a cell, or None if no failure was recorded.

    If the code caught the error, the report contains the holders at the first failure, if they are known. Otherwise, it
    contains the current holders, including local variables of the failed code.

    ``count`` is the number of failures, including those that were not recorded. ``snapshot`` is the path of the
    allocation history that was saved at the first failure, if any. ``cell`` is None if its source code is unknown.
    """
    if not failures:
        return None
    failure = failures[-1]
    shown_holders = (
        next((earlier.holders for earlier in failures if earlier.holders is not None), None) if caught else None
    )
    at_failure = shown_holders is not None
    shown_holders = shown_holders or attempt(holders)  # the report is still useful without holders
    freeable = freeable_out = 0
    if shown_holders is not None:
        freeable = shown_holders.freeable(failure.device, "traceback")
        freeable_out = shown_holders.freeable(failure.device, "traceback", "output")
    baseline = current().baseline
    device = None if baseline is None else baseline.reading.devices.get(failure.device)
    sentences = advice(failure, freeable, freeable_out, None if device is None else device.outside)
    if freeable >= VISIBLE and not any(sentence.startswith("%gpumem free") for sentence in sentences):
        sentences.append(f"%gpumem free would free {size(freeable)}")
    if snapshot is not None and count == 1:
        replay_sentences = attempt(lambda: _replay_sentences(snapshot, failure, cell)) or []
        if any(replay_sentences[:1]):  # this sentence contains the advice
            sentences = [sentence.partition(AVOIDED)[0] for sentence in sentences]
        sentences += replay_sentences
    command = attempt(lambda: _fit_command(failure, {} if cell is None else cell.variables)) or ""
    if command or not caught:
        sentences.append(f"to find the largest size that fits, run {command or _GENERAL_FIT_COMMAND}")
    return OutOfMemoryReport(
        failure, count, _line(failure), caught, shown_holders, at_failure, _largest_cells(failure.device), sentences
    )


def _replay_sentences(path: Path, failure: FailedAllocation, cell: FailedCell | None) -> list[str]:
    time = ReplayTimeLimit()
    snapshot = Snapshot.load(path)
    sentences = [attempt(lambda: with_expandable_segments(snapshot, failure, time)) or ""]
    if cell is not None:
        fitting = attempt(lambda: cell.earlier.fitting_size(snapshot, failure, cell.source, cell.variables, time))
        sentences.append(fitting or "")
    return sentences


def _fit_command(failure: FailedAllocation, variables: Mapping[str, Any]) -> str:
    sources = notebook_sources()
    outermost = next((frame for frame in reversed(failure.frames) if frame[0] in sources), None)
    return "" if outermost is None else fit_command(sources[outermost[0]], outermost[1], variables)


def _line(failure: FailedAllocation) -> str:
    frame = next((frame for frame in failure.frames if not is_library_file(frame[0])), None)
    if frame is None:
        return ""
    label = naming_functions().label(*frame)
    callers = (naming_functions().label(*frame) for frame in failure.frames)
    cell = next((caller for caller in callers if caller.startswith("In [")), label)
    source = linecache.getline(frame[0], frame[1]).strip()
    return f"{label}{f': {source}' if source else ''}{'' if cell == label else f', called by {cell}'}"


def _largest_cells(device: str) -> list[tuple[int, int]]:
    cells = []
    for report in session_reports():
        usage = report.devices.get(device)
        if report.cell is not None and usage is not None and usage.held is not None and usage.held > 0:
            cells.append((report.cell, usage.held))
    return sorted(cells, key=lambda cell: -cell[1])[:_MAX_CELLS]
