"""Reports of measurements."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.device_report import DeviceReport, PeakCounters
from ipygpumem.core.errors import ReportError
from ipygpumem.core.host_report import HostReport
from ipygpumem.core.other_process import OtherProcessChange
from ipygpumem.core.reading import Accuracy, DeviceReading, HostReading, Reading
from ipygpumem.core.samples import OutsidePeak
from ipygpumem.core.serialization import SCHEMA, DataclassReader, Serializable, check_ranges, check_schema, mapping
from ipygpumem.core.text import printable
from ipygpumem.core.units import duration, many, precise_size, signed

if TYPE_CHECKING:
    from ipygpumem.features.limits.model import ExceededLimit
    from ipygpumem.features.lines.model import DeviceLines, PeakLines
    from ipygpumem.features.modules.model import ModuleTree
    from ipygpumem.features.outside.model import OutsideMemory
    from ipygpumem.features.profile.model import ProfileSummary

__all__ = [
    "CODE_WIDTH",
    "DeviceReport",
    "HostReport",
    "MeasurementLabel",
    "PeakCounters",
    "RecordingInfo",
    "Report",
    "build_report",
    "code_label",
]

_FEATURES = ("limits", "lines", "modules", "outside", "profile")
"""Features that define sections of a report. They are imported when a report is built from a dict."""
CODE_WIDTH = 80
_SEARCHED = 2_000
"""Number of characters searched for the first line of code, limited because cells may contain long literals."""
_LITERAL = re.compile(
    r"""["'#!%]|^([,;/]|(alias|conda|env|mamba|micromamba|pip3?|run|set_env|sql|sx|system|uv)\s)|[=:]\s*\d"""
    r"""|\b(?=\w{16})\w*\d|^\w+-[\w.+/\\-]{8,}$"""
)
"""Pattern of lines of code that may contain secrets."""


@dataclass(frozen=True, slots=True)
class MeasurementLabel:
    """Label of the measured code, which is a notebook cell, a statement or a block.

    Attributes:
        code: Source code of a cell or statement, or position of a block.
        cell: Execution count of a cell; None for other code.
        cell_id: ID of the cell in its notebook; None if unknown.
        filename: File name under which IPython compiled the cell; None if unknown.
    """

    code: str = ""
    cell: int | None = None
    cell_id: str | None = None
    filename: str | None = None


_NO_LABEL = MeasurementLabel()


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """Description of the saved allocation history of a measurement.

    Attributes:
        path: Path of the file; None if it could not be written.
        size, events: Size of the file in bytes, and number of events on all devices.
        dropped: Number of allocations whose events the ring buffer dropped; None if unknown.
        own: Whether this package started the recording. If not, only the events of the measurement were saved.
        error: Reason why the file could not be written or events are missing.
        peak_lines: Source lines that allocated the memory in use at the peak of each device, if requested.
    """

    path: str | None
    size: int = 0
    events: int = 0
    dropped: int | None = 0
    own: bool = True
    error: str = ""
    peak_lines: tuple[PeakLines, ...] = ()

    def sentence(self) -> str:
        if self.path is None:
            return self.error
        text = f"snapshot {printable(self.path)}: {many(self.events, 'event')}, {precise_size(self.size)}"
        if self.dropped is None:
            text += "; it is unknown whether the ring buffer dropped events"
        elif self.dropped:
            remedy = (
                "increase max_entries (--max-entries)" if self.own else "increase max_entries of your own recording"
            )
            text += f"; the ring buffer dropped the events of {many(self.dropped, 'allocation')}: {remedy}"
        if not self.own:
            text += "; copied from the recording that was already running"
        return f"{text}; {self.error}" if self.error else text


