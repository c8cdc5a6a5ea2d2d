"""Measurements of the cells and statements that a shell runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

from IPython.core.error import UsageError

from ipygpumem.core.errors import GPUMemLimitExceeded
from ipygpumem.core.interrupts import DeferredInterrupts, ImmediateInterrupts
from ipygpumem.core.introspection import preserve_shown_warnings
from ipygpumem.core.reading import Reading
from ipygpumem.core.report import MeasurementLabel, Report
from ipygpumem.features.commands.command import Notebook
from ipygpumem.features.holders.command import HolderBaselines
from ipygpumem.features.oom.observer import OomRecording
from ipygpumem.features.profile.collect import ProfileCollector
from ipygpumem.jupyter.cell_events import CellHooks, RunningCell, RunningCells
from ipygpumem.jupyter.cell_report import (
    CellOptions,
    OomPanel,
    ReportPresenter,
    fail_cell,
    one_line_traceback,
    print_exceptions,
)
from ipygpumem.jupyter.display import ClearOutputTracker
from ipygpumem.jupyter.live_display import LiveDisplayUpdater
from ipygpumem.jupyter.namespace import ExecutionCounts, calling_cell, next_execution_count
from ipygpumem.measurement.measurement import NO_CODE, MeasuredCode, Measurement, MeasurementOptions, notebook_sources
from ipygpumem.measurement.plan import MeasurementPlan, MeasurementResult
from ipygpumem.measurement.recorder import CellInfo


class CellMeasurements:
    def __init__(self, magics: Notebook) -> None:
        shell, runtime = magics.shell, magics.session
        self._shell = shell
        self._runtime = runtime
        self._magics = magics
        self.running = RunningCells(shell, self._drop)
        self.hooks = CellHooks(shell, self.pre_run_cell, self.post_run_cell, self.running.stacks)
        self.clearing = ClearOutputTracker(shell)
        self.live = LiveDisplayUpdater(shell, runtime, self.clearing)
        self.numbers = ExecutionCounts(shell)
        self.baselines = HolderBaselines(runtime)
        self.ooms = OomPanel(magics, OomRecording(runtime, self._running_cell, self.numbers.by_filename))
        self.presenter = ReportPresenter(magics, self.ooms, self.baselines)
        self._has_metadata = False
        self._previous: Reading | None = None  # second reading of the previous cell
        self.statements: set[str] = set()
        """File names under which IPython compiled the statements measured by ``%gpumem STATEMENT``."""

    @property
    def text(self) -> str:
        stack = self.running.stacks[threading.get_ident()]
        return stack[-1].raw if stack else ""

    @print_exceptions
    def pre_run_cell(self, info: Any) -> None:
        if self._runtime.forked:
            return
        cell, outermost = self.running.push(info)
        if not outermost:
            return
        raw, magics = info.raw_cell or "", self._magics
        previous, self._previous = self._previous, None
        if "gpumem" in raw:
            self.baselines.start_cell(raw)
        self.ooms.report = None
        if self.ooms.recording.template is not None:
            self.ooms.recording.start_cell()
        if cell.stored and (magics.record.recorder is not None or self.ooms.recording.template is not None):
            self._set_cell(next_execution_count(self._shell))
        settings = magics.values
        is_measured = settings.report != "off" or settings.limit is not None or magics.record.recorder is not None
        # for a %%gpumem cell, the magic starts the measurement
        if cell.stored and is_measured and not raw.lstrip().startswith("%%gpumem"):
            cell.plan = self.presenter.default_plan()
            cell.measurement = cell.plan.begin(self._runtime, self._measurement_options(), previous)
            self._begin_live(cell)

    def _measurement_options(self) -> MeasurementOptions:
        settings = self._magics.values
        return MeasurementOptions(settings.peaks == "exact", settings.host_peak == "reset", settings.synchronize)

    @preserve_shown_warnings()
    def begin(self, options: CellOptions) -> None:
        plan = options.plan
        cell = self.running.whole_cell()
        if cell is None:  # silent execution triggers no events and shows no output
            return
        if cell.options is not None:
            raise UsageError("%%gpumem is already used in this cell: put all options on one line")
        cell.abandon()
        if plan.recorder is not None:
            self.ooms.recording.pause()  # until the next cell, because PyTorch supports one recording at a time
        if not options.quiet:
            self.baselines.record_blocks()
        plan.collectors += self.presenter.collectors(requested=True)
        cell.code = (calling_cell(), self.text)
        cell.options, cell.plan = options, plan
        try:
            cell.measurement = plan.begin(self._runtime, self._measurement_options())
        except Exception as error:
            raise UsageError(f"%%gpumem: {error}") from error
        self._set_cell(cell.number)
        if options.quiet:
            self._end_live(cell)
        elif cell.live is None:
            self._begin_live(cell)

    def show_traceback(self, show: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Show a traceback with IPython's method ``show``. The cell's profile and measured time exclude this call."""
        cells = self.running.stacks[threading.get_ident()]
        for collector in (collector for cell in cells if cell.plan is not None for collector in cell.plan.collectors):
            if isinstance(collector, ProfileCollector):
                collector.stop()  # formatting a traceback takes hundreds of thousands of calls
        began = perf_counter()
        try:
            return show(*arguments, **options)
        finally:
            for measurement in filter(None, (cell.measurement for cell in cells)):
                measurement.excluded += perf_counter() - began

    def _begin_live(self, cell: RunningCell) -> None:
        settings = self._magics.values
        shows_reports = settings.report != "off" or cell.options is not None
        if shows_reports and cell.stored and self.live.available and settings.live == "auto":
            cell.live = self.live.begin(lambda: cell.number)

    def _end_live(self, cell: RunningCell) -> None:
        if cell.live is not None:
            self.live.end(cell.live)
            cell.live.retract()
            cell.live = None

    def _drop(self, cell: RunningCell) -> None:
        cell.abandon()
        self._end_live(cell)

    @print_exceptions
    def post_run_cell(self, result: Any) -> None:
        if self._runtime.forked:
            return
        cell, last = self.running.pop(result)
        if last and self._has_metadata:
            self._has_metadata = False
            self._runtime.active_recording.end_cell()
        if cell is None or cell.measurement is None or cell.plan is None:
            if cell is not None:
                self._drop(cell)
            if last:
                self.ooms.observer.take()  # there is no report, and therefore no panel
            return
        muted = self.clearing.waiting and self.clearing.waits(result)
        if getattr(result, "error_in_exec", None) is not None:
            self.ooms.observer.add_error(result.error_in_exec)
        try:
            # an ordinary cell does not change the filters of warnings
            end = self._end if cell.options is None else preserve_shown_warnings()(self._end)
            error = end(cell, cell.measurement, cell.plan, result, muted=muted)
            if last and (self.ooms.observer.count or self.ooms.recording.template is not None):
                self.ooms.end_cell(result)
        except BaseException:
            self._drop(cell)
            self.ooms.observer.take()
            raise
        self._end_live(cell)
        if error is not None and result is not None and result.success:
            fail_cell(self._shell, result, error)

    def _set_cell(self, number: int | None) -> None:
        self._has_metadata = True
        self._runtime.active_recording.set_cell(number)

    def _end(
        self, cell: RunningCell, measurement: Measurement, plan: MeasurementPlan, result: Any, *, muted: bool
    ) -> GPUMemLimitExceeded | None:
        raw, record = cell.raw, self._magics.record
        success = bool(result is not None and result.success)
        if cell.live is not None:
            self.live.end(cell.live)
        if not self.numbers.stored_by_ipython:
            self.numbers.store(raw, cell.number)
        if plan.recorder is not None or record.recorder is not None:
            label, code = self._recorded_code(cell, raw)
        else:
            label, code = MeasurementLabel(raw, cell.number, cell.cell_id), NO_CODE
        if record.recorder is not None:
            cell_info = measurement.cell_info(label, success=success)
            record.add(cell_info, label.filename, code.sources.get(label.filename or "", raw), measurement.samples)
        rejected = issubclass(type(getattr(result, "error_in_exec", None)), UsageError) and cell.is_single_magic
        if cell.reported or rejected:
            cell.abandon()
            return None
        finished = plan.finish(measurement, label, success=success, code=lambda: code)
        if finished is None:
            return None
        self._previous = measurement.after if cell.options is None else None
        self.presenter.present(finished.report, measurement, cell.options, muted=muted, live=cell.live)
        return finished.error

    def _recorded_code(self, cell: RunningCell, raw: str) -> tuple[MeasurementLabel, MeasuredCode]:
        filename, text = cell.code or (None, raw)
        filename = filename or self.numbers.filename(raw, cell.number, self.statements)
        sources, numbers, block = notebook_sources(), self.numbers.by_filename(), None
        if filename is not None:
            sources[filename] = text  # the text as written by the user, not the call that replaced %%gpumem
            block = (filename, 1, len(text.splitlines()), "")
            if cell.number is not None:
                numbers[filename] = cell.number  # the same text may have run before with another execution count
        return MeasurementLabel(raw, cell.number, cell.cell_id, filename), MeasuredCode(sources, numbers, block)

    def measure(self, options: CellOptions, run: Callable[[], Any]) -> tuple[Any, Report | None]:
        """Measure a call to ``run``, show the report, and return a tuple of the result of the call and the report.

        Exceptions raised by ``run`` propagate. The report is None if it could not be created. Raises
        `GPUMemLimitExceeded` if the call exceeded a limit.
        """
        __tracebackhide__ = True
        outer = self._magics.claim_cell()
        options.plan.collectors += self.presenter.collectors(requested=True)
        finished, success = None, False
        with DeferredInterrupts():
            try:
                measurement = options.plan.begin(self._runtime, self._measurement_options())
            except Exception as error:
                raise UsageError(f"%gpumem: {error}") from error
            self._set_cell(None if outer is None else outer.number)
            try:
                with ImmediateInterrupts():
                    value = run()
                success = True
            finally:
                finished = self._end_statement(measurement, options, outer, success)
        if finished is not None and finished.error is not None:
            del value  # otherwise the traceback would keep it alive
            raise one_line_traceback(finished.error)
        return value, None if finished is None else finished.report

    @print_exceptions
    @preserve_shown_warnings()
    def _end_statement(
        self, measurement: Measurement, options: CellOptions, outer: RunningCell | None, success: bool
    ) -> MeasurementResult | None:
        def code() -> MeasuredCode:
            sources = notebook_sources()
            if outer is not None and outer.reported:  # the file name of the statement differs from that of the cell
                sources.pop(calling_cell() or "", None)
            return MeasuredCode(sources, self.numbers.by_filename())

        number, cell_id = (None, None) if outer is None else (outer.number, outer.cell_id)
        label = MeasurementLabel(options.code, number, cell_id)
        finished = options.plan.finish(measurement, label, success=success, code=code)
        if finished is not None:
            live = outer.live if outer is not None and outer.reported else None
            self.live.end(live)
            self.presenter.present(finished.report, measurement, options, live=live)
        return finished

    def close(self) -> None:
        """End the measurements of all running cells, and save their recordings and profiles."""
        for cell in [cell for stack in self.running.stacks.values() for cell in stack]:
            measurement, plan = cell.measurement, cell.plan
            if measurement is not None and plan is not None and (plan.recorder is not None or cell.options is not None):
                plan.collectors = tuple(c for c in plan.collectors if isinstance(c, ProfileCollector))
                label = MeasurementLabel(cell.raw, cell.number, cell.cell_id)
                code = functools.partial(MeasuredCode, notebook_sources(), self.numbers.by_filename())
                finished = plan.finish(measurement, label, success=None, code=code)
                report = None if finished is None else finished.report
                if report is not None and report.recording is not None:
                    self._magics.print(f"ipygpumem: {report.recording.sentence()}")
                if report is not None and report.profile is not None:
                    self._magics.print(f"ipygpumem: {'; '.join(report.profile.sentences())}")
            self._drop(cell)
        self.running.stacks.clear()
        self.live.close()

    def open_cell(self) -> tuple[int | None, float] | None:
        """Return the execution count and start time (Unix time) of the running cell, or None if no cell is running."""
        cell = self.running.outermost()
        return None if cell is None else (cell.number, cell.began)

    def _running_cell(self) -> CellInfo | None:
        cell = self.running.outermost()
        if cell is None or cell.measurement is None:
            return None
        filename = self.numbers.filename(cell.raw, cell.number, self.statements)
        return cell.measurement.cell_info(MeasurementLabel(cell=cell.number, filename=filename), success=False)
