"""What runs on an engine: it joins, and sends each cell's report home on the engine's own channel for data.

The report leaves before the cell's reply does, and asks for no further round: an engine that dies in its next cell has
told of this one already.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import SnapshotError, first_line
from ipygpumem.features.ranks.model import RankResult
from ipygpumem.features.ranks.rank_info import origin, set_fallback_rank

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["KEY", "join", "leave", "piece"]

KEY = "ipygpumem"
"""Under which the data of a message lies; a number follows where a cell measured several times."""


class _Courier:
    """Sends reports. One engine has one."""

    def __init__(self, shell: Any, *, loaded: bool) -> None:
        self.shell = shell
        self.loaded = loaded
        self._count = 0

    def __call__(self, report: Report) -> None:
        recording = report.recording
        path = None if recording is None else recording.path
        member = RankResult("", "done", origin(began=report.time), report, snapshot=path)
        if path is not None:
            member = _with_peaks(member, path)
        self._count += 1
        self.send(f"{KEY}{self._count}", member.to_dict())

    def send(self, key: str, value: dict[str, Any]) -> None:
        self.shell.data_pub.publish_data({key: json.dumps(value)})


def _with_peaks(member: RankResult, path: str) -> RankResult:
    from ipygpumem.features.ranks.peak_summary import brief

    try:
        return replace(member, peaks=brief(path))
    except SnapshotError as error:
        return replace(member, note=f"no lines: {first_line(error)}")


_courier: _Courier | None = None


def join(number: int) -> None:
    """Load the extension here, and send reports home from now on; what is shown here is left to the notebook.

    Args:
        number: This engine's number in the cluster: its rank, where no launcher has given it one.
    """
    global _courier  # noqa: PLW0603 (one engine, one courier)
    from IPython import get_ipython

    from ipygpumem.jupyter.extension import load

    shell = get_ipython()
    before = shell.magics_manager.registry.get("GPUMem")
    load(shell)
    if _courier is None:
        _courier = _Courier(shell, loaded=before is None)
    set_fallback_rank(number)
    shell.magics_manager.registry["GPUMem"].cells.courier = _courier
    _courier.send(KEY, RankResult("", "running", origin()).to_dict())


def leave() -> None:
    """Take `join` back."""
    global _courier
    courier, _courier = _courier, None
    if courier is None:
        return
    set_fallback_rank(None)
    magics = courier.shell.magics_manager.registry.get("GPUMem")
    if magics is not None:
        magics.cells.courier = None
    if courier.loaded:
        from ipygpumem.jupyter.extension import unload

        unload(courier.shell)


def piece(path: str, offset: int, count: int) -> bytes:
    """A part of a file that was recorded here."""
    with open(path, "rb") as file:  # noqa: PTH123 (a name as the recorder told it)
        file.seek(offset)
        return file.read(count)
