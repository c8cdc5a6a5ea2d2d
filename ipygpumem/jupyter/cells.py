"""From a cell's start to its report: pairing of IPython's events, and what is shown afterwards.

IPython's events come in odd companies: an empty cell has an end and no beginning (ipython#14597), so has the cell that
loads the extension; magics that run code nest them; a cancelled cell ends with another ExecutionInfo than it began
with, or with None; a kernel's subshell runs cells beside ours in a thread of its own. So each thread has a stack of
beginnings, each with a weak reference to its ExecutionInfo, and an end counts only for the beginning it belongs to.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.core.code_label import first_code
from ipygpumem.core.errors import first_line
from ipygpumem.display.columns import recording_notes
from ipygpumem.features.history.previous_run import last_run
from ipygpumem.features.holders.cell_baseline import Marks
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.lines.source import SourceRegion
from ipygpumem.features.oom.history import Ring
from ipygpumem.features.oom.panel import Ooms
from ipygpumem.features.processes.collect import with_other_processes
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.cell_numbers import CellNumbers, calling_cell
from ipygpumem.jupyter.clear_output import Clearing
from ipygpumem.jupyter.error_boundary import guarded
from ipygpumem.jupyter.live_display import LiveCell, LiveDisplays
from ipygpumem.jupyter.traceback_hook import Failing
from ipygpumem.measure_block import notebook_sources
from ipygpumem.measurement import fork
from ipygpumem.measurement.measurement import Measurement, MeasurementOptions
from ipygpumem.measurement.plan import Study

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.errors import GPUMemLimitExceeded
    from ipygpumem.core.report import Report
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.features.recordings.across_cells import AcrossCells
    from ipygpumem.jupyter.settings import Settings
    from ipygpumem.measurement.recording_keys import CellFacts
    from ipygpumem.measurement.session import Session

__all__ = ["Asked", "Cells"]

_UNKNOWN = "memory outside PyTorch is from here on unknown"
_WHOLE = "memory outside PyTorch is from here on known for the whole card only"
_WORSE = {"process": {"device": _WHOLE, "torch-only": _UNKNOWN}, "device": {"torch-only": _UNKNOWN}, "torch-only": {}}
"""From one mode of a reading to a lesser one, in words."""


@dataclass(slots=True)
class Asked:
    """What ``%%gpumem`` asked of a cell: options that were checked before it runs."""

    devices: tuple[str, ...] | None = None
    study: Study | None = None
    quiet: bool = False
    variable: str | None = None
    brief: bool = False
    view: bool = False
    code: str = ""


@dataclass(slots=True)
class _Frame:
    """One run_cell that has begun. Keeps nothing of the user's alive."""

    info: weakref.ref[Any]
    stored: bool
    cell_id: str | None
    number: int | None = None
    measurement: Measurement | None = None
    asked: Asked | None = None
    study: Study | None = None
    live: LiveCell | None = None
    failing: Failing | None = None
    began: float = field(default_factory=time.time)
    reported: bool = False
    muted: bool = False
    code: tuple[str | None, str] | None = None
    """File name and text of what runs, where that was seen: under another magic not the whole cell."""

    @property
    def raw(self) -> str:
        """The cell's text; empty once IPython has forgotten it."""
        return getattr(self.info(), "raw_cell", None) or ""

    def unwatch(self) -> None:
        """The cell's code has ended: what the shell shows now is no more of it."""
        if self.failing is not None:
            self.failing.remove()
            self.failing = None

    def abandon(self) -> None:
        """Give up the measurement, if there is one."""
        self.unwatch()
        if self.measurement is not None:
            self.measurement.abandon()
            self.measurement = None


