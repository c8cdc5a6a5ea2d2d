"""From the failures of a cell to its panel."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING

from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.roots import is_library, naming
from ipygpumem.features.oom.model import OutOfMemory, advice
from ipygpumem.features.oom.observer import failed_allocations
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.oom.model import Failure

__all__ = ["explain", "listen"]

_QUICK = 3.0
"""Seconds that the walk may take while the user's code waits, once a cell: a million objects take one or two."""
_CELLS = 3


def listen(save: Callable[[Failure], str] | None = None) -> bool:
    """Take down every allocation that fails from here on, once CUDA has started; ``save`` as in `Failures.listen`."""
    return failed_allocations().listen(current().monitor, _quickly, save)


def _quickly() -> Holders:
    return holders(limit=_QUICK)


def explain(failures: list[Failure], count: int, *, caught: bool) -> OutOfMemory | None:
    """The panel of a cell in which allocations failed; none where nothing of them could be taken down.

    Args:
        failures: What failed, the last one last.
        count: How many failed in all.
        caught: Whether the code went on: then who held the memory at the first failure is told, else who holds it now,
            the failed code's own frames included.
    """
    if not failures:
        return None
    failure = failures[-1]
    now = _holders()
    then = next((one.holders for one in failures if one.holders is not None), None)
    freeable = 0 if now is None else now.freeable(failure.device, "traceback")
    freeable_out = 0 if now is None else now.freeable(failure.device, "traceback", "output")
    session = current()
    baseline = session.baseline
    before = None if baseline is None else baseline.reading.devices.get(failure.device)
    return OutOfMemory(
        failure,
        count,
        _line(failure),
        caught,
        then if caught and then is not None else now,
        freeable,
        freeable_out,
        _cells(failure.device),
        tuple(advice(failure, freeable, freeable_out, None if before is None else before.outside)),
    )


def _holders() -> Holders | None:
    try:
        return holders()
    except Exception:  # the books of the card stand without
        return None


def _line(failure: Failure) -> str:
    """Which line asked: the innermost of the user's own, and its text."""
    frame = next((one for one in failure.frames if not is_library(one[0])), None)
    if frame is None:
        return ""
    label = naming().label
    text = linecache.getline(frame[0], frame[1]).strip()
    told = label(*frame)
    cell = next((one for one in (label(*frame) for frame in failure.frames) if one.startswith("In [")), told)
    return f"{told}{f': {text}' if text else ''}{'' if cell == told else f', called by {cell}'}"


def _cells(device: str) -> tuple[tuple[int, int], ...]:
    """The cells that added most to a device since the baseline: (In number, bytes)."""
    found = []
    for report in session_reports():
        part = report.devices.get(device)
        if report.cell is not None and part is not None and part.held is not None and part.held > 0:
            found.append((report.cell, part.held))
    return tuple(sorted(found, key=lambda one: -one[1])[:_CELLS])
