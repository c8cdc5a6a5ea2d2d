"""The code that runs on an ipyparallel engine and sends the report of each cell to the client.

Reports are published on the engine's data channel before the execution reply. Therefore the reports of completed cells
are not lost if the engine dies later.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from ipygpumem.core.errors import SnapshotError, first_line
from ipygpumem.features.ranks.engines.submission import KEY
from ipygpumem.features.ranks.model import RankResult
from ipygpumem.features.ranks.rank_info import FallbackRank, current_rank_info
from ipygpumem.jupyter.extension import load, unload
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from ipygpumem.core.report import Report


class _ReportSender:
    """Sender of reports from this engine to the client."""

    def __init__(self, shell: Any, *, loaded_here: bool) -> None:
        self.shell = shell
        self.loaded_here = loaded_here
        self._count = 0

    def __call__(self, report: Report) -> None:
        path = None if report.recording is None else report.recording.path
        result = RankResult("", "done", current_rank_info(began=report.time), report, snapshot=path)
        if path is not None:
            result = _with_peaks(result, path)
        self._count += 1
        self.send(f"{KEY}{self._count}", result.to_dict())

    def send(self, key: str, value: dict[str, Any]) -> None:
        self.shell.data_pub.publish_data({key: json.dumps(value)})


def _with_peaks(result: RankResult, path: str) -> RankResult:
    from ipygpumem.features.ranks.peak_summary import summarize_peaks

    try:
        return replace(result, peaks=summarize_peaks(path))
    except SnapshotError as error:
        return replace(result, note=f"no lines of code: {first_line(error)}")


class _EngineState:
    """The report sender of this process; None before `join`."""

    sender: _ReportSender | None = None


def join(number: int) -> None:
    """Load the extension and send reports to the client. ``number`` is the rank if no launcher has set one."""
    shell = get_ipython()
    loaded_before = "GPUMem" in shell.magics_manager.registry
    load(shell)
    state = current().state(_EngineState)
    if state.sender is None:
        state.sender = _ReportSender(shell, loaded_here=not loaded_before)
    current().state(FallbackRank).number = number
    shell.magics_manager.registry["GPUMem"].cells.presenter.send = state.sender
    state.sender.send(KEY, RankResult("", "running", current_rank_info()).to_dict())


def leave() -> None:
    """Undo `join`."""
    state = current().state(_EngineState)
    sender, state.sender = state.sender, None
    if sender is None:
        return
    current().state(FallbackRank).number = None
    magics = sender.shell.magics_manager.registry.get("GPUMem")
    if magics is not None:
        magics.cells.presenter.send = None
    if sender.loaded_here:
        unload(sender.shell)
