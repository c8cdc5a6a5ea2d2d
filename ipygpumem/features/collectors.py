"""From the options of a measurement to its plan: which sections the report gets, and what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.features.outside.collect import OutsideCollector
from ipygpumem.features.processes.collect import ProcessesCollector
from ipygpumem.measurement.allocation_history import HistoryOptions, recording_problem
from ipygpumem.measurement.plan import Collector, Plan
from ipygpumem.measurement.recorder import Recorder
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ipygpumem.features.limits.model import Limits
    from ipygpumem.features.lines.source import SourceRegion
    from ipygpumem.features.modules.tracker import ModuleTracker
    from ipygpumem.features.profile.collect import ProfileCollector
    from ipygpumem.measurement.runtime import Runtime


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
    limits: Limits | None = None,
    path: Path | None = None,
    history: HistoryOptions | None = None,
    devices: tuple[str, ...] | None = None,
    extra: Sequence[Collector] = (),
) -> Plan:
    """Make the plan of a measurement.

    Args:
        runtime: The runtime of this process.
        lines: Functions to list line by line besides the measured code itself; None lists nothing.
        all_functions: List every function of the notebook that ran.
        peak_lines: Report the lines of code at the peak of a recording that is saved.
        modules: Report the memory of this model by module.
        outside: Report memory outside PyTorch by library.
        every_cell: The plan follows from settings, not from options of this measurement: other processes are reported
            only if they changed, and a limit alone does not start a recording.
        profile: Writes a trace or a timeline.
        limits: Limits to check.
        path: Where to save the recording; None does not save it.
        history: Options of the recording.
        devices: Names of the devices to report on; None for all that this process uses.
        extra: Further collectors.

    Raises:
        RecordingError: Lines, modules or a snapshot are requested, and history cannot be recorded.
        OptionError: A recording option that this torch does not have, or lines without stacks.
    """
    if lines is not None and history is not None and history.stacks == "none":
        raise OptionError("--lines needs the stacks of allocations: use --stacks python or --stacks all")
    collectors: list[Collector] = []
    if outside:
        collectors.append(OutsideCollector(runtime.monitor, every_cell=every_cell))
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
    needed = path is not None or lines is not None or modules is not None
    # a recording can show which line exceeded a limit, but must not cause an error or start CUDA
    useful = bool(limits) and not every_cell and pytorch.started() is not None and recording_problem() is None
    recorder = Recorder(runtime, history) if needed or useful else None
    collectors += extra
    return Plan(collectors, recorder=recorder, path=path, devices=devices)
