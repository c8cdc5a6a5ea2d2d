"""Collector of a profile: a trace and a timeline of memory usage by category."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError, OptionError, first_line
from ipygpumem.core.files import atomic_write, check_ending, check_path
from ipygpumem.core.introspection import pause_gc
from ipygpumem.core.report import Report
from ipygpumem.measurement.plan import Collector, CompletedMeasurement

if TYPE_CHECKING:
    from ipygpumem.features.profile.model import CategoryPeak, ProfileSummary
    from ipygpumem.features.profile.timeline import CategoryTimeline

_EXTENSIONS = {"trace": (".json", ".json.gz"), "timeline": (".html", ".htm")}
_EXAMPLES = {"trace": "trace.json.gz", "timeline": "timeline.html"}


def profile_collector(
    trace: str | os.PathLike[str] | None,
    timeline: str | os.PathLike[str] | None,
    *,
    outside: bool = False,
    snapshot: Path | None = None,
) -> ProfileCollector | None:
    """Return a collector for a trace, a timeline or both, or None if neither is requested.

    ``snapshot`` is the path of the snapshot that the measurement writes, if any. Raises `OptionError` if a path is not
    writable, has an unsupported extension or is used twice, or if memory outside PyTorch by library is also requested,
    and `RecordingError` if profiling is not possible.
    """
    if trace is None and timeline is None:
        return None
    trace_path, timeline_path = (
        None if path is None else check_path(path, kind, _EXAMPLES[kind])
        for kind, path in (("trace", trace), ("timeline", timeline))
    )
    check_profile_paths(trace_path, timeline_path, snapshot, outside=outside)
    return ProfileCollector(trace_path, timeline_path)


def check_profile_paths(
    trace: str | Path | None, timeline: str | Path | None, snapshot: str | Path | None, *, outside: bool
) -> None:
    if outside and (trace is not None or timeline is not None):
        raise OptionError(
            "profiling cannot be combined with measuring memory outside PyTorch by library because both use CUPTI, "
            "which supports only one client at a time: use separate runs"
        )
    for kind, path in (("trace", trace), ("timeline", timeline)):
        if path is not None:
            check_ending(path, kind, *_EXTENSIONS[kind])
    paths = [path for path in (trace, timeline, snapshot) if path is not None]
    if len(set(paths)) < len(paths):
        raise OptionError("the trace, the timeline and the snapshot must have different file names")


class ProfileCollector(Collector):
    """Collector of a trace and of memory usage by category over time, recorded with torch.profiler.

    ``timelines`` is empty until `write` has written the timeline page. The constructor raises `RecordingError` if
    profiling is not possible.
    """

    section = "profile"
    is_slow = True

    def __init__(self, trace: Path | None, timeline: Path | None) -> None:
        from ipygpumem.features.profile.profiler_session import ProfilerSession  # on first use, to save memory

        self.timelines: tuple[CategoryTimeline, ...] = ()
        self._trace, self._timeline = trace, timeline
        self.observer = self._session = ProfilerSession()

    def stop(self) -> None:
        self._session.stop()

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:  # noqa: ARG002 (needs no recording)
        return replace(report, profile=self.write(), host=replace(report.host, profiled=True))

    def write(self) -> ProfileSummary:
        from ipygpumem.features.profile.model import ProfileSummary

        began = time.perf_counter()
        session, errors = self._session, []
        results: dict[str, Any] = {"interrupted_after": session.interrupted_after}
        for path, write in ((self._trace, self._write_trace), (self._timeline, self._write_timeline)):
            if path is None:
                continue
            try:
                results |= write(path)
            except IpyGpuMemError as error:
                errors.append(str(error))
            except Exception as error:
                errors.append(f"{path} was not written: {type(error).__name__}: {first_line(error)}")
        seconds = session.cost + time.perf_counter() - began
        session.release()
        return ProfileSummary(**results, seconds=seconds, errors=tuple(dict.fromkeys(errors)))

    def _write_trace(self, path: Path) -> dict[str, Any]:
        return {"trace_size": self._session.write(path), "trace": str(path)}

    def _write_timeline(self, path: Path) -> dict[str, Any]:
        with pause_gc():
            timelines, unknown_reason = self._read_timelines()
        if not timelines:
            problem = "nothing was allocated or freed by the profiled thread"
            if self._session.interrupted_after is not None:
                problem = "nothing was allocated or freed before the code started its own profiler"
            raise OptionError(f"the timeline was not written: {problem}")
        from ipygpumem.features.profile.display import timeline_page

        notes = [unknown_reason] if unknown_reason else []
        if self._session.interrupted_after is not None:
            notes.append("The profile ended when the code started its own profiler.")
        page = timeline_page(timelines, path.name, notes).encode("utf-8")
        with atomic_write(path, "the timeline ") as file:
            file.write(page)
        self.timelines = timelines
        return {
            "timeline": str(path),
            "timeline_size": len(page),
            "changes": sum(map(len, timelines)),
            "peaks": tuple(map(_category_peak, timelines)),
            "why": unknown_reason,
        }

    def _read_timelines(self) -> tuple[tuple[CategoryTimeline, ...], str]:
        """Return the timelines, and the reason why all categories are unknown, or an empty string if they are known."""
        result = self._session.result
        if result is None:
            raise OptionError(self._session.error or "nothing was profiled")
        from ipygpumem.features.profile.event_tree import read_allocations, read_flow
        from ipygpumem.features.profile.timeline import build_timelines

        problem = ""
        for read in (read_flow, read_allocations):
            try:
                return build_timelines(read(result)), f"all categories are unknown: {problem}" if problem else ""
            except Exception as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                problem = problem or f"profiles of this version of PyTorch cannot be read ({reason})"
        raise OptionError(f"the timeline was not written: {problem}")


def _category_peak(timeline: CategoryTimeline) -> CategoryPeak:
    from ipygpumem.features.profile.categories import CATEGORIES
    from ipygpumem.features.profile.model import CategoryPeak

    row, nbytes = timeline.peak
    categories = tuple(zip(CATEGORIES, timeline.usage[row].tolist(), strict=True))
    return CategoryPeak(timeline.device, nbytes, timeline.elapsed(row) / 1e9, categories)
