"""What happens to the report of a cell: it gets its last notes, is kept, and is shown if it should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line
from ipygpumem.features.history.previous_run import last_run
from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.profile.collect import ProfileCollector
from ipygpumem.jupyter import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.report import Report
    from ipygpumem.features.holders.cell_baseline import Marks
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.jupyter.live_display import LiveCell
    from ipygpumem.jupyter.oom_panel import Ooms
    from ipygpumem.jupyter.settings import Settings
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Plan
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["CellOptions", "ReportPresenter"]

_UNKNOWN = "memory outside PyTorch is unknown from now on"
_DEVICE_ONLY = "memory outside PyTorch is known for the whole device only from now on"
_DEGRADED = {
    ("process", "device"): _DEVICE_ONLY,
    ("process", "torch-only"): _UNKNOWN,
    ("device", "torch-only"): _UNKNOWN,
}
"""What to say when the mode of a device's readings gets worse."""


@dataclass(slots=True)
class CellOptions:
    """The options of ``%%gpumem`` and ``%gpumem STATEMENT``, validated.

    Attributes:
        plan: What to collect.
        quiet: Show nothing.
        variable: Name of the variable that gets the report.
        table: Show the full breakdown.
        view: Show the snapshot.
        code: First line of the code.
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

    def __init__(self, shell: Any, runtime: Runtime, settings: Settings, ooms: Ooms, marks: Marks) -> None:
        self._shell = shell
        self._runtime = runtime
        self._settings = settings
        self._ooms = ooms
        self._marks = marks
        self._modes: dict[str, str] = {}
        self._reported_problems: set[tuple[str, str]] = set()
        self.send: Callable[[Report], None] | None = None

    def present(
        self,
        report: Report,
        measurement: Measurement,
        options: CellOptions | None,
        *,
        notes: tuple[str, ...] = (),
        muted: bool = False,
        live: LiveCell | None = None,
    ) -> None:
        """Add notes to a report, keep it, and show it.

        Args:
            report: The report.
            measurement: Its measurement.
            options: The options of ``%%gpumem``; None for the automatic report.
            notes: Further notes.
            muted: The cell ends with ``clear_output(wait=True)``, and a display would clear its output.
            live: The display below the running cell, which the report replaces.
        """
        reports = session_reports()
        previous = reports.earlier(report)
        if previous is not None:
            comparison = last_run(report, previous, self._settings.min_change, always=options is not None)
            notes = (*notes, *([] if comparison is None else [comparison]))
        degraded = self._degraded(report) if report.devices else []
        if degraded or notes:
            report = replace(report, notes=(*report.notes, *degraded, *notes))
        reports.append(report)
        if self.send is not None:
            self.send(report)
        if report.devices:
            self._take_late_baseline(report, measurement)
        if options is not None and options.variable is not None:
            self._shell.user_ns[options.variable] = report
        display_id = None if live is None else live.take(waits=muted)
        if options is not None:
            self._show_requested(report, options, display_id)
        elif muted or self._ooms.pending:  # the panel for the out-of-memory error contains the report
            self._ooms.report = report
            self._replace_live(report, live, display_id)
        elif self.send is None and self._is_shown(report, degraded=bool(degraded)):
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
            return self._marks.new(report)
        except Exception as error:  # the figures and limits can still be shown
            print(f"ipygpumem: the holders of new memory are unknown ({first_line(error)})")  # noqa: T201 (next to the table)
            return None

    def _degraded(self, report: Report) -> list[str]:
        """What can no longer be read since the previous report, because NVML failed or its entry is gone. Once each."""
        baseline = self._runtime.baseline
        at_baseline = {} if baseline is None else baseline.reading.devices
        sentences = []
        for name, device in report.devices.items():
            before = self._modes.get(name) or at_baseline.get(name, device.before).mode
            now = self._modes[name] = device.after.mode
            problem = _DEGRADED.get((before, now))
            if problem is not None and (name, device.after.why) not in self._reported_problems:
                self._reported_problems.add((name, device.after.why))
                sentences.append(f"{name}: {problem} ({device.after.why})")
        return sentences
