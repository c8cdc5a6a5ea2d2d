"""Creation of the plan of a measurement from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.features.limits.model import MemoryLimits
from ipygpumem.features.processes.collect import ProcessesCollector
from ipygpumem.measurement.allocation_history import RecordingOptions, recording_problem
from ipygpumem.measurement.plan import Collector, MeasurementPlan
from ipygpumem.measurement.recorder import AllocationRecorder
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from ipygpumem.features.lines.source_code import SourceRegion
    from ipygpumem.features.modules.tracker import ModuleTracker
    from ipygpumem.features.profile.collect import ProfileCollector


def make_plan(
    runtime: Runtime,
    *,
    lines: Sequence[SourceRegion] | None = None,
    all_functions: bool = False,
    peak_lines: bool = False,
    modules: ModuleTracker | None = None,
    outside: bool = False,
    every_cell: bool = False,
    profile: ProfileCollector | None = None,
    limits: MemoryLimits | None = None,
    path: Path | None = None,
    history: RecordingOptions | None = None,
    devices: tuple[str, ...] | None = None,
    extra: Sequence[Collector] = (),
) -> MeasurementPlan:
    """Create the plan of a measurement.

    ``lines``: Functions to list line by line in addition to the measured code; None omits the listings.
    ``all_functions``: Whether to list all functions of the notebook that the measured code called.
    ``peak_lines``: Whether to report memory at the peak by line of code if the recording is saved.
    ``modules``: Recorder of module calls; None omits the memory usage by module.
    ``outside``: Whether to list the memory outside PyTorch by library.
    ``every_cell``: Whether the plan is based on settings, which apply to every cell, rather than on options. Other
    processes are then reported only if their memory usage changed, or if they started or stopped using a device,
    and limits alone do not start a recording.
    ``path``: File to which the recording is saved; None if it is not saved.
    ``devices``: Names of the devices to report; None for all devices in use.

    Raises:
        RecordingError: Lines, modules or a snapshot are requested, but allocation history cannot be recorded.
        OptionError: PyTorch does not support a recording option, or lines are requested without stacks.
    """
    if lines is not None and history is not None and history.stacks == "none":
        raise OptionError("memory by line requires allocation stacks: set stacks to 'python' or 'all'")
    collectors: list[Collector] = []
    if outside:
        from ipygpumem.features.outside.collect import OutsideCollector

        collectors.append(OutsideCollector(every_cell=every_cell))
    if lines is not None:
        from ipygpumem.features.lines.collect import LinesCollector

        collectors.append(LinesCollector(lines, all_functions=all_functions))
    elif peak_lines and path is not None:
        from ipygpumem.features.lines.peak import PeakLinesCollector

        collectors.append(PeakLinesCollector())
    if modules is not None:
        from ipygpumem.features.modules.collect import ModulesCollector

        collectors.append(ModulesCollector(modules))
    if profile is not None:
        collectors.append(profile)
    if limits:
        from ipygpumem.features.limits.collect import LimitsCollector

        collectors.append(LimitsCollector(limits, recorded=not every_cell))
    collectors.append(ProcessesCollector(unchanged=not every_cell))
    needs_recording = path is not None or lines is not None or modules is not None
    # a recording shows which line exceeded a limit, but must neither fail nor initialize CUDA for this purpose
    useful = bool(limits) and not every_cell and pytorch.initialized_torch() is not None and recording_problem() is None
    if lines is not None:
        history = history or RecordingOptions()
        history = replace(history, extra={**history.extra, "context": "all"})
    recorder = AllocationRecorder(runtime, history) if needs_recording or useful else None
    collectors += extra
    return MeasurementPlan(tuple(collectors), recorder=recorder, path=path, devices=devices)
