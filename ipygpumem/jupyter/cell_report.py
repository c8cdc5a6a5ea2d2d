"""Display of cell reports, depending on options and settings, and of the panel below an out-of-memory error."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import first_line
from ipygpumem.core.interrupts import ImmediateInterrupts
from ipygpumem.core.report import Report
from ipygpumem.core.tables import tables_bundle
from ipygpumem.core.text import printable
from ipygpumem.features.commands.command import Notebook
from ipygpumem.features.history.model import output_metadata
from ipygpumem.features.history.reports import HistoryCollector
from ipygpumem.features.holders.collect import new_holders
from ipygpumem.features.holders.command import HolderBaselines
from ipygpumem.features.limits.model import MemoryLimits
from ipygpumem.features.oom.observer import OomRecording, failed_allocations
from ipygpumem.features.plan import make_plan
from ipygpumem.features.profile.collect import ProfileCollector
from ipygpumem.features.report.collect import AccuracyNotesCollector
from ipygpumem.features.report.table import full_bundle, requested_bundle
from ipygpumem.jupyter.display import uses_color
from ipygpumem.jupyter.live_display import LiveDisplay
from ipygpumem.measurement.measurement import Measurement
from ipygpumem.measurement.plan import Collector, MeasurementPlan
from ipygpumem.measurement.runtime import current

_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=BaseException)


class _PrintedErrors(set[str]):
    """Error messages that have been printed in this process."""


def print_exceptions(callback: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """Wrap an IPython callback so that it prints exceptions instead of raising them. Each message is printed once."""

    @functools.wraps(callback)
    def safe(*arguments: Any, **options: Any) -> _Result | None:
        try:
            return callback(*arguments, **options)
        except Exception as error:
            name, message = type(error).__name__, first_line(error)
            problem = name if message == name else f"{name}: {message}"
            printed = current().state(_PrintedErrors)
            if problem not in printed:
                printed.add(problem)
                print(f"ipygpumem: this cell has no report ({problem}); this message is not repeated", file=sys.stderr)  # noqa: T201
            return None

    return safe


@dataclass(slots=True)
class CellOptions:
    """Validated options of ``%%gpumem`` and ``%gpumem STATEMENT``.

    Attributes:
        variable: Name of the variable in which to store the report, if any.
    """

    plan: MeasurementPlan
    quiet: bool = False
    variable: str | None = None
    table: bool = False
    view: bool = False
    code: str = ""


class ReportPresenter:
    """Presenter that displays the reports of one shell.

    Attributes:
        send: Function that sends a report from an ipyparallel engine to the client, which displays it. None if this
            process is not a monitored engine.
    """

    def __init__(self, magics: Notebook, ooms: OomPanel, baselines: HolderBaselines) -> None:
        self._magics = magics
        self._ooms = ooms
        self._baselines = baselines
        self._modes = AccuracyNotesCollector(magics.session)
        self._default_plan: tuple[tuple[Any, ...], MeasurementPlan] | None = None
        self.send: Callable[[Report], None] | None = None

    def default_plan(self) -> MeasurementPlan:
        """Return the plan for cells without options. Most plans are cached to reduce the overhead of each cell."""
        magics = self._magics
        settings = magics.values
        outside = settings.outside == "library"
        key = (settings, magics.record.recorder is not None)
        # with memory by library, the plan has state for each cell, so it cannot be cached
        if self._default_plan is None or self._default_plan[0] != key or outside:
            extra = self.collectors(requested=False)
            limits = MemoryLimits(peak=settings.limit)
            plan = make_plan(magics.session, outside=outside, limits=limits, every_cell=True, extra=extra)
            self._default_plan = (key, plan)
        return self._default_plan[1]

    def collectors(self, *, requested: bool) -> tuple[Collector, ...]:
        """Return the collectors that the plans for cells and statements have in common.

        If ``requested`` is true, the report mentions the previous run of the cell even if the memory usage is the same.
        """
        record = self._magics.record
        recording = [] if record.recorder is None else [record]
        history = HistoryCollector(lambda: self._magics.min_change, always=requested)
        return (*recording, self._modes, history)

    @print_exceptions
    def present(
        self,
        report: Report,
        measurement: Measurement,
        options: CellOptions | None,
        *,
        muted: bool = False,
        live: LiveDisplay | None = None,
    ) -> None:
        """Show the report of a measurement.

        If `send` is set, the report is sent to the client, and shown here only if the user requested it. ``options`` is
        None for an automatic report. If ``muted`` is true, ``clear_output(wait=True)`` is pending, so that any output
        would clear the output of the cell. The report replaces the live display, if there is one.
        """
        magics = self._magics
        if self.send is not None:
            self.send(report)
        self._take_late_baseline(report, measurement)
        if options is not None and options.variable is not None:
            magics.shell.user_ns[options.variable] = report
        display_id = None if live is None else live.take(waits=muted)
        if options is not None:
            self._show_requested(report, options, display_id)
        elif muted or (report.devices and self._ooms.observer.count):
            self._ooms.report = report  # the panel for the out-of-memory error contains it
            self._replace_live(report, live, display_id)
        elif self.send is not None or not self._is_shown(report):
            self._replace_live(report, live, display_id)
        elif magics.style == "table":
            self._show_full(report, display_id)
        else:
            magics.show_line(report, display_id)

    def _take_late_baseline(self, report: Report, measurement: Measurement) -> None:
        runtime = self._magics.session
        lacks_baseline = runtime.baseline is None or runtime.baseline.device is None
        if (
            lacks_baseline
            and measurement.after is not None
            and any(device.started for device in report.devices.values())
        ):
            runtime.take_baseline(measurement.after)

    def _replace_live(self, report: Report, live: LiveDisplay | None, display_id: str | None) -> None:
        if live is None or display_id is None:
            return
        if self._magics.report == "off":
            live.empty(display_id)
        else:
            self._magics.show_line(report, display_id)

    def _is_shown(self, report: Report) -> bool:
        settings = self._magics.values
        if settings.report != "changed":
            return bool(settings.report == "always")
        if self._modes.changed:
            return True
        minimum: int = settings.min_change
        if not report.devices:
            host = report.host
            peak = host.peak if host.exact else None
            return self._magics.session.host_only and max(abs(host.held or 0), peak or 0) >= minimum
        # memory that a library allocates and frees within the cell appears only in the peak of that library
        library_peak = max([library.peak or 0 for library in report.libraries], default=0)
        return library_peak >= minimum or any(device.has_changed(minimum) for device in report.devices.values())

    def _show_requested(self, report: Report, options: CellOptions, display_id: str | None) -> None:
        magics, recording, profile = self._magics, report.recording, report.profile
        if options.quiet:
            if recording is not None and recording.error:  # --quiet does not suppress errors
                magics.print(f"ipygpumem: {recording.error}")
            if profile is not None and profile.errors:
                magics.print(f"ipygpumem: {'; '.join(profile.errors)}")
        elif options.table or magics.style == "table":
            self._show_full(report, display_id)
        else:
            bundle = requested_bundle(report, color=uses_color(magics.shell))
            magics.publish(bundle, output_metadata(report), display_id)
        if options.view and recording is not None and recording.path is not None:
            try:
                with ImmediateInterrupts():
                    magics.show_snapshots([recording.path])
            except Exception as error:  # the result of the cell does not change
                magics.print(f"ipygpumem: {printable(recording.path)} cannot be shown: {first_line(error)}")
        for collector in options.plan.collectors:
            if isinstance(collector, ProfileCollector):
                if not options.quiet and profile is not None and collector.timelines:
                    with ImmediateInterrupts():
                        magics.show_profile(collector.timelines, profile)
                collector.timelines = ()  # frees up to a million events

    def _show_full(self, report: Report, display_id: str | None) -> None:
        holders = None
        try:
            with ImmediateInterrupts():
                holders = new_holders(report, self._baselines.cell)
        except Exception as error:  # the measured values and limits can still be shown
            self._magics.print(f"ipygpumem: the holders of new memory are unknown: {first_line(error)}")
        self._magics.publish(full_bundle(report, holders), output_metadata(report), display_id)


def fail_cell(shell: Any, result: Any, error: BaseException) -> None:
    """Mark a finished cell as failed and show the error as one line. The cell keeps its value.

    If the cell has already failed, it keeps its error, and only the name of the new error's class is printed.
    """
    if result is not None and result.success:
        result.error_in_exec = error
        shell.showtraceback((type(one_line_traceback(error)), error, None))
    else:
        print(type(error).__name__, file=sys.stderr)  # noqa: T201 (as IPython does while it shows a traceback)


def one_line_traceback(error: _Error) -> _Error:
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]
    return error


class OomPanel:
    """Panel that explains the failed allocations in a cell.

    Attributes:
        observer: Observer of failed allocations.
        recording: Recording that is saved when an allocation fails.
        report: Report of the cell, if it is shown with the panel.
    """

    def __init__(self, magics: Notebook, recording: OomRecording) -> None:
        self._magics = magics
        self._monitor = magics.session.monitor
        self.observer = failed_allocations()
        self.recording = recording
        self.report: Report | None = None

    def install(self) -> None:
        self._monitor.call_when_started(self._listen)

    def _listen(self) -> None:
        self.observer.listen(self.recording.save)

    def end_cell(self, result: Any) -> None:
        count = self.observer.count
        failures = self.observer.take()
        source = getattr(getattr(result, "info", None), "raw_cell", None) or ""
        if not count:
            if result is not None and result.success:
                self.recording.earlier_runs.end(source, self._magics.shell.user_ns)
            return
        from ipygpumem.features.oom import collect as oom  # on first use, because few cells run out of memory
        from ipygpumem.features.oom.table import oom_tables

        snapshot, self.recording.saved = self.recording.saved, None
        # a cell that failed did not catch the error, even if it raised a different one
        with ImmediateInterrupts():  # searching the heap can take seconds
            caught = result is None or bool(result.success)
            cell = oom.FailedCell(source, self._magics.shell.user_ns, self.recording.earlier_runs)
            panel = oom.failure_report(failures, count, caught=caught, snapshot=snapshot, cell=cell)
        if panel is not None:
            tables = oom_tables(panel, self._magics.session.baseline)
            metadata = None if self.report is None else output_metadata(self.report)
            self._magics.publish(tables_bundle(tables), metadata)
        elif self.report is not None:
            self._magics.show_line(self.report)

    def remove(self) -> None:
        self._monitor.cancel_when_started(self._listen)
        self.recording.configure(None)
        self.observer.stop()
