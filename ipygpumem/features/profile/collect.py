"""Collecting a profile: a trace, and a timeline of memory by category."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError, OptionError, first_line
from ipygpumem.core.files import check_ending, check_path, replacing
from ipygpumem.core.interpreter import collector_paused
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.model import CategoryPeak, ProfileFacts
from ipygpumem.features.profile.profiler_session import ProfilerSession
from ipygpumem.measurement.plan import Collector

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from ipygpumem.core.report import Report
    from ipygpumem.features.profile.timeline import CategoryTimeline
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Outcome

_ENDINGS = {"trace": (".json", ".json.gz"), "timeline": (".html", ".htm")}
_EXAMPLES = {"trace": "trace.json.gz", "timeline": "timeline.html"}


def profile_collector(
    trace: str | os.PathLike[str] | None,
    timeline: str | os.PathLike[str] | None,
    *,
    outside: bool = False,
    snapshot: Path | None = None,
) -> ProfileCollector | None:
    """Return the collector for a trace, a timeline or both; None if neither is requested.

    Raises:
        OptionError: A path cannot be written, has another ending or is used twice, or memory outside PyTorch is
            requested for the same code.
        RecordingError: Profiling is not possible here.
    """
    if trace is None and timeline is None:
        return None
    paths = [
        None if path is None else check_path(path, kind, _EXAMPLES[kind])
        for kind, path in (("trace", trace), ("timeline", timeline))
    ]
    check_profile_paths(trace, timeline, outside=outside)
    files = [path for path in (*paths, snapshot) if path is not None]
    if len(set(files)) < len(files):
        raise OptionError("the trace, the timeline and the snapshot need different file names")
    return ProfileCollector(*paths)


def check_profile_paths(
    trace: str | os.PathLike[str] | None, timeline: str | os.PathLike[str] | None, *, outside: bool = False
) -> None:
    """Check what does not depend on this machine: the files may be written on another one.

    An `OptionError` says that a name has another ending, or that memory outside PyTorch is requested for the same code.
    """
    if outside and (trace is not None or timeline is not None):
        raise OptionError(
            "a profile cannot be combined with memory outside PyTorch by library: both need CUPTI, which has one user "
            "at a time. Measure them one after the other"
        )
    for kind, path in (("trace", trace), ("timeline", timeline)):
        if path is not None:
            check_ending(path, kind, *_ENDINGS[kind])


class ProfileCollector(Collector):
    """A trace, and memory by category over time, from torch.profiler.

    ``timelines`` is the memory by category of each device; empty before it is read. Creating a collector raises
    `RecordingError` if profiling is not possible here.
    """

    section = "profile"

    def __init__(self, trace: Path | None, timeline: Path | None) -> None:
        self.timelines: tuple[CategoryTimeline, ...] = ()
        self._trace, self._timeline = trace, timeline
        self._capture = ProfilerSession()

    def attach(self, measurement: Measurement) -> None:
        """Add the profiler to a measurement before it begins."""
        measurement.observers.append(self._capture)

    def stop(self) -> None:
        """Stop the profiler as soon as the code has ended, before the measurement does."""
        self._capture.stop()

    def collect(self, report: Report, outcome: Outcome) -> Report:  # noqa: ARG002 (needs no recording)
        """Write the files and add the section to the report."""
        return replace(report, profile=self.write(), host=replace(report.host, profiled=True))

    def write(self) -> ProfileFacts:
        """Write the files. Failures are reported in the result."""
        began = time.perf_counter()
        capture, errors = self._capture, []
        facts: dict[str, Any] = {"aside": capture.aside}
        for path, write in ((self._trace, self._write_trace), (self._timeline, self._write_timeline)):
            if path is None:
                continue
            try:
                facts |= write(path)
            except IpyGpuMemError as error:
                errors.append(str(error))
            except Exception as error:
                errors.append(f"{path} was not written: {type(error).__name__}: {first_line(error)}")
        seconds = capture.cost + time.perf_counter() - began
        capture.release()
        return ProfileFacts(**facts, seconds=seconds, errors=tuple(dict.fromkeys(errors)))

    def _write_trace(self, path: Path) -> dict[str, Any]:
        return {"trace_size": self._capture.write(path), "trace": str(path)}

    def _write_timeline(self, path: Path) -> dict[str, Any]:
        with collector_paused():
            timelines, unknown_reason = self._read_timelines()
        if not timelines:
            when = "by the profiled thread" if self._capture.aside is None else "before the code started its profiler"
            raise OptionError(f"the timeline was not written: nothing was allocated or freed {when}")
        from ipygpumem.features.profile.page import timeline_page

        notes = [unknown_reason] if unknown_reason else []
        if self._capture.aside is not None:
            notes.append("The code started its own profiler, and this profile ended there.")
        page = timeline_page(timelines, path.name, notes).encode("utf-8")
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(page)
        except OSError as error:
            raise OptionError(f"the timeline {path} was not written: {error.strerror or error}") from error
        self.timelines = timelines
        return {
            "timeline": str(path),
            "timeline_size": len(page),
            "changes": sum(map(len, timelines)),
            "peaks": tuple(map(_category_peak, timelines)),
            "why": unknown_reason,
        }

    def _read_timelines(self) -> tuple[tuple[CategoryTimeline, ...], str]:
        """Memory by category, and why all of it is ``unknown`` if the operators cannot be read."""
        result = self._capture.result
        if result is None:
            raise OptionError(self._capture.error or "nothing was profiled")
        from ipygpumem.features.profile.event_tree import read_allocations, read_flow
        from ipygpumem.features.profile.timeline import build_timelines

        problem = ""
        for read in (read_flow, read_allocations):
            try:
                return build_timelines(read(result)), f"all categories are unknown: {problem}" if problem else ""
            except Exception as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                problem = problem or f"the profile of this version of PyTorch cannot be read ({reason})"
        raise OptionError(f"the timeline was not written: {problem}")


def _category_peak(timeline: CategoryTimeline) -> CategoryPeak:
    row, level = timeline.peak
    levels = dict(zip(CATEGORIES, timeline.levels[row].tolist(), strict=True))
    return CategoryPeak(timeline.device, level, timeline.when(row) / 1e9, tuple(levels.items()))
