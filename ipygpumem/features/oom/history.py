"""A history that is always on, so that a cell which runs out of memory leaves a snapshot: ``GPUMem.oom_snapshot``."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, RecordingError, first_line
from ipygpumem.features.report.notes import recording_text
from ipygpumem.measurement.allocation_history import HistoryOptions, recording_problem
from ipygpumem.measurement.notebook_sources import notebook_sources
from ipygpumem.measurement.recorder import Recorder
from ipygpumem.measurement.recording_file import check_path
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ipygpumem.features.oom.model import Failure
    from ipygpumem.measurement.recording_keys import CellFacts
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["Ring", "ring_path"]

_EVENTS = 100_000
_COST = (
    f"the last {_EVENTS:,} allocations and frees are kept with their Python stacks: some 50 MiB of main memory, and"
    " about a tenth of the time of code that only launches small kernels"
)


def ring_path(template: str, number: int) -> Path:
    """The file of the Nth failure: ``{n}``, ``{host}`` and ``{time}`` expand. Proved to be writable.

    Raises:
        OptionError: Another name in braces, or nothing can be written there.
    """
    names = {"n": number, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    try:
        text = template.format(**names)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise OptionError(f"{template!r} does not expand: there are {{n}}, {{host}} and {{time}}") from error
    return check_path(text)


class Ring:
    """The history of one shell. Steps aside for every other recording, and comes back."""

    def __init__(
        self, session: Runtime, cell: Callable[[], CellFacts | None], numbers: Callable[[], Mapping[str, int]]
    ) -> None:
        self._session = session
        self._cell = cell
        self._numbers = numbers
        self._recorder: Recorder | None = None
        self.template: str | None = None
        self._number = 0

    def set(self, template: str | None) -> str:
        """Begin, go on under another name, or end; what is to be said of it."""
        fresh = self.template is None
        self.template = template
        if template is None:
            running = self._recorder is not None
            self.pause()
            return "no history is kept for out-of-memory errors any more" if running else ""
        why = recording_problem()
        if why:
            return f"oom_snapshot waits: {why}"
        self.resume()
        return f"out-of-memory errors leave {template}; {_COST}" if fresh else f"out-of-memory errors leave {template}"

    def resume(self) -> None:
        """Record, if that is wanted, nobody else records, and CUDA has started."""
        if self.template is None or pytorch.started() is None:
            return
        if self._recorder is not None and not self._recorder.history.lost:
            return
        if allocator.is_recording() or recording_problem():
            return
        recorder = Recorder(self._session, HistoryOptions(max_entries=_EVENTS))
        recorder.start()
        self._recorder = recorder

    def pause(self) -> None:
        """Make room for another recording."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def save(self, failure: Failure) -> str:  # noqa: ARG002 (the signature of a listener)
        """Write what led to a failure, at that moment; what became of it, in words."""
        if self._recorder is None or self.template is None:
            return ""
        self._number += 1
        try:
            path = ring_path(self.template, self._number)
            facts = self._recorder.save(path, sources=notebook_sources(), numbers=self._numbers(), cell=self._cell())
        except (OptionError, RecordingError) as error:
            return f"the history of this failure was not saved: {first_line(error)}"
        return recording_text(facts)
