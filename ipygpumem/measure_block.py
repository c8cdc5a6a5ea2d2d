"""The same measurement without IPython: ``with ipygpumem.measure() as m: ...`` and then ``m.report``."""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.code_label import first_code
from ipygpumem.core.device_names import device_words
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.lines.source import (
    SourceRegion,
    SourceTexts,
    code_object,
    function_region,
    with_statement_region,
)
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.features.processes.collect import with_other_processes
from ipygpumem.features.profile.collect import profile_collector
from ipygpumem.features.ranks.rank_files import RankFiles
from ipygpumem.measurement.allocation_history import HistoryOptions
from ipygpumem.measurement.measurement import Measurement, MeasurementOptions
from ipygpumem.measurement.plan import Study
from ipygpumem.measurement.recording_file import check_path
from ipygpumem.measurement.session import current

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from ipygpumem.core.report import Report

__all__ = ["measure", "notebook_sources"]


class measure:  # noqa: N801 (a context manager reads as a verb)
    """Measure a block of code.

    Args:
        snapshot: Where to write the block's allocation history, also when the block fails; None records nothing.
        stacks: ``python``, ``all`` (C++ too: slow to save) or ``none``.
        max_entries: Bound of the history, in events per device.
        history: Further options for torch's ``_record_memory_history``.
        devices: A name or names (``"cuda:0"``, ``0``) to report on; None for all.
        peaks: ``exact``, or ``untouched`` to leave PyTorch's peak counters alone.
        host_peak: ``bound``, or ``reset`` for an exact host peak (lowers what ru_maxrss shows afterwards).
        synchronize: Wait for the current stream of each device at both ends.
        lines: True lists the block line by line, with functions of the notebook that ran; functions and methods list
            these, too. Takes a recording, which ``snapshot`` may save.
        modules: A ``torch.nn.Module`` whose tree and phases are told: the block is a step of training or inference.
            Takes a recording.
        trace: Where to write torch.profiler's trace of the block (``.json.gz`` or ``.json``, for Perfetto and
            chrome://tracing), also when the block fails.
        timeline: Where to write memory over time by category, as one page (``.html``).
        outside: Tell memory outside PyTorch by library (`ipygpumem[outside]`), and what pools count themselves.
        limit: The highest peak that the block may have on any GPU, as its report tells it: ``"2 GiB"``, or bytes.
        limit_held: What it may hold at its end.
        limit_outside: What it may take outside PyTorch.
        limit_host: The highest peak of this process's resident memory (implies ``host_peak="reset"``).
        rank_reports: A folder that gets a report and a snapshot of this process, one of several that run the same
            block (torchrun, accelerate, torch.multiprocessing); ``ipygpumem ranks FOLDER`` puts them side by side.
            What this rank left there before is replaced. ``snapshot=False`` leaves the snapshot out.
        rank: This process's rank there; without it torch.distributed or the environment tells.

    Raises:
        OptionError: An option that means nothing here, before the block runs.
        RecordingError: A snapshot, lines or modules are asked for where no history can be recorded, before the block
            runs.
        GPUMemLimitExceeded: A limit is broken, after the block has ended well and its report is there.

    Example:
        >>> with measure() as m:
        ...     x = [0] * 10
        >>> m.report.success
        True
    """

    report: Report
    """What moved; there once the block has ended, also when it raised."""

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
        if peaks not in {"exact", "untouched"}:
            raise OptionError(f"peaks is exact or untouched, not {peaks!r}")
        if host_peak not in {"bound", "reset"}:
            raise OptionError(f"host_peak is bound or reset, not {host_peak!r}")
        self._monitor = current().monitor
        self._options = MeasurementOptions(
            reset_peaks=peaks == "exact",
            reset_host_peak=host_peak == "reset" or limit_host is not None,
            synchronize=synchronize,
        )
        self._only = None if devices is None else self._monitor.parse_devices(device_words(devices, "devices"))
        limits = Limits.read(limit, limit_held, limit_outside, limit_host)
        path = None if snapshot is None or snapshot is False else check_path(snapshot)
        self._ranks = None if rank_reports is None else _rank_files(rank_reports, rank, snapshot)
        if self._ranks is not None:
            path = self._ranks.snapshot
        elif rank is not None:
            raise OptionError("rank is of rank_reports: name a folder")
        if path is None and history and lines is False and modules is None and self._ranks is None:
            raise OptionError("history is of a recording: name a file with snapshot")
        self._study = Study(
            self._monitor,
            lines=None if lines is False else _regions(lines),
            everywhere=lines is True,
            limits=limits,
            modules=None if modules is None else ModuleTracker(modules, reset=peaks == "exact"),
            options=HistoryOptions(stacks=stacks, max_entries=max_entries, extra=dict(history or {})),
            path=path,
            outside=bool(outside),
            profile=profile_collector(trace, timeline, outside=bool(outside), snapshot=path),
        )
        self._listed = lines is not False
        self._block: SourceRegion | None = None
        self._place = ("", 0, "")
        self._measurement: Measurement | None = None

    def __enter__(self) -> Self:
        if self._measurement is not None:
            raise OptionError("this measure() is open already: make a new one for a block inside it")
        caller = sys._getframe(1)
        code = caller.f_code
        name = "<module>" if code.co_name.startswith("<cell line") else code.co_name  # as IPython 7.34 has it
        self._place = code.co_filename, caller.f_lineno, name
        if self._listed:
            self._block = with_statement_region(
                code.co_filename, caller.f_lineno, SourceTexts(notebook_sources()), f"with measure() in {code.co_name}"
            )
        self._measurement = Measurement(self._monitor, self._options)
        self._measurement.only = self._only
        self._study.attach(self._measurement)
        try:
            if self._ranks is not None:
                self._ranks.write_start()
            self._measurement.begin()
        except BaseException:
            self._measurement = None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        measurement, self._measurement = self._measurement, None
        if measurement is None:
            return
        trouble = ""
        try:
            self._settle_rank(measurement)
            report = measurement.end(success=kind is None, code=self._label(), sources=notebook_sources)
        except Exception as problem:  # never in the place of what the block itself does
            trouble = f"this block has no report: {first_line(problem)}"
        else:
            if report is None:  # a process forked inside the block: the measurement is its parent's
                return
            cells = notebook_sources() if self._listed else {}
            report = self._study.finish(report, measurement, cells=cells, block=self._block)
            self.report = report = with_other_processes(report)
            current().reports.append(report)
            trouble = self._trouble(report)
        if trouble:
            try:
                warnings.warn(trouble, RuntimeWarning, stacklevel=2)
            except RuntimeWarning:  # warnings are errors here: but the block's own error goes first
                if kind is None:
                    raise
        if kind is None and self._study.error is not None:
            raise self._study.error

    def _settle_rank(self, measurement: Measurement) -> None:
        """The rank may be known by now, and with it the name of its snapshot."""
        if self._ranks is not None and self._ranks.update_rank() and self._study._recorder is not None:
            measurement.record(self._study._recorder, self._ranks.snapshot)

    def _trouble(self, report: Report) -> str:
        """What of the files that were asked for is not there."""
        found = ["" if report.recording is None else report.recording.error]
        found += [] if self._ranks is None else [self._ranks.write_report(report)]
        found += [] if report.profile is None else report.profile.errors
        return "; ".join(one for one in found if one)

    def _label(self) -> str:
        """Where the block stands, by which it is known in a history."""
        try:
            return first_code(current().label(*self._place)).removesuffix(" <module>")
        except Exception:  # a name is no reason to lose a report
            return ""


