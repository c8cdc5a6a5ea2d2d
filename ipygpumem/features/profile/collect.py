"""The question to a measurement: torch's profile of it, as a trace and as memory by category over time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError, OptionError, first_line
from ipygpumem.core.files import check_ending, check_path, replacing
from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.features.profile.capture import Capture
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.model import CategoryPeak, ProfileFacts

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from ipygpumem.features.profile.timeline import CategoryTimeline, Profile
    from ipygpumem.measurement.measurement import Measurement

__all__ = ["ProfileCollector", "check_profile_paths", "profile_collector"]

_FILES = (
    ("trace", "trace.json.gz", (".json", ".json.gz")),
    ("timeline", "timeline.html", (".html", ".htm")),
)
"""Of each file what it is, a name for it, and how names end."""
_ONE_NAME = "the trace, the timeline and the snapshot are files of their own: give each another name"
_NO_CATEGORIES = "this torch's profile has no operators that can be read: every category is unknown"
_NOTHING = "the timeline was not written: nothing was allocated or freed "
_NO_ALLOCATIONS = f"{_NOTHING}on the thread that the profile followed"
_NONE_BEFORE = f"{_NOTHING}before the code began a profile of its own"


def profile_collector(
    trace: str | os.PathLike[str] | None,
    timeline: str | os.PathLike[str] | None,
    *,
    outside: bool = False,
    snapshot: Path | None = None,
) -> ProfileCollector | None:
    """The question that two paths ask, both proved; None where neither is given.

    Raises:
        OptionError: A path that nothing can be written to, a name with another ending, two files of one name, or
            libraries outside PyTorch asked of the same code.
        RecordingError: No profile can be taken here.
    """
    if trace is None and timeline is None:
        return None
    paths = [
        None if given is None else check_path(given, what, example)
        for given, (what, example, _) in zip((trace, timeline), _FILES, strict=True)
    ]
    check_profile_paths(trace, timeline, outside=outside)
    written = [path for path in (*paths, snapshot) if path is not None]
    if len(set(written)) < len(written):
        raise OptionError(_ONE_NAME)
    return ProfileCollector(*paths)


def check_profile_paths(
    trace: str | os.PathLike[str] | None, timeline: str | os.PathLike[str] | None, *, outside: bool = False
) -> None:
    """What can be said against a profile's paths without touching this machine: elsewhere they may be written.

    Raises:
        OptionError: A name with another ending, or libraries outside PyTorch asked of the same code.
    """
    if outside and (trace is not None or timeline is not None):
        raise OptionError(
            "memory outside PyTorch by library and a profile both need CUPTI, which serves one: ask for them one by one"
        )
    for given, (what, _, endings) in zip((trace, timeline), _FILES, strict=True):
        if given is None:
            continue
        check_ending(given, what, *endings)


class ProfileCollector:
    """One measurement's.

    Attributes:
        profile: Memory by category, once it was read; for whoever shows it.

    Raises:
        RecordingError: No profile can be taken here.
    """

    def __init__(self, trace: Path | None, timeline: Path | None) -> None:
        self.profile: Profile | None = None
        self._trace, self._timeline = trace, timeline
        self._capture = Capture()

    @property
    def name(self) -> str:
        """What the timeline is called; empty where none is asked for."""
        return "" if self._timeline is None else self._timeline.name

    def attach(self, measurement: Measurement) -> None:
        """Ask a measurement, before it begins."""
        measurement.observers.append(self._capture)
        measurement.overheads.append(lambda: self._capture.cost)

    def stop(self) -> None:
        """End the profile before the measurement does: what follows is not the code's own."""
        self._capture.stop()

    def answer(self) -> ProfileFacts:
        """Write the files. Never raises: the code that was measured must not suffer."""
        began = time.perf_counter()
        capture, errors = self._capture, []
        facts: dict[str, Any] = {"aside": capture.aside}
        for wanted, write in ((self._trace, self._write_trace), (self._timeline, self._write_timeline)):
            if wanted is None:
                continue
            try:
                facts |= _tried(write, wanted)
            except IpyGpuMemError as error:
                errors.append(str(error))
        errors = list(dict.fromkeys(errors))
        seconds = capture.cost + time.perf_counter() - began
        self._capture.forget()
        return ProfileFacts(**facts, seconds=seconds, errors=tuple(errors))

    def _write_trace(self, path: Path) -> dict[str, Any]:
        return {"trace_size": self._capture.write(path), "trace": str(path)}

    def _write_timeline(self, path: Path) -> dict[str, Any]:
        with collector_paused():
            profile = self._read()
        if not profile.timelines:
            raise OptionError(_NO_ALLOCATIONS if self._capture.aside is None else _NONE_BEFORE)
        from ipygpumem.features.profile.page import timeline_page

        notes = [profile.unknown_reason] if profile.unknown_reason else []
        if self._capture.aside is not None:
            notes.append("The code began a profile of its own, and this one ended there.")
        text = timeline_page(profile, path.name, notes).encode("utf-8")
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(text)
        except OSError as error:
            raise OptionError(f"the timeline {path} was not written: {error.strerror or error}") from error
        self.profile = profile
        return {
            "timeline": str(path),
            "timeline_size": len(text),
            "changes": sum(map(len, profile.timelines)),
            "peaks": tuple(map(_peak, profile.timelines)),
            "why": profile.unknown_reason,
        }

    def _read(self) -> Profile:
        """Memory by category; without categories where this torch's operators cannot be read.

        Raises:
            OptionError: Not even allocations can.
        """
        result = self._capture.result
        if result is None:
            raise OptionError(self._capture.error or "nothing was profiled")
        from ipygpumem.features.profile.event_tree import read_allocations, read_flow
        from ipygpumem.features.profile.timeline import build_profile

        try:
            return build_profile(read_flow(result))
        except Exception as error:
            why = f"{_NO_CATEGORIES} ({type(error).__name__}: {first_line(error)})"
        try:
            return build_profile(read_allocations(result), why)
        except Exception as error:
            raise OptionError(f"the timeline was not written: {why}; nor has it allocations") from error


def _tried(write: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    """What a write says.

    Raises:
        IpyGpuMemError: Whatever went wrong.
    """
    try:
        return write(path)
    except IpyGpuMemError:
        raise
    except Exception as error:
        raise OptionError(f"{path} was not written: {type(error).__name__}: {first_line(error)}") from error


def _peak(timeline: CategoryTimeline) -> CategoryPeak:
    row, level = timeline.peak
    levels = dict(zip(CATEGORIES, timeline.levels[row].tolist(), strict=True))
    return CategoryPeak(timeline.device, level, timeline.when(row) / 1e9, tuple(levels.items()))
