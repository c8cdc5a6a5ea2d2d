"""From a cell's start to its report: pairing of IPython's events, and what is shown afterwards.

IPython's events come in odd companies: an empty cell has an end and no beginning (ipython#14597), so has the cell that
loads the extension; magics that run code nest them; a kernel may end a cell with None. So each beginning is remembered
with a weak reference to its ExecutionInfo, and an end counts only for the beginning that it belongs to.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.notebook import show
from ipygpumem.notebook.boundary import guarded
from ipygpumem.recording import Measurement, MeasurementOptions, Recorder, fork
from ipygpumem.session.block import notebook_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ipygpumem.ledger.report import Report
    from ipygpumem.notebook.record import AcrossCells
    from ipygpumem.notebook.settings import Settings
    from ipygpumem.session import Session

__all__ = ["Asked", "Cells"]


@dataclass(slots=True)
class Asked:
    """What ``%%gpumem`` asked of a cell: options that were checked before it runs."""

    devices: tuple[str, ...] | None = None
    recorder: Recorder | None = None
    path: Path | None = None
    quiet: bool = False
    variable: str | None = None
    brief: bool = False


@dataclass(slots=True)
class _Frame:
    """One run_cell that has begun. Keeps nothing of the user's alive."""

    info: weakref.ref[Any]
    measurement: Measurement | None = None
    asked: Asked | None = None
    shown: bool = False
    stored: bool = field(default=False)


class Cells:
    """The cells of one shell while the extension is loaded."""

    def __init__(self, shell: Any, session: Session, settings: Settings, record: AcrossCells) -> None:
        self._shell = shell
        self._session = session
        self._settings = settings
        self._record = record
        self._frames: list[_Frame] = []

    @guarded
    def pre_run_cell(self, info: Any) -> None:
        """A cell begins. The outermost one that the person wrote is measured."""
        if fork.inert():
            return
        self._drop_dead()
        frame = _Frame(weakref.ref(info), stored=bool(info.store_history))
        self._frames.append(frame)
        # front ends run code of their own, with events but without a place in the history
        wanted = self._settings.report != "off" or self._record.running
        if len(self._frames) == 1 and frame.stored and wanted:
            frame.measurement = self._open(None)

    def begin(self, asked: Asked) -> None:
        """``%%gpumem`` on the first line of a cell: what runs from here on is measured with these options.

        Raises:
            UsageError: The recording cannot be started. The cell does not run.
        """
        if not self._frames:  # a silent run has neither events nor a place to show anything
            return
        outer = self._frames[0]
        frame = outer if outer.asked is None else self._frames[-1]
        if frame.measurement is not None:
            frame.measurement.abandon()
            frame.measurement = None
        frame.asked = asked
        frame.measurement = self._open(asked)

    def _open(self, asked: Asked | None) -> Measurement:
        settings = self._settings
        options = MeasurementOptions(
            reset_peaks=settings.peaks == "exact",
            reset_host_peak=settings.host_peak == "reset",
            synchronize=settings.synchronize,
        )
        measurement = Measurement(self._session.watch, options)
        if asked is not None:
            measurement.only = asked.devices
            if asked.recorder is not None and asked.path is not None:
                measurement.record(asked.recorder, asked.path)
        try:
            measurement.begin()
        except Exception as error:
            measurement.abandon()
            if asked is None:
                raise
            raise UsageError(f"%%gpumem: {error}") from error
        return measurement

    @guarded
    def post_run_cell(self, result: Any) -> None:
        """A cell has ended, well or not."""
        if fork.inert():
            return
        frame = self._pop(result)
        if frame is None or frame.measurement is None:
            return
        number = getattr(result, "execution_count", None)
        info = getattr(result, "info", None)
        raw = getattr(info, "raw_cell", None)
        filename = None
        sources: dict[str, str] = {}
        if frame.measurement.recording or self._record.running:
            filename = self._filename(raw, number)
            sources = notebook_sources()
            if filename is not None and raw is not None:
                sources[filename] = raw  # as it was written: the cell's own first line, not the call it became
        success = None if result is None else bool(result.success)
        self._record.add(frame.measurement.span(cell=number, filename=filename, success=success), filename, raw)
        report = frame.measurement.end(
            success=success,
            cell=number,
            cell_id=getattr(info, "cell_id", None),
            filename=filename,
            sources=sources,
            notes=self._record.notes(),
        )
        if report is not None:
            self.settle(report, frame.measurement, frame.asked, shown=frame.shown)

    def settle(self, report: Report, measurement: Measurement, asked: Asked | None, *, shown: bool = False) -> None:
        """Keep a report, take a late baseline, and show what is to be shown."""
        session, settings = self._session, self._settings
        session.reports.append(report)
        late = session.baseline is None or session.baseline.device is None
        if late and measurement.after is not None and any(one.started for one in report.devices.values()):
            session.take_baseline(measurement.after)
        if asked is not None and asked.variable is not None:
            self._shell.user_ns[asked.variable] = report
        if asked is not None:
            if not asked.quiet:
                self._show(report, table=settings.style == "table" or (settings.style == "auto" and not asked.brief))
            elif report.recording is not None and report.recording.error:
                print(f"ipygpumem: {report.recording.error}")  # noqa: T201 (quiet is not mute when work is lost)
        elif not shown and (settings.report == "always" or (settings.report == "changed" and self._moved(report))):
            self._show(report, table=settings.style == "table")

    def _show(self, report: Report, *, table: bool) -> None:
        if table:
            show.show_table(report)
        else:
            show.show_line(self._shell, report)

    def _moved(self, report: Report) -> bool:
        least: int = self._settings.min_change
        if not report.devices:
            host = report.host
            peak = host.peak if host.exact else None
            return max(abs(host.held or 0), peak or 0) >= least
        return any(device.moved(least) for device in report.devices.values())

    def measure(self, asked: Asked, run: Callable[[], Any]) -> tuple[Any, Report | None]:
        """Run something measured inside a cell, shown at once; its error is the caller's."""
        measurement = self._open(asked)
        success = False
        report = None
        try:
            value = run()
            success = True
        finally:
            report = measurement.end(success=success, sources=notebook_sources())
            if report is not None:
                self.settle(report, measurement, asked)
        return value, report

    def hide_own_report(self) -> None:
        """The cell is one measured statement, and its report was shown: a second one would say the same."""
        if self._frames:
            self._frames[0].shown = True

    def close(self) -> None:
        """Give up whatever is open: the extension is being unloaded in the middle of a cell."""
        for frame in self._frames:
            if frame.measurement is not None:
                frame.measurement.abandon()
        self._frames.clear()

    def _drop_dead(self) -> None:
        while self._frames and self._frames[-1].info() is None:
            frame = self._frames.pop()
            if frame.measurement is not None:
                frame.measurement.abandon()

    def _pop(self, result: Any) -> _Frame | None:
        info = getattr(result, "info", None)
        if result is None:  # ipykernel's way to end a cell whose run itself failed
            return self._frames.pop() if self._frames else None
        for i in range(len(self._frames) - 1, -1, -1):
            if self._frames[i].info() is info:
                frame = self._frames[i]
                for lost in self._frames[i + 1 :]:
                    if lost.measurement is not None:
                        lost.measurement.abandon()
                del self._frames[i:]
                return frame
        return None

    def _filename(self, raw: str | None, number: int | None) -> str | None:
        """The file name in the frames of the cell that has just run."""
        import linecache

        if raw is None:
            return None
        # ipykernel names a cell by its text; the terminal by its number and a hash of the transformed text
        name = self._shell.compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        return next((name for name in linecache.cache if name.startswith(prefix)), None)
