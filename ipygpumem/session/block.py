"""The same measurement without IPython: ``with ipygpumem.measure() as m: ...`` and then ``m.report``."""

from __future__ import annotations

import linecache
import warnings
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.errors import OptionError
from ipygpumem.recording.file import check_path
from ipygpumem.recording.history import HistoryOptions
from ipygpumem.recording.measurement import Measurement, MeasurementOptions
from ipygpumem.recording.recorder import Recorder
from ipygpumem.session.session import current

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from ipygpumem.ledger.report import Report

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

    Raises:
        OptionError: An option that means nothing here, before the block runs.
        RecordingError: A snapshot is asked for where no history can be recorded, before the block runs.

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
        snapshot: str | os.PathLike[str] | None = None,
        stacks: Literal["python", "all", "none"] = "python",
        max_entries: int = 1_000_000,
        history: Mapping[str, Any] | None = None,
        devices: Iterable[str | int] | str | int | None = None,
        peaks: Literal["exact", "untouched"] = "exact",
        host_peak: Literal["bound", "reset"] = "bound",
        synchronize: bool = False,
    ) -> None:
        if peaks not in {"exact", "untouched"}:
            raise OptionError(f"peaks is exact or untouched, not {peaks!r}")
        if host_peak not in {"bound", "reset"}:
            raise OptionError(f"host_peak is bound or reset, not {host_peak!r}")
        self._watch = current().watch
        self._options = MeasurementOptions(
            reset_peaks=peaks == "exact", reset_host_peak=host_peak == "reset", synchronize=synchronize
        )
        names = [devices] if isinstance(devices, (str, int)) else devices
        self._only = None if names is None else self._watch.check(str(name) for name in names)
        options = HistoryOptions(stacks=stacks, max_entries=max_entries, extra=dict(history or {}))
        self._path = None if snapshot is None else check_path(snapshot)
        self._recorder = None if snapshot is None else Recorder(self._watch, options)

    def __enter__(self) -> Self:
        self._measurement = Measurement(self._watch, self._options)
        self._measurement.only = self._only
        if self._recorder is not None and self._path is not None:
            self._measurement.record(self._recorder, self._path)
        self._measurement.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        report = self._measurement.end(success=kind is None, sources=notebook_sources())
        if report is None:  # a process forked inside the block: the measurement is its parent's
            return
        self.report = report
        current().reports.append(report)
        if report.recording is not None and report.recording.error:
            try:
                warnings.warn(report.recording.error, RuntimeWarning, stacklevel=2)
            except RuntimeWarning:  # warnings are errors here: but the block's own error goes first
                if kind is None:
                    raise


def notebook_sources() -> dict[str, str]:
    """Text of the code that lies in no file: notebook cells, by the name that stands in their frames."""
    # linecache has (size, mtime, lines, name); code that was never a file has no mtime, but in IPython 7, which keeps a
    # list of its own
    ours = getattr(linecache, "_ipython_cache", {})
    entries = ((name, entry) for name, entry in list(linecache.cache.items()) if len(entry) > 1)
    return {name: "".join(entry[2]) for name, entry in entries if entry[1] is None or name in ours}
