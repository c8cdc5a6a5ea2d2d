"""Code that runs on an ipyparallel engine and sends the report of each cell to the client.

A report is published on the engine's data channel before the execution reply. Therefore, the reports of finished cells
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
    def __init__(self, shell: Any, *, loaded_by_join: bool) -> None:
        self.shell = shell
        self.loaded_by_join = loaded_by_join
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
        return replace(result, note=f"the lines of code are unknown: {first_line(error)}")


class _EngineState:
    sender: _ReportSender | None = None
    """Sends the reports to the client; None while the engine is not monitored."""


def join(number: int) -> None:
    """Load the extension on this engine and start sending the report of each cell to the client.

    Args:
        number: ID of the engine. It serves as the rank if no launcher has set a rank.
    """
    shell = get_ipython()
    loaded_before = "GPUMem" in shell.magics_manager.registry
    load(shell)
    state = current().state(_EngineState)
    if state.sender is None:
        state.sender = _ReportSender(shell, loaded_by_join=not loaded_before)
    current().state(FallbackRank).rank = number
    shell.magics_manager.registry["GPUMem"].cells.presenter.send = state.sender
    state.sender.send(KEY, RankResult("", "running", current_rank_info()).to_dict())


def leave() -> None:
    """Stop sending reports to the client, and unload the extension if `join` has loaded it."""
    state = current().state(_EngineState)
    sender, state.sender = state.sender, None
    if sender is None:
        return
    current().state(FallbackRank).rank = None
    magics = sender.shell.magics_manager.registry.get("GPUMem")
    if magics is not None:
        magics.cells.presenter.send = None
    if sender.loaded_by_join:
        unload(sender.shell)
