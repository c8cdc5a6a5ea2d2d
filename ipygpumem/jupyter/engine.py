"""Functions that run on an ipyparallel engine and send its reports to the client.

Each report is sent before the execution reply, so that it is not lost if the engine crashes later.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from IPython import get_ipython

from ipygpumem.core.errors import SnapshotError, first_line
from ipygpumem.core.report import Report
from ipygpumem.features.ranks.engines.submission import KEY
from ipygpumem.features.ranks.model import RankResult
from ipygpumem.features.ranks.rank_files import FallbackRank, current_rank_info
from ipygpumem.jupyter.extension import load, unload
from ipygpumem.measurement.runtime import current


class _EngineState:
    """State of the engine in this process.

    Attributes:
        shell: IPython shell of the engine; None while the engine is not monitored.
        loaded_by_join: Whether `join` has loaded the extension.
    """

    def __init__(self) -> None:
        self.shell: Any = None
        self.loaded_by_join = False
        self._reports = 0

    def send_report(self, report: Report) -> None:
        path = None if report.recording is None else report.recording.path
        result = RankResult("", "done", current_rank_info(began=report.time), report, snapshot=path)
        if path is not None:
            from ipygpumem.features.ranks.peak_summary import summarize_peaks

            try:
                result = replace(result, peaks=summarize_peaks(path))
            except SnapshotError as error:
                result = replace(result, note=f"the lines of code at the peak are unknown: {first_line(error)}")
        self._reports += 1
        self.send(f"{KEY}{self._reports}", result)

    def send(self, key: str, result: RankResult) -> None:
        self.shell.data_pub.publish_data({key: json.dumps(result.to_dict())})


def join(number: int) -> None:
    """Load the extension and start sending reports to the client.

    ``number`` is the engine ID, which is used as the rank if no launcher has set the rank.
    """
    shell = get_ipython()
    loaded_before = "GPUMem" in shell.magics_manager.registry
    load(shell)
    engine = current().state(_EngineState)
    if engine.shell is None:
        engine.shell, engine.loaded_by_join = shell, not loaded_before
    current().state(FallbackRank).rank = number
    shell.magics_manager.registry["GPUMem"].cells.presenter.send = engine.send_report
    engine.send(KEY, RankResult("", "running", current_rank_info()))


def leave() -> None:
    engine = current().state(_EngineState)
    shell, engine.shell = engine.shell, None
    if shell is None:
        return
    current().state(FallbackRank).rank = None
    magics = shell.magics_manager.registry.get("GPUMem")
    if magics is not None:
        magics.cells.presenter.send = None
    if engine.loaded_by_join:
        unload(shell)
