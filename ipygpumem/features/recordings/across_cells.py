"""``%gpumem record``: one allocation history across cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.measure_block import notebook_sources
from ipygpumem.measurement.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ipygpumem.core.report import RecordingFacts
    from ipygpumem.measurement.allocation_history import HistoryOptions
    from ipygpumem.measurement.recording_keys import CellFacts
    from ipygpumem.measurement.sampler import SampleWindow
    from ipygpumem.measurement.session import Session

__all__ = ["AcrossCells"]

_MOST_WINDOWS = 200
"""Cells whose samples are kept: each has some thousand at most."""


class AcrossCells:
    """The recording that goes on from ``start`` to ``stop``, with the cells that ran meanwhile."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder: Recorder | None = None
        self._texts: dict[str, str] = {}

    @property
    def running(self) -> bool:
        """Whether a recording is on."""
        return self._recorder is not None

    def start(self, options: HistoryOptions) -> str:
        """Begin.

        Raises:
            UsageError: One is on already, ours or the user's.
        """
        if self._recorder is not None:
            raise UsageError("%gpumem record: already recording; %gpumem record stop ends it")
        recorder = Recorder(self._session.monitor, options)
        recorder.start()
        if not recorder.history.own:
            raise UsageError(
                "%gpumem record: PyTorch's history is being recorded already, and is yours: save it yourself"
            )
        self._recorder = recorder
        return (
            f"recording allocation history, at most {options.max_entries} events per device, until %gpumem record stop"
        )

    def add(self, cell: CellFacts, filename: str | None, raw: str | None, window: SampleWindow | None = None) -> None:
        """A cell has ended; ``window`` has the samples of the cards meanwhile."""
        if self._recorder is not None:
            self._recorder.cells.append(cell)
            if window is not None and any(track.count for track in window.tracks.values()):
                self._recorder.windows = [*self._recorder.windows, window][-_MOST_WINDOWS:]
            if filename is not None and raw is not None:
                self._texts[filename] = raw

    def notes(self) -> tuple[str, ...]:
        """What each report says while a recording is on, lest it be forgotten."""
        if self._recorder is None:
            return ()
        if self._recorder.history.lost:
            return (f"no longer recording across cells, {self._recorder.history.lost}: %gpumem record stop",)
        count = len(self._recorder.cells)
        cells = f"{count} cell{'s' if count != 1 else ''}"
        return (f"still recording allocation history ({cells} so far): %gpumem record save PATH, or stop",)

    def save(self, path: Path, numbers: Mapping[str, int]) -> RecordingFacts:
        """Write what there is so far; the recording goes on. ``numbers``: the cells' In numbers by file name.

        Raises:
            UsageError: None is on.
        """
        if self._recorder is None:
            raise UsageError("%gpumem record: nothing is being recorded; %gpumem record start begins")
        return self._recorder.save(path, sources={**notebook_sources(), **self._texts}, numbers=numbers)

    def stop(self) -> str:
        """End.

        Raises:
            UsageError: None is on.
        """
        if self._recorder is None:
            raise UsageError("%gpumem record: nothing is being recorded")
        self.close()
        return "recording stopped"

    def discard(self) -> None:
        """End, and say what is lost: the extension is being unloaded."""
        if self._recorder is not None:
            print("ipygpumem: a recording was on; what was not saved is gone")  # noqa: T201 (nothing is lost unsaid)
            self.close()

    def close(self) -> None:
        """End, whatever is on."""
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None
            self._texts = {}