class Cells:
    """The cells of one shell while the extension is loaded."""

    def __init__(self, shell: Any, session: Session, settings: Settings, record: AcrossCells) -> None:
        self._shell = shell
        self.clearing = Clearing(shell)
        self.live = LiveDisplays(shell, session, self.clearing)
        self.numbers = CellNumbers(shell)
        self._session = session
        self._settings = settings
        self._record = record
        self.marks = Marks(session)
        self.ooms = Ooms(shell, session, Ring(session, self._running, self.numbers.known))
        self.courier: Callable[[Report], None] | None = None
        """Takes the reports elsewhere, where they are shown: an engine's go to the notebook that it works for."""
        self.statements: set[str] = set()
        """File names of statements measured in cells: their number is the cell's, their text is not."""
        self._stacks: dict[int, list[_Frame]] = {}
        self._modes: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()

    @property
    def _frames(self) -> list[_Frame]:
        """The cells that are open in this thread, the outermost first."""
        return self._stacks.setdefault(threading.get_ident(), [])

    @property
    def text(self) -> str:
        """The text of the cell that is running; empty where none is."""
        frames = self._frames
        return frames[-1].raw if frames else ""

    @guarded
    def pre_run_cell(self, info: Any) -> None:
        """A cell begins. The outermost one that the person wrote is measured."""
        if fork.inert():
            return
        frames = self._frames
        while frames and frames[-1].info() is None:
            self._drop(frames.pop())
        frame = _Frame(weakref.ref(info), bool(info.store_history), getattr(info, "cell_id", None))
        frames.append(frame)
        settings = self._settings
        wanted = settings.report != "off" or settings.limit is not None or self._record.running
        # front ends run code of their own, with events but without a place in the history
        if len(frames) == 1:
            self.marks.begin(frame.raw)
            self.ooms.begin()
        if len(frames) == 1 and frame.stored and wanted:
            frame.study = self._standing()
            frame.measurement = self._open(None, frame.study)
            self._go_live(frame)

    def begin(self, asked: Asked) -> None:
        """``%%gpumem`` on the first line of a cell: what runs from here on is measured with these options.

        Raises:
            UsageError: The recording cannot be started. The cell does not run.
        """
        frames = self._frames
        if not frames:  # a silent run has neither events nor a place to show anything
            return
        at = len(frames) - 1
        # a cell magic above ours (%%capture) runs the rest of the cell as a cell: the report is the whole cell's
        while at > 0 and frames[at - 1].raw.rstrip().endswith(frames[at].raw.rstrip()):
            at -= 1
        frame = frames[at]
        if frame.asked is not None:
            raise UsageError("%%gpumem stands over this cell already: one line with all options")
        frame.abandon()
        if asked.study is not None and asked.study.recording:
            self.ooms.ring.pause()  # PyTorch has one recording: the ring comes back with the next cell
        if not asked.quiet:
            self.marks.take_blocks()
        frame.code = (calling_cell(), frames[-1].raw)
        frame.asked, frame.study = asked, asked.study
        frame.measurement = self._open(asked, asked.study)
        if asked.study is not None and asked.study.profile is not None:
            frame.failing = Failing(self._shell, asked.study.profile.stop)
        if asked.quiet:
            self._abandon_live(frame)
        elif frame.live is None:
            self._go_live(frame)

    def _go_live(self, frame: _Frame) -> None:
        """Show the books under the cell while it runs, if it runs for long and somebody watches."""
        settings = self._settings
        shown = settings.report != "off" or (frame.asked is not None and not frame.asked.quiet)
        if settings.live == "auto" and frame.stored and shown:

            def number() -> int | None:
                self._number(frame)
                return frame.number

            frame.live = self.live.begin(number)

    def _drop(self, frame: _Frame) -> None:
        frame.abandon()
        self._abandon_live(frame)

    def _abandon_live(self, frame: _Frame) -> None:
        if frame.live is not None:
            self.live.end(frame.live)
            frame.live.retract()
            frame.live = None

    def _open(self, asked: Asked | None, study: Study | None) -> Measurement:
        settings = self._settings
        options = MeasurementOptions(
            reset_peaks=settings.peaks == "exact",
            reset_host_peak=settings.host_peak == "reset",
            synchronize=settings.synchronize,
        )
        measurement = Measurement(self._session.monitor, options)
        if asked is not None:
            measurement.only = asked.devices
        if study is not None:
            study.attach(measurement)
        try:
            measurement.begin()
        except Exception as error:
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
            if frame is not None:
                self._drop(frame)
            if not self._frames:
                self.ooms.drop()
            return
        frame.unwatch()
        self._number(frame, result)
        frame.muted = self.clearing.waits(result)
        try:
            error = self._end(frame, frame.measurement, success=result is not None and bool(result.success))
        except BaseException:
            frame.abandon()
            raise
        finally:
            self._abandon_live(frame)
        if not self._frames:
            self.ooms.tell(result)
        if error is not None and result is not None and result.success:
            self._fail(result, error)

    def _fail(self, result: Any, error: GPUMemLimitExceeded) -> None:
        """Let a cell that ran well end with an error: its value stays, and whoever runs the notebook stops here."""
        # what is raised in a callback is printed and forgotten
        result.error_in_exec = error
        self._shell.showtraceback((type(_brief(error)), error, None))

    def _end(self, frame: _Frame, measurement: Measurement, *, success: bool) -> GPUMemLimitExceeded | None:
        raw, filename = frame.raw, None
        self.live.end(frame.live)
        self.numbers.note(raw, frame.number)
        sources: dict[str, str] = {}
        if measurement.recording or self._record.running:
            filename, text = frame.code or (None, raw)
            filename = filename or self._filename(raw, frame.number)
            sources = notebook_sources()
            if filename is not None:
                sources[filename] = text  # as it was written: the cell's own first line, not the call it became
        self._record.add(
            measurement.span(cell=frame.number, filename=filename, success=success),
            filename,
            sources.get(filename or "", raw),
            measurement.window,
        )
        if frame.reported:
            frame.abandon()
            return None
        report = measurement.end(
            success=success,
            cell=frame.number,
            cell_id=frame.cell_id,
            code=first_code(raw),
            filename=filename,
            sources=lambda: sources,
            numbers=self.numbers.known,
            notes=self._record.notes(),
        )
        if report is None:
            return None
        study = frame.study
        if study is not None:
            names = self.numbers.known()
            if filename is not None and frame.number is not None:
                names[filename] = frame.number  # of two runs of one text this one
            block = SourceRegion(filename, 1, len(sources[filename].splitlines())) if filename else None
            report = study.finish(report, measurement, cells=sources, numbers=names, block=block)
        self.settle(report, measurement, frame.asked, muted=frame.muted, live=frame.live)
        return None if study is None else study.error

    def _standing(self) -> Study | None:
        """What the settings ask of every cell; None for its figures alone."""
        limit, outside = self._settings.limit, self._settings.outside == "library"
        if limit is None and not outside:
            return None
        return Study(self._session.monitor, limits=Limits(peak=limit), record=False, outside=outside)

    def settle(
        self,
        report: Report,
        measurement: Measurement,
        asked: Asked | None,
        *,
        muted: bool = False,
        live: LiveCell | None = None,
    ) -> None:
        """Keep a report, take a late baseline, and show what is to be shown; ``live`` is the display it replaces."""
        session, settings = self._session, self._settings
        report = with_other_processes(report, unchanged=asked is not None)
        losses = self._losses(report)
        again = self._again(report, asked)
        if losses or again:
            report = replace(report, notes=(*report.notes, *losses, *again))
        self._keep(report)
        late = session.baseline is None or session.baseline.device is None
        if late and measurement.after is not None and any(one.started for one in report.devices.values()):
            session.take_baseline(measurement.after)
        if asked is not None and asked.variable is not None:
            self._shell.user_ns[asked.variable] = report
        place = None if live is None else live.take(waits=muted)
        if asked is not None:
            self._show_asked(report, asked, place)
        elif muted or self.ooms.pending:  # the panel of a failure has it all
            self.ooms.report = report
            self._last_update(report, live, place)
        elif self._wanted(report, losses):
            self._show(report, table=settings.style == "table", place=place)
        else:
            self._last_update(report, live, place)

    def _last_update(self, report: Report, live: LiveCell | None, place: str | None) -> None:
        """What a display becomes whose report nobody wants: its line all the same, or nothing once reports are off."""
        if live is None or place is None:
            return
        if self._settings.report == "off":
            live.empty(place)
        else:
            show.show_line(self._shell, report, place)

    def _keep(self, report: Report) -> None:
        self._session.reports.append(report)
        if self.courier is not None:
            self.courier(report)

    def _wanted(self, report: Report, losses: list[str]) -> bool:
        """Whether a report that nobody asked for is shown here."""
        when = self._settings.report
        moved = when == "always" or (when == "changed" and (bool(losses) or self._moved(report)))
        return moved and self.courier is None

    def _show_asked(self, report: Report, asked: Asked, place: str | None) -> None:
        style = self._settings.style
        if not asked.quiet:
            self._show(report, table=style == "table" or (style == "auto" and not asked.brief), place=place)
        elif report.recording is not None and report.recording.error:
            print(f"ipygpumem: {report.recording.error}")  # noqa: T201 (quiet is not mute when work is lost)
        if asked.view and report.recording is not None and report.recording.path is not None:
            show.show_recording(self._shell, report.recording.path)
        question = None if asked.study is None else asked.study.profile
        if question is not None and report.profile is not None:
            if not asked.quiet and question.profile is not None:
                show.show_profile(self._shell, question.profile, question.name, report.profile.peaks)
            elif asked.quiet and report.profile.errors:
                print(f"ipygpumem: {'; '.join(report.profile.errors)}")  # noqa: T201 (as above)
            question.profile = None  # a million changes need not outlive their picture

    def _show(self, report: Report, *, table: bool, place: str | None = None) -> None:
        if table:
            show.show_table(self._shell, report, self._new(report), place)
        else:
            show.show_line(self._shell, report, place)

    def _new(self, report: Report) -> Holders | None:
        """Who holds what the cell added. If that cannot be told, the figures and limits still can."""
        try:
            return self.marks.new(report)
        except Exception as error:
            print(f"ipygpumem: who holds what is new is not known ({first_line(error)})")  # noqa: T201 (beside the table)
            return None

    def _moved(self, report: Report) -> bool:
        least: int = self._settings.min_change
        if not report.devices:
            host = report.host
            peak = host.peak if host.exact else None
            return self._session.host_only and max(abs(host.held or 0), peak or 0) >= least
        # what a library takes and gives back is in no other figure than its own peak
        highest = max((one.peak or 0 for one in report.libraries), default=0)
        return highest >= least or any(device.moved(least) for device in report.devices.values())

    def _again(self, report: Report, asked: Asked | None) -> list[str]:
        """What the cell did when it ran before, where that was something else."""
        earlier = self._session.reports.earlier(report)
        if earlier is None:
            return []
        sentence = last_run(report, earlier, self._settings.min_change, always=asked is not None)
        return [] if sentence is None else [sentence]

    def _losses(self, report: Report) -> list[str]:
        """What can no longer be told of a card since the last report: NVML died, or our entry is gone. Said once."""
        baseline = self._session.baseline
        known = {} if baseline is None else baseline.reading.devices
        sentences = []
        for name, device in report.devices.items():
            earlier = self._modes.get(name) or known.get(name, device.before).mode
            now = self._modes[name] = device.after.mode
            if now in _WORSE[earlier] and (name, device.after.why) not in self._told:
                self._told.add((name, device.after.why))
                sentences.append(f"{name}: {_WORSE[earlier][now]} ({device.after.why})")
        return sentences

    def claim(self) -> _Frame | None:
        """The cell that is open; if it is one line of ours and nothing else, it needs no report of its own."""
        outer = self._frames[0] if self._frames else None
        if outer is not None and outer.asked is None and _is_one_statement(outer.raw):
            outer.reported = True
        return outer

    def measure(self, asked: Asked, run: Callable[[], Any]) -> tuple[Any, Report | None]:
        """Run something measured inside a cell, shown at once; its error is the caller's."""
        __tracebackhide__ = True
        outer = self.claim()
        if outer is not None:
            self._number(outer)
        measurement = self._open(asked, asked.study)
        reports: list[Report] = []
        success = False
        try:
            value = run()
            success = True
        finally:
            self._end_statement(measurement, asked, outer, reports, success)
        if asked.study is not None and asked.study.error is not None:
            raise _brief(asked.study.error)
        return value, reports[0] if reports else None

    @guarded
    def _end_statement(
        self, measurement: Measurement, asked: Asked, outer: _Frame | None, reports: list[Report], success: bool
    ) -> None:
        try:
            report = measurement.end(
                success=success,
                cell=None if outer is None else outer.number,
                cell_id=None if outer is None else outer.cell_id,
                code=asked.code,
                sources=notebook_sources,
                numbers=self.numbers.known,
                notes=self._record.notes(),
            )
        except BaseException:
            measurement.abandon()
            raise
        if report is not None:
            if asked.study is not None:
                names, cells = self.numbers.known(), notebook_sources()
                if outer is not None and outer.reported:  # the cell is this statement: it has a file of its own
                    cells.pop(calling_cell() or "", None)
                report = asked.study.finish(report, measurement, cells=cells, numbers=names)
            reports.append(report)
            live = outer.live if outer is not None and outer.reported else None
            self.live.end(live)
            self.settle(report, measurement, asked, live=live)

    def close(self) -> None:
        """End whatever is open, and save what was recorded: the extension is unloaded in the middle of a cell."""
        for frames in self._stacks.values():
            for frame in frames:
                measurement = frame.measurement
                if measurement is not None and measurement.recording:
                    report = measurement.end(
                        success=None, cell=frame.number, sources=notebook_sources, numbers=self.numbers.known
                    )
                    if report is not None and report.recording is not None:
                        print(f"ipygpumem: {recording_notes(report.recording)}")  # noqa: T201 (nothing is lost unsaid)
                self._drop(frame)
                question = None if frame.study is None else frame.study.profile
                if measurement is not None and question is not None:
                    print(f"ipygpumem: {'; '.join(question.answer().sentences())}")  # noqa: T201 (as above)
        self._stacks.clear()
        self.live.close()

    def open_cell(self) -> tuple[int | None, float] | None:
        """In number and beginning (seconds since 1970) of the cell that runs in any thread; None where none does."""
        frame = next((frames[0] for frames in tuple(self._stacks.values()) if frames), None)
        if frame is None:
            return None
        self._number(frame)
        return frame.number, frame.began

    def _running(self) -> CellFacts | None:
        """The cell that is open, for a history that is saved in the middle of it."""
        frame = self._frames[0] if self._frames else next((some[0] for some in self._stacks.values() if some), None)
        if frame is None or frame.measurement is None:
            return None
        self._number(frame)
        return frame.measurement.span(
            cell=frame.number, filename=self._filename(frame.raw, frame.number), success=False
        )

    def _pop(self, result: Any) -> _Frame | None:
        frames = self._frames
        info = getattr(result, "info", None)
        if result is None:  # ipykernel's way to end a cell whose run itself failed, as in a cancelled async cell
            at: int | None = 0 if frames else None
        else:
            at = next((i for i in reversed(range(len(frames))) if frames[i].info() is info), None)
        if at is None:  # IPython makes another ExecutionInfo where its event loop itself was interrupted
            raw = getattr(info, "raw_cell", None)
            at = next((i for i in reversed(range(len(frames))) if raw and frames[i].raw == raw), None)
        if at is None:
            return None
        for lost in frames[at + 1 :]:
            self._drop(lost)
        frame = frames[at]
        del frames[at:]
        return frame

    def _number(self, frame: _Frame, result: Any = None) -> None:
        """Find the In number of a cell: its result has it, and while it runs the display hook holds that result."""
        info = frame.info()
        results: tuple[Any, ...] = (result, getattr(self._shell.displayhook, "exec_result", None))
        for one in results:
            if frame.stored and frame.number is None and info is not None and getattr(one, "info", None) is info:
                frame.number = one.execution_count

    def _filename(self, raw: str, number: int | None) -> str | None:
        """The file name in the frames of the cell that has just run."""
        import linecache

        # ipykernel names a cell by its text; the terminal by its number and a hash of the transformed text
        name = self._shell.compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        names = (name for name in reversed(linecache.cache) if name.startswith(prefix))
        return next((name for name in names if name not in self.statements), None)


def _brief(error: GPUMemLimitExceeded) -> GPUMemLimitExceeded:
    """The error with one line for a traceback: IPython asks an exception for its own."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]
    return error


def _is_one_statement(raw: str) -> bool:
    """Whether a cell is ``%gpumem STATEMENT`` and nothing else."""
    lines = [line for line in raw.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return len(lines) == 1 and "%gpumem" in lines[0]