@dataclass(frozen=True, slots=True, repr=False)
class Report(Serializable):
    """Report of one measurement. It contains no variable values, error messages or tracebacks of the measured code.

    Attributes:
        devices: Changes on each device, by device name.
        host: Changes in the host memory of this process.
        seconds: Wall time in seconds.
        cell: Execution count, as in ``In [7]``; None if the code is not a cell or has no execution count.
        cell_id: ID of the cell in its notebook; None if unknown.
        success: Whether the code ended without an error; None if it was still running when the measurement ended.
        time: Start time in seconds since the Unix epoch.
        notes: Notes shown below the report.
        recording: Information about the snapshot; None if no snapshot was requested.
        lines: Memory by source line, for each device, if requested.
        excesses: Exceeded limits.
        modules: Memory by module, for each device, if requested.
        libraries: Memory outside PyTorch by library, for each device, if requested.
        profile: Trace and timeline; None if there are none.
        neighbours: Other processes on the devices, with the changes in their memory. A report that is created only
            because of the settings omits processes that used the devices throughout and whose memory did not change.
        code: First line of the code that is not a comment or cell magic, redacted and truncated; for a block, its
            position.
    """

    devices: dict[str, DeviceReport]
    host: HostReport
    seconds: float
    cell: int | None = None
    cell_id: str | None = None
    success: bool | None = True
    time: float = 0.0
    notes: tuple[str, ...] = ()
    recording: RecordingInfo | None = None
    lines: tuple[DeviceLines, ...] = ()
    excesses: tuple[ExceededLimit, ...] = ()
    modules: tuple[ModuleTree, ...] = ()
    libraries: tuple[OutsideMemory, ...] = ()
    profile: ProfileSummary | None = None
    neighbours: tuple[OtherProcessChange, ...] = ()
    code: str = ""

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """Build a report from the output of `to_dict`. Derived values are recomputed from the readings.

        Unknown keys are ignored and, if the data has a later schema version, also invalid optional values.

        Raises:
            ReportError: The data is not a valid report.
        """
        schema = check_schema(mapping(data, ""))
        try:
            report = _reader(lenient=schema > SCHEMA).read(cls, data)
            check_ranges(report)
        except ReportError as error:
            if schema <= SCHEMA:
                raise
            raise ReportError(f"{error} (the data was written by a later version of ipygpumem)") from None
        return report

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-serializable data. Sizes are in bytes, and unknown values are None."""
        return {"schema": SCHEMA, "code": self.code, **Serializable.to_dict(self)}

    def to_json(self) -> str:
        """Return the output of `to_dict` as a JSON string."""
        return json.dumps(self.to_dict())

    @property
    def caption(self) -> str:
        """Execution count (if any), duration and, after an error, ``failed``, as in ``In [7], 2.31 s, failed``."""
        cell = "" if self.cell is None else f"In [{self.cell}], "
        return f"{cell}{duration(self.seconds)}{', failed' if self.success is False else ''}"

    def __repr__(self) -> str:
        parts = [f"{name} {_held_and_peak(device)}" for name, device in self.devices.items()]
        return f"<Report {self.caption}: {'; '.join(parts) or f'host {_held_and_peak(self.host)}'}>"


def build_report(
    before: Reading,
    after: Reading,
    peaks: Mapping[str, PeakCounters],
    *,
    seconds: float,
    label: MeasurementLabel = _NO_LABEL,
    success: bool | None = True,
    devices: Collection[str] | None = None,
    sampled: Mapping[str, OutsidePeak] | None = None,
    sampling_problems: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
    recording: RecordingInfo | None = None,
) -> Report:
    """Build the report of one measurement from its readings and its peaks by device name.

    ``devices`` contains the names of the devices to report on; None selects all devices that this process uses.
    ``sampled`` contains lower bounds on peak memory outside PyTorch, and ``sampling_problems`` contains the reasons
    why samples are missing, both by device name.
    """
    reports = {}
    for name, end in after.devices.items():
        start = before.devices.get(name) or _before_context(end)
        if name not in devices if devices is not None else not (start.context or end.context):
            continue
        samples = (sampled or {}).get(name), (sampling_problems or {}).get(name, "")
        reports[name] = DeviceReport(start, end, peaks.get(name), *samples)
    return Report(
        devices=reports,
        host=HostReport(before=before.host, after=after.host),
        seconds=seconds,
        cell=label.cell,
        cell_id=label.cell_id,
        code=code_label(label.code),
        success=success,
        time=before.time,
        notes=notes,
        recording=recording,
    )


def _before_context(end: DeviceReading) -> DeviceReading:
    """Return a reading for the time before the CUDA context existed, in which the counters of this process are 0."""
    counters: tuple[str, ...] = ("allocated", "reserved", "active", "requested", "inactive_split")
    counters += ("retries", "ooms", "rejections", "process")
    zeros: dict[str, Any] = {name: 0 for name in counters if getattr(end, name) is not None}
    return DeviceReading(name=end.name, context=False, mode=end.mode, why=end.why, torch_why=end.torch_why, **zeros)


def code_label(code: str) -> str:
    """Return the first line of code, redacted and truncated to 80 characters.

    Comments and cell magics are skipped, unless there are no other lines.
    """
    if not code:
        return ""
    lines = [line.strip() for line in code[:_SEARCHED].splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if not line.startswith(("#", "%%"))), 0)
    line = lines[start] if lines else ""
    magics = "\n".join(line for line in lines[:start] or lines[:1] if line.startswith("%%")) if "%%" in code else ""
    if magics or _LITERAL.search(line):
        from ipygpumem.core.redaction import redact_code

        line = redact_code(line, magics)
    label = printable(line.replace("\t", " "))
    return label if len(label) <= CODE_WIDTH else label[: CODE_WIDTH - 1] + "…"


def _held_and_peak(part: DeviceReport | HostReport) -> str:
    metrics = (("held", part.held), ("peak", part.peak))
    return ", ".join(f"{name} {'unknown' if change is None else signed(change)}" for name, change in metrics)


@cache
def _reader(*, lenient: bool) -> DataclassReader:
    kinds: tuple[Any, ...] = (DeviceReading, Accuracy, HostReading, OtherProcessChange, OutsidePeak)
    names = {kind.__name__: kind for kind in kinds}
    for feature in _FEATURES:
        names |= vars(importlib.import_module(f"ipygpumem.features.{feature}.model"))
    return DataclassReader(names, lenient=lenient)