def _rank_files(folder: str | os.PathLike[str], rank: int | None, snapshot: Any) -> RankFiles:
    """This process's files in the folder of its run.

    Raises:
        OptionError: Nothing can be written there, or the snapshot is to lie elsewhere.
    """
    if snapshot is not None and snapshot is not False:
        raise OptionError("rank_reports names the snapshots itself: leave snapshot out, or False for none")
    return RankFiles(folder, rank, record=snapshot is None)


def _regions(lines: bool | Callable[..., Any] | Iterable[Callable[..., Any]]) -> list[SourceRegion]:
    """The functions that are to be listed.

    Raises:
        OptionError: One that has no source.
    """
    functions = [] if isinstance(lines, bool) else list(lines) if isinstance(lines, Iterable) else [lines]
    texts = SourceTexts(notebook_sources())
    regions = []
    for function in functions:
        code = code_object(function)
        if code is None:
            raise OptionError(f"lines takes True, or functions written in Python, not {type(function).__name__}")
        regions.append(function_region(code, texts))
    return regions


def notebook_sources() -> dict[str, str]:
    """Text of the code that lies in no file: notebook cells, by the name that stands in their frames."""
    # linecache has (size, mtime, lines, name); code that was never a file has no mtime, but in IPython 7, which keeps a
    # list of its own
    ours = getattr(linecache, "_ipython_cache", {})
    entries = ((name, entry) for name, entry in list(linecache.cache.items()) if len(entry) > 1)
    return {name: "".join(entry[2]) for name, entry in entries if entry[1] is None or name in ours}
