"""Measurement of a block of code without IPython: ``with ipygpumem.measure() as m: ...``, then ``m.report``."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.device_names import split_devices
from ipygpumem.core.errors import GPUMemLimitExceeded, OptionError, check_argument, check_choice, first_line
from ipygpumem.core.files import check_path
from ipygpumem.core.interrupts import DeferredInterrupts, exit_after_interrupt, exit_method
from ipygpumem.core.introspection import preserve_shown_warnings
from ipygpumem.core.report import MeasurementLabel, Report
from ipygpumem.features.history.reports import HistoryCollector
from ipygpumem.features.holders.reference_graph import naming_functions
from ipygpumem.features.limits.model import MemoryLimits
from ipygpumem.features.lines.source_code import (
    SourceCode,
    SourceRegion,
    code_object,
    function_region,
    with_statement_region,
)
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.features.plan import make_plan
from ipygpumem.features.profile.collect import profile_collector
from ipygpumem.features.ranks.rank_files import RankFiles
from ipygpumem.measurement.allocation_history import RecordingOptions
from ipygpumem.measurement.measurement import MeasuredCode, Measurement, MeasurementOptions, notebook_sources
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from typing_extensions import Self


class measure:  # noqa: N801 (a context manager is used like a function)
    """Context manager that measures the memory usage of a block of code.

    Args:
        snapshot: File in which to save the block's allocation history, even if the block fails; None saves nothing.
        stacks: Stacks to record: ``"python"``, ``"all"`` (Python and C++, slow to save) or ``"none"``.
        max_entries: Maximum number of recorded events per device. If there are more, the oldest events are dropped.
        history: Additional keyword arguments for ``torch.cuda.memory._record_memory_history``.
        devices: Names (``"cuda:0"``) or indices of the devices to report on; None selects all devices in use.
        peaks: ``"exact"`` resets PyTorch's peak counters; ``"untouched"`` does not, so peaks may be upper bounds.
        host_peak: ``"reset"`` makes the host peak exact but lowers ``ru_maxrss``; ``"bound"`` permits an upper bound.
        synchronize: Whether to wait for the current stream of each device before and after the block.
        lines: If True, report memory by source line for the block and the notebook functions that it calls. Instead of
            True, pass functions or methods to list only them and the block. The allocation history is recorded.
        modules: A ``torch.nn.Module`` whose memory is reported by submodule and by phase. The block should run one or
            more steps of training or inference, whose allocation history is recorded.
        trace: File for torch.profiler's trace of the block (``.json.gz`` or ``.json``, for Perfetto and
            chrome://tracing), which is also written if the block fails.
        timeline: File for an HTML page that shows memory by category over time.
        outside: Whether to report memory outside PyTorch by library (requires ``ipygpumem[outside]``).
        limit: Maximum peak of the block on any GPU, relative to its start, as a string such as ``"2 GiB"`` or as a
            number of bytes.
        limit_held: Maximum memory that the block leaves allocated on any GPU.
        limit_outside: Maximum growth of memory outside PyTorch on any GPU.
        limit_host: Maximum peak resident memory, relative to the start of the block (implies ``host_peak="reset"``).
        rank_reports: Directory for a report and a snapshot of this process, which is one of several that run the same
            block (torchrun, accelerate, torch.multiprocessing). Existing files of this rank are replaced.
            ``ipygpumem ranks DIRECTORY`` shows all ranks side by side. ``snapshot=False`` omits the snapshot.
        rank: Rank of this process. Defaults to the rank in torch.distributed or the environment.

    Attributes:
        report: The report, available after the block has ended, even if it raised an exception.

    Raises:
        OptionError: An argument is invalid. Raised before the block runs.
        RecordingError: Allocation history is required but cannot be recorded. Raised before the block runs.
        GPUMemLimitExceeded: A limit is exceeded. Raised after the block has ended without an error.

    Example:
        >>> with measure() as m:
        ...     x = [0] * 10
        >>> m.report.success
        True
    """

    report: Report

    def __init__(
        self,
        *,
        snapshot: str | os.PathLike[str] | Literal[False] | None = None,
        stacks: Literal["python", "all", "none"] = "python",
        max_entries: int = 1_000_000,
        history: Mapping[str, Any] | None = None,
        devices: Iterable[str | int] | str | int | None = None,
        peaks: Literal["exact", "untouched"] = "exact",
        host_peak: Literal["bound", "reset"] = "bound",
        synchronize: bool = False,
        lines: bool | Callable[..., Any] | Iterable[Callable[..., Any]] = False,
        modules: Any = None,
        trace: str | os.PathLike[str] | None = None,
        timeline: str | os.PathLike[str] | None = None,
        outside: bool = False,
        limit: str | int | None = None,
        limit_held: str | int | None = None,
        limit_outside: str | int | None = None,
        limit_host: str | int | None = None,
        rank_reports: str | os.PathLike[str] | None = None,
        rank: int | None = None,
    ) -> None:
        check_choice("peaks", peaks, ("exact", "untouched"))
        check_choice("host_peak", host_peak, ("bound", "reset"))
        if history is not None:
            check_argument("history", history, Mapping, "a dict of arguments")
        self._runtime = runtime = current()
        self._options = MeasurementOptions(
            reset_peaks=peaks == "exact",
            reset_host_peak=host_peak == "reset" or limit_host is not None,
            synchronize=synchronize,
        )
        path = None if snapshot is None or snapshot is False else check_path(snapshot)
        self._ranks = None
        if rank_reports is not None:
            if path is not None:
                raise OptionError("rank_reports sets the path of the snapshot: omit snapshot=, or set it to False")
            self._ranks = RankFiles(rank_reports, rank, record=snapshot is None)
            path = self._ranks.snapshot
        elif rank is not None:
            raise OptionError("rank= requires rank_reports=DIRECTORY")
        elif path is None and history and lines is False and modules is None:
            raise OptionError("history= requires a recording: add snapshot=PATH")
        self._plan = make_plan(
            runtime,
            devices=None if devices is None else runtime.monitor.parse_devices(split_devices(devices, "devices")),
            lines=None if lines is False else _regions(lines),
            all_functions=lines is True,
            limits=MemoryLimits.parse(limit, limit_held, limit_outside, limit_host),
            modules=None if modules is None else ModuleTracker(modules, reset=peaks == "exact"),
            history=RecordingOptions(stacks=stacks, max_entries=max_entries, extra=dict(history or {})),
            path=path,
            outside=bool(outside),
            profile=profile_collector(trace, timeline, outside=bool(outside), snapshot=path),
            extra=(HistoryCollector(lambda: 0),),
        )
        self._lists_lines = lines is not False
        self._block: SourceRegion | None = None
        self._position = ("", 0, "")
        self._measurement: Measurement | None = None

    def __enter__(self) -> Self:
        if self._measurement is not None:
            raise OptionError("this measure() is already in use: create another measure() for the nested block")
        caller = sys._getframe(1)
        code = caller.f_code
        function = "<module>" if code.co_name.startswith("<cell line") else code.co_name  # the name in IPython 7.34
        self._position = code.co_filename, caller.f_lineno, function
        if self._lists_lines:
            self._block = with_statement_region(
                code.co_filename, caller.f_lineno, SourceCode(notebook_sources()), f"with measure() in {code.co_name}"
            )
        if self._ranks is not None:
            self._ranks.write_start()
        try:
            with DeferredInterrupts(), preserve_shown_warnings():
                self._measurement = self._plan.begin(self._runtime, self._options)
                exit_after_interrupt(self)
        except BaseException:
            if self._measurement is not None:  # after an interrupt, Python does not call __exit__
                self._measurement.abandon()
                self._measurement = None
            raise
        return self

    @exit_method
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        measurement, self._measurement = self._measurement, None
        if measurement is None:
            return
        try:
            warning, limit_error = self._end(measurement, success=kind is None)
        except BaseException:  # also if interrupted before interrupts are deferred
            measurement.abandon()
            raise
        if warning:
            try:
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
            except RuntimeWarning:  # the program turns warnings into errors, but the block's exception has priority
                if kind is None:
                    raise
        if kind is None and limit_error is not None:
            raise limit_error

    def _end(self, measurement: Measurement, *, success: bool) -> tuple[str, GPUMemLimitExceeded | None]:
        """Create the report. Return the text of a warning, which may be empty, and the error to raise, if any."""
        with DeferredInterrupts(), preserve_shown_warnings():
            try:
                if self._ranks is not None and self._ranks.update_rank():
                    measurement.path = self._ranks.snapshot
                label = MeasurementLabel(self._label())
                finished = self._plan.finish(measurement, label, success=success, code=self._code)
            except Exception as problem:  # it must not replace the result or the exception of the block
                measurement.abandon()
                return f"this block has no report: {first_line(problem)}", None
            if finished is None:  # forked inside the block; the parent process has the report
                return "", None
            self.report = finished.report
            return self._missing_files(finished.report), finished.error

    def _code(self) -> MeasuredCode:
        region = self._block
        block = None if region is None else (region.file, region.first, region.last, region.name)
        return MeasuredCode(notebook_sources(), block=block)

    def _missing_files(self, report: Report) -> str:
        problems = ["" if report.recording is None else report.recording.error]
        problems += [] if self._ranks is None else [self._ranks.write_report(report)]
        problems += [] if report.profile is None else report.profile.errors
        return "; ".join(filter(None, problems))

    def _label(self) -> str:
        with contextlib.suppress(Exception):  # keep the report if its label fails
            return naming_functions().label(*self._position).removesuffix(" <module>")
        return ""


def _regions(lines: bool | Callable[..., Any] | Iterable[Callable[..., Any]]) -> list[SourceRegion]:
    functions = [] if isinstance(lines, bool) else list(lines) if isinstance(lines, Iterable) else [lines]
    texts = SourceCode(notebook_sources())
    regions = []
    for function in functions:
        code = code_object(function)
        if code is None:
            raise OptionError(f"lines must be True or functions written in Python, but got {type(function).__name__}")
        regions.append(function_region(code, texts))
    return regions
