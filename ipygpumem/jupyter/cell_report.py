"""Whether and how the report of a cell is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line
from ipygpumem.features.history.reports import SessionHistory
from ipygpumem.features.holders.collect import new_holders
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.plan import make_plan
from ipygpumem.features.profile.collect import ProfileCollector
from ipygpumem.features.report.notes import ModeChanges
from ipygpumem.jupyter import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.errors import GPUMemLimitExceeded
    from ipygpumem.core.report import Report
    from ipygpumem.features.holders.baseline import CellBaselines
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.recordings.across_cells import AcrossCells
    from ipygpumem.jupyter.live_display import LiveCell
    from ipygpumem.jupyter.oom_panel import OomPanel
    from ipygpumem.jupyter.settings import Settings
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Collector, Plan
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["CellOptions", "ReportPresenter", "one_line_traceback"]


@dataclass(slots=True)
class CellOptions:
    """The options of ``%%gpumem`` and ``%gpumem STATEMENT``, validated.

    Attributes:
        plan: What to collect.
        quiet: Show nothing.
        variable: Name of the variable that gets the report.
        table: Show the full breakdown.
        view: Show the snapshot.
        code: The code that will run.
    """

    plan: Plan
    quiet: bool = False
    variable: str | None = None
    table: bool = False
    view: bool = False
    code: str = ""


class ReportPresenter:
    """Keeps and shows the reports of one shell.

    Attributes:
        send: Sends reports elsewhere, where they are shown: an engine sends them to the notebook it works for.
    """

    def __init__(
        self,
        shell: Any,
        runtime: Runtime,
        settings: Settings,
        *,
        record: AcrossCells,
        ooms: OomPanel,
        baselines: CellBaselines,
    ) -> None:
        self._record = record
        self._standing_plan: tuple[tuple[Any, ...], Plan] | None = None
        self._shell = shell
        self._runtime = runtime
        self._settings = settings
        self._ooms = ooms
        self._baselines = baselines
        self._modes = ModeChanges(runtime)
        self.send: Callable[[Report], None] | None = None

    def standing_plan(self) -> Plan:
        """What the settings ask for in every cell."""
        settings = self._settings
        key = (settings.limit, settings.outside, self._record.recorder is not None)
        # recording memory outside PyTorch has a state of its own in each cell
        if self._standing_plan is None or self._standing_plan[0] != key or settings.outside == "library":
            plan = make_plan(
                self._runtime,
                outside=settings.outside == "library",
                limits=Limits(peak=settings.limit),
                every_cell=True,
                extra=self.collectors(requested=False),
            )
            self._standing_plan = (key, plan)
        return self._standing_plan[1]

    def collectors(self, *, requested: bool) -> tuple[Collector, ...]:
        """What every plan of this shell collects; ``requested``: the report was asked for with ``%%gpumem``."""
        recording = [] if self._record.recorder is None else [self._record]
        history = SessionHistory(lambda: self._settings.min_change, always=requested)
        return (*recording, self._modes, history)

    def present(
        self,
        report: Report,
        measurement: Measurement,
        options: CellOptions | None,
        *,
        muted: bool = False,
        live: LiveCell | None = None,
    ) -> None:
        """Send a report on, and show it.

        Args:
            report: The report.
            measurement: Its measurement.
            options: The options of ``%%gpumem``; None for the automatic report.
            muted: The cell ends with ``clear_output(wait=True)``, and a display would clear its output.
            live: The display below the running cell, which the report replaces.
        """
        if self.send is not None:
            self.send(report)
        if report.devices:
            self._take_late_baseline(report, measurement)
        if options is not None and options.variable is not None:
            self._shell.user_ns[options.variable] = report
        display_id = None if live is None else live.take(waits=muted)
        if options is not None:
            self._show_requested(report, options, display_id)
        elif muted or (
            report.devices and self._ooms.observer.count
        ):  # the panel for the out-of-memory error contains the report
            self._ooms.report = report
            self._replace_live(report, live, display_id)
        elif self.send is None and self._is_shown(report, degraded=self._modes.changed):
            if self._settings.style == "table":
                display.show_full(self._shell, report, self._new_holders(report), display_id)
            else:
                display.show_line(self._shell, report, display_id)
        else:
            self._replace_live(report, live, display_id)

    def _take_late_baseline(self, report: Report, measurement: Measurement) -> None:
        baseline = self._runtime.baseline
        missing = baseline is None or baseline.device is None
        if missing and measurement.after is not None and any(device.started for device in report.devices.values()):
            self._runtime.take_baseline(measurement.after)

    def _replace_live(self, report: Report, live: LiveCell | None, display_id: str | None) -> None:
        """Replace the live display although the report is not shown: by its line, or by nothing if reports are off."""
        if live is None or display_id is None:
            return
        if self._settings.report == "off":
            live.empty(display_id)
        else:
            display.show_line(self._shell, report, display_id)

    def _is_shown(self, report: Report, *, degraded: bool) -> bool:
        setting = self._settings.report
        if setting != "changed":
            return bool(setting == "always")
        if degraded:
            return True
        minimum: int = self._settings.min_change
        if not report.devices:
            host = report.host
            peak = host.peak if host.exact else None
            return self._runtime.host_only and max(abs(host.held or 0), peak or 0) >= minimum
        # memory that a library allocates and frees within the cell appears only in the peak of that library
        library_peak = max((library.peak or 0 for library in report.libraries), default=0)
        return library_peak >= minimum or any(device.moved(minimum) for device in report.devices.values())

    def _show_requested(self, report: Report, options: CellOptions, display_id: str | None) -> None:
        shell, style = self._shell, self._settings.style
        recording = report.recording
        if options.quiet:
            if recording is not None and recording.error:
                print(f"ipygpumem: {recording.error}")  # noqa: T201 (lost work is reported even with --quiet)
        elif options.table or style == "table":
            display.show_full(shell, report, self._new_holders(report), display_id)
        else:
            display.show_requested(shell, report, display_id)
        if options.view and recording is not None and recording.path is not None:
            display.show_recording(shell, recording.path)
        for collector in options.plan.collectors:
            if not isinstance(collector, ProfileCollector) or report.profile is None:
                continue
            if not options.quiet and collector.profile is not None:
                display.show_profile(shell, collector.profile, collector.name, report.profile.peaks)
            elif options.quiet and report.profile.errors:
                print(f"ipygpumem: {'; '.join(report.profile.errors)}")  # noqa: T201 (as above)
            collector.profile = None  # frees up to a million events

    def _new_holders(self, report: Report) -> Holders | None:
        try:
            return new_holders(report, self._baselines.cell)
        except Exception as error:  # the figures and limits can still be shown
            print(f"ipygpumem: the holders of new memory are unknown ({first_line(error)})")  # noqa: T201 (next to the table)
            return None


def one_line_traceback(error: GPUMemLimitExceeded) -> GPUMemLimitExceeded:
    """Let IPython show the error as one line: it asks an exception for its own traceback."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]
    return error
