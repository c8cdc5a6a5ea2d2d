"""Record the allocation history continuously, and save it when an allocation fails (``GPUMem.oom_snapshot``)."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, RecordingError, first_line
from ipygpumem.core.files import check_path
from ipygpumem.features.holders.model import Holders
from ipygpumem.measurement.allocation_history import RecordingOptions, recording_problem
from ipygpumem.measurement.measurement import notebook_sources
from ipygpumem.measurement.recorder import CellInfo, Recorder
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from ipygpumem.features.oom.earlier_runs import EarlierRuns

_MAX_EVENTS = 100_000
_COST = (
    f"the last {_MAX_EVENTS:,} allocations and frees are recorded with their Python stacks, which uses about 50 MiB"
    " of host memory and slows down code that only launches small kernels by about 10%"
)


def oom_path(template: str, number: int) -> Path:
    """Return the path at which to save the snapshot of an out-of-memory error, expanded from the template.

    Raises `OptionError` if the path is not writable or the template is invalid.
    """
    names = {"n": number, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    try:
        text = template.format(**names)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise OptionError(
            f"{template!r} is not a valid path: the only valid placeholders are {{n}}, {{host}} and {{time}}"
        ) from error
    return check_path(text)


class OomRecording:
    """Continuous recording for out-of-memory snapshots. It is paused during any other recording.

    Attributes:
        template: Template for the path of snapshots; None if the recording is turned off.
        saved: Path of the snapshot that was saved since this attribute was last set to None.
    """

    def __init__(
        self, runtime: Runtime, cell: Callable[[], CellInfo | None], numbers: Callable[[], Mapping[str, int]]
    ) -> None:
        self._runtime = runtime
        self._cell = cell
        self._numbers = numbers
        self._recorder: Recorder | None = None
        self.template: str | None = None
        self.saved: Path | None = None
        self._number = 0

    @cached_property
    def earlier_runs(self) -> EarlierRuns:
        """The last successful runs of cells while allocations were recorded."""
        from ipygpumem.features.oom.earlier_runs import EarlierRuns  # imports the code for predictions

        return EarlierRuns()

    def configure(self, template: str | None) -> str:
        """Set the template for snapshot paths, start or stop recording, and return a message, which may be empty."""
        was_off = self.template is None
        self.template = template
        if template is None:
            was_recording = self._recorder is not None
            self.pause()
            return "allocations are no longer recorded for out-of-memory errors" if was_recording else ""
        problem = recording_problem()
        if problem:
            return f"oom_snapshot is not active: {problem}"
        self.resume()
        cost = f"; {_COST}" if was_off else ""
        return f"when an allocation fails, the allocation history is saved to {template}{cost}"

    def resume(self) -> None:
        """Start recording if it is enabled, CUDA is initialized and no other recording is active."""
        is_active = self._recorder is not None and not self._recorder.history.lost
        is_configured = self.template is not None and pytorch.started() is not None
        if is_active or not is_configured or allocator.is_recording() or recording_problem():
            return
        recorder = Recorder(self._runtime, RecordingOptions(max_entries=_MAX_EVENTS))
        recorder.start()
        self._recorder = recorder

    def start_cell(self) -> None:
        """Resume the recording, and store the position at which a cell starts."""
        self.resume()
        self.earlier_runs.begin(self._recorder)

    def pause(self) -> None:
        """Stop recording until `resume` is called."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def save(self, holders: Holders | None = None) -> str:
        """Save the history and the names of variables after an allocation has failed, and return a message."""
        if self._recorder is None or self.template is None:
            return ""
        self._number += 1
        try:
            path = oom_path(self.template, self._number)
            variables = [
                {"device": int(part.device.rpartition(":")[2]), "address": part.address, "name": holder.name}
                for holder in (() if holders is None else holders.holders)
                for part in holder.parts
                if part.address is not None and part.device.startswith("cuda:")
            ]
            result = self._recorder.save(
                path, sources=notebook_sources(), numbers=self._numbers(), cell=self._cell(), variables=variables
            )
        except (OptionError, RecordingError) as error:
            return f"the allocation history was not saved: {first_line(error)}"
        self.saved = None if result.path is None else path
        return result.sentence()
