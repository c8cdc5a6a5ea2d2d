"""What is asked of a measurement beside its figures: its lines of code, its limits.

Where that takes a recording one is made, and read at once; no file is written but the one that the user asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError, OptionError, first_line
from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.core.report import ProfiledHost
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.outside.collect import OutsideQuestion, exact_first
from ipygpumem.measurement.allocation_history import History, HistoryOptions
from ipygpumem.measurement.backward_passes import BackwardPasses
from ipygpumem.measurement.recorder import Recorder
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ipygpumem.core.errors import GPUMemLimitExceeded
    from ipygpumem.core.report import Report
    from ipygpumem.features.lines.collect import LineSelection
    from ipygpumem.features.lines.model import DeviceLines
    from ipygpumem.features.lines.source import SourceRegion
    from ipygpumem.features.modules.model import ModuleTree
    from ipygpumem.features.modules.tracker import ModuleTracker
    from ipygpumem.features.outside.model import OutsideMemory
    from ipygpumem.features.profile.collect import ProfileCollector
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["Study"]


class Study:
    """The questions to one measurement.

    Args:
        monitor: The devices.
        lines: The regions of code to list besides the cell itself; None lists nothing.
        everywhere: Whether every function of the notebook that ran is listed, too.
        limits: What the measurement may take.
        modules: A model that is under watch meanwhile; None for none.
        options: How to record.
        path: Where the recording is to be saved; None saves nothing.
        record: Whether a limit alone is worth a recording, which tells the line that broke it.
        outside: Whether memory outside PyTorch is told by library.
        profile: A trace or a timeline that is to be written.

    Raises:
        RecordingError: Lines or a file are asked for where no history can be recorded.
        OptionError: A recording option that this torch does not have, or lines without stacks.
    """

    def __init__(
        self,
        monitor: DeviceMonitor,
        *,
        lines: Sequence[SourceRegion] | None = None,
        everywhere: bool = False,
        limits: Limits | None = None,
        modules: ModuleTracker | None = None,
        options: HistoryOptions | None = None,
        path: Path | None = None,
        record: bool = True,
        outside: bool = False,
        profile: ProfileCollector | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.error: GPUMemLimitExceeded | None = None
        self.profile = profile
        self._records = record
        self._lines = lines
        self._modules = modules
        self._everywhere = everywhere
        self._path = path
        self._passes = BackwardPasses()
        self._outside = OutsideQuestion(monitor, standing=not record) if outside else None
        if lines is not None and options is not None and options.stacks == "none":
            raise OptionError("lines need stacks: python, or all")
        needed = path is not None or lines is not None or modules is not None
        self._recorder = Recorder(monitor, options) if needed or (record and self._may_record()) else None

    def _may_record(self) -> bool:
        """Whether a recording can tell the line that broke a limit, without starting anything for it."""
        return bool(self.limits) and pytorch.started() is not None and History.obstacle() is None

    @property
    def recording(self) -> bool:
        """Whether it takes a recording."""
        return self._recorder is not None

    @property
    def listing(self) -> bool:
        """Whether more than figures is asked for."""
        return self._lines is not None or self._modules is not None

    def attach(self, measurement: Measurement) -> None:
        """Ask a measurement, before it begins."""
        if self._outside is not None:
            self._outside.attach(measurement)
        if self._recorder is not None:
            self._recorder.keep = self.listing or bool(self.limits)
            measurement.record(self._recorder, self._path)
            if self._lines is not None:
                measurement.observers.append(self._passes)
            if self._modules is not None:
                phases = self._modules.phases
                measurement.observers.append(self._modules)
                measurement.overheads.append(lambda: phases.cost)
        if self.profile is not None:  # last, so that little of ours is in the profile
            self.profile.attach(measurement)

    def finish(
        self,
        report: Report,
        measurement: Measurement,
        *,
        cells: Mapping[str, str],
        numbers: Mapping[str, int] | None = None,
        block: SourceRegion | None = None,
    ) -> Report:
        """The report with its answers; `error` is what a broken limit raises.

        Args:
            report: Of the measurement that has ended.
            measurement: That measurement.
            cells: SourceTexts of the notebook's cells by file name.
            numbers: In numbers by file name, as far as they are known.
            block: The code that was measured, to be listed first.
        """
        snapshot, why = self._snapshot(measurement, numbers or {})
        notes = list(report.notes)
        lines: tuple[DeviceLines, ...] = ()
        modules: tuple[ModuleTree, ...] = ()
        if self._lines is not None:
            try:
                lines = () if snapshot is None else self._listed(snapshot, report, cells, numbers or {}, block)
            except Exception as error:
                notes.append(f"no lines: {first_line(error)}")
        if self._modules is not None:
            try:
                modules = () if snapshot is None else self._trees(snapshot, report)
            except Exception as error:
                notes.append(f"no modules: {first_line(error)}")
        if why and self.listing:
            notes.append(f"no {'lines' if self._modules is None else 'modules'}: {why}")
        libraries: tuple[OutsideMemory, ...] = ()
        if self._outside is not None:
            try:
                libraries, doubts = self._outside.answer(report)
                notes += doubts
            except Exception as error:
                notes.append(f"no libraries: {first_line(error)}")
            report = exact_first(report, libraries)
        profile = None
        if self.profile is not None:
            profile = self.profile.answer()
            report = replace(report, host=ProfiledHost(report.host.before, report.host.after))
        excesses, doubts = self.limits.check(report)
        notes += [*doubts, *self._unmeasured(report)]
        report = replace(
            report,
            notes=tuple(notes),
            lines=lines,
            excesses=excesses,
            modules=modules,
            libraries=libraries,
            profile=profile,
        )
        if excesses:
            from ipygpumem.features.limits.collect import limit_error

            self.error = limit_error(report, snapshot, recorded=self._records)
        return report

    def _unmeasured(self, report: Report) -> tuple[str, ...]:
        """Limits on GPUs where there is none. Where CUDA has not started, nothing was taken, and they hold."""
        if report.devices or not self.limits:
            return ()
        why = pytorch.problem(load=True) if pytorch.module() is not None else "torch was not imported"
        return self.limits.unmeasured(why) if why else ()

    def _snapshot(self, measurement: Measurement, numbers: Mapping[str, int]) -> tuple[Snapshot | None, str]:
        """What was recorded, read; or why there is nothing to read."""
        recorder, facts = self._recorder, measurement.recorded
        if recorder is None or facts is None or not recorder.keep:
            return None, ""
        taken, recorder.kept = recorder.kept, None
        if taken is None or facts.error:
            return None, facts.error or "nothing was recorded"
        if facts.dropped is None:
            return None, "whether the ring dropped allocations is not known"
        if facts.dropped:
            return None, f"the ring dropped {facts.dropped:,} allocations: raise max_entries"
        _name_cells(taken, numbers)
        from ipygpumem.snapshot import Snapshot

        try:
            with collector_paused():
                return Snapshot.load(taken), ""
        except IpyGpuMemError as error:
            return None, str(error)

    def _listed(
        self,
        snapshot: Snapshot,
        report: Report,
        cells: Mapping[str, str],
        numbers: Mapping[str, int],
        block: SourceRegion | None,
    ) -> tuple[DeviceLines, ...]:
        from ipygpumem.features.lines.collect import LineSelection, device_lines
        from ipygpumem.features.lines.source import SourceTexts

        regions = (*([block] if block else []), *(self._lines or ()))
        scope: LineSelection = LineSelection(regions, self._everywhere, numbers)
        recorder: Any = self._recorder
        found = (
            device_lines(
                snapshot, device, recorder=recorder, passes=self._passes.passes, scope=scope, texts=SourceTexts(cells)
            )
            for device in report.devices.values()
        )
        devices = [one for one in found if one is not None]
        return tuple(one for one in devices if one.busy) or tuple(devices[:1])

    def _trees(self, snapshot: Snapshot, report: Report) -> tuple[ModuleTree, ...]:
        from ipygpumem.features.modules.collect import module_tree

        watch: Any = self._modules
        recorder: Any = self._recorder
        found = (module_tree(snapshot, device, recorder, watch) for device in report.devices.values())
        trees = [one for one in found if one is not None]
        return tuple(one for one in trees if one.busy) or tuple(trees[:1])


def _name_cells(taken: dict[str, Any], numbers: Mapping[str, int]) -> None:
    """Let a snapshot know cells that ran before it: their functions stand in its stacks. Not for files."""
    cells = taken["ipygpumem"]["cells"]
    known = {cell["filename"] for cell in cells}
    cells += [
        {"number": number, "filename": name, "start_us": 0, "end_us": 0, "success": None}
        for name, number in numbers.items()
        if name not in known
    ]
