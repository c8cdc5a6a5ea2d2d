"""Recording of allocation history across cells with ``%gpumem record``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.report import RecordingInfo, Report
from ipygpumem.core.units import many
from ipygpumem.measurement.allocation_history import RecordingOptions
from ipygpumem.measurement.measurement import notebook_sources
from ipygpumem.measurement.plan import Collector, CompletedMeasurement, with_notes
from ipygpumem.measurement.recorder import AllocationRecorder, CellInfo
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.measurement.sampler import SampleWindow

_MAX_SAMPLED_CELLS = 200  # maximum number of cells whose samples are stored, each with up to a few thousand samples


class MultiCellRecording(Collector):
    """A recording across cells, from ``%gpumem record start`` to ``%gpumem record stop``.

    ``recorder`` is None if no recording is running.
    """

    section = "recording"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sources: dict[str, str] = {}
        self.recorder: AllocationRecorder | None = None

    def start(self, options: RecordingOptions) -> str:
        if self.recorder is not None:
            raise RecordingError("a recording is already running; to stop it, run %gpumem record stop")
        recorder = AllocationRecorder(self._runtime, options)
        with DeferredInterrupts():  # otherwise, an interrupt could leave a recording that cannot be stopped
            recorder.start()
            if not recorder.history.own:
                stop = "torch.cuda.memory._record_memory_history(enabled=None)"
                raise RecordingError(f"your code is already recording allocation history: to stop it, call {stop}")
            self.recorder = recorder
        count = f"{options.max_entries:,}"
        return f"recording allocation history, at most {count} events per device, until %gpumem record stop"

    def add(self, cell: CellInfo, filename: str | None, text: str | None, samples: SampleWindow | None = None) -> None:
        if self.recorder is None:
            return
        self.recorder.cells.append(cell)
        if samples is not None and any(track.count for track in tuple(samples.tracks.values())):
            self.recorder.windows = [*self.recorder.windows, samples][-_MAX_SAMPLED_CELLS:]
        if filename is not None and text is not None:
            self._sources[filename] = text

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:  # noqa: ARG002 (unused)
        if self.recorder is None:
            return report
        problem = self.recorder.history.lost
        if problem:
            hint = "before starting another recording, run %gpumem record stop"
            return with_notes(report, f"the recording across cells has ended: {problem}; {hint}")
        count = many(len(self.recorder.cells), "cell")
        hint = "%gpumem record save PATH saves the recording; %gpumem record stop ends it"
        return with_notes(report, f"recording allocation history ({count} so far): {hint}")

    def save(self, path: Path, numbers: Mapping[str, int]) -> RecordingInfo:
        """Save the recording, which continues. ``numbers`` maps file names to execution counts.

        Raises `RecordingError` if no recording is running.
        """
        if self.recorder is None:
            raise RecordingError("no recording is running: start one with %gpumem record start")
        return self.recorder.save(path, sources={**notebook_sources(), **self._sources}, numbers=numbers)

    def close(self) -> None:
        if self.recorder is not None:
            with DeferredInterrupts():
                self.recorder.stop()
                self.recorder = None
                self._sources = {}
