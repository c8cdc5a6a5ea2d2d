"""One process of several, a rank or an engine: which process it is, where it ran, and what it measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import DataReader, check_schema, mapping
from ipygpumem.core.report import Report
from ipygpumem.core.to_dict import PlainData
from ipygpumem.features.lines.model import CodeLine

SCHEMA = 1
"""Version of the JSON form: ``{"schema", "state", "origin", "report", ...}``."""
MAX_RANKS = 1 << 24
_MAX_TEXT = 200
"""Characters that are kept of a text from another process."""

State = Literal["done", "running", "late", "died", "missing", "absent"]
"""``done``: it has a report. ``running``: it has started; nothing else is known. ``late``: it is still running.
``died``: its process has ended. ``missing``: it sent no report. ``absent``: it is not monitored (ipygpumem is not
installed there)."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as the process names it; ``uuid`` is the same in every process on the machine."""

    name: str
    uuid: str | None
    label: str
    total: int | None


@dataclass(frozen=True, slots=True)
class RankInfo(PlainData):
    """The process that a report comes from: its number in the run and the number of ranks, if it knows them.

    Attributes:
        version: Version of ipygpumem.
        clock: Seconds that the clock of the shared folder is ahead of the machine's; None without a folder.
        began: Start of the measurement, in seconds since 1970 by the machine's clock.
        launch: What distinguishes this launch of the ranks from others, as (kind, value).
    """

    rank: int | None = None
    world: int | None = None
    host: str = ""
    pid: int = 0
    version: str = ""
    devices: tuple[DeviceInfo, ...] = field(default=(), metadata={"key": "cards"})
    clock: float | None = None
    began: float = 0.0
    launch: tuple[tuple[str, str], ...] = ()

    @property
    def start(self) -> float:
        """Start of the measurement by the clock of the shared folder."""
        return self.began + (self.clock or 0.0)


@dataclass(frozen=True, slots=True)
class RankPeak:
    """Summary of a recording on one device: a few kilobytes, however large the recording is.

    Attributes:
        requested: Requested bytes at the peak.
        dropped: Allocations that the ring buffer dropped; None if unknown.
        lines: The lines of code that hold most of the peak, largest first; ``rest``: all others together.
        curve: (seconds, bytes): the highest level in each of about 120 intervals; empty without timestamps.
        start_us: Start of the measurement in microseconds since 1970, according to the recording; 0 of the curve.
    """

    device: int
    requested: int
    events: int
    dropped: int | None
    lines: tuple[CodeLine, ...]
    rest: CodeLine
    curve: tuple[tuple[float, int], ...] = ()
    start_us: int | None = None


@dataclass(frozen=True, slots=True)
class RankResult(PlainData):
    """One process of several, with what it measured.

    Attributes:
        name: Its rank, such as ``"0"``, or the name of its file.
        report: What it measured; None unless ``state`` is ``done``.
        note: Additional information, such as why there is no report.
        snapshot: Path of its recording, on its own machine.
    """

    name: str = field(metadata={"key": None})
    state: State
    origin: RankInfo | None = None
    report: Report | None = field(default=None, metadata={"key": None})
    peaks: tuple[RankPeak, ...] = ()
    note: str = ""
    snapshot: str | None = None

    @property
    def host(self) -> str:
        """Name of its machine; empty if unknown."""
        return "" if self.origin is None else self.origin.host

    @property
    def highest(self) -> RankPeak | None:
        """The recorded peak of the device where it is highest."""
        return max(self.peaks, key=lambda peak: peak.requested, default=None)

    def device_facts(self, name: str) -> DeviceInfo | None:
        """The device of this name; None if it is unknown."""
        devices = () if self.origin is None else self.origin.devices
        return next((device for device in devices if device.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the report's lines and modules, which can be large."""
        report = None if self.report is None else replace(self.report, lines=(), modules=()).to_dict()
        return {"schema": SCHEMA, "report": report, **PlainData.to_dict(self)}


_READER = DataReader({"CodeLine": CodeLine})


def rank_result_from(data: Any, name: str) -> RankResult:
    """Rebuild what `RankResult.to_dict` wrote; `ReportError` if the data is invalid."""
    check_schema(mapping(data, ""))
    if "state" not in data:
        raise ReportError("not the report of a rank: it has no state")
    report = data.get("report")
    fields = _READER.fields(RankResult, data)
    result = RankResult(name, report=None if report is None else Report.from_dict(report), **fields)
    if result.state == "done" and report is None:
        raise ReportError("report is missing")
    origin = None if result.origin is None else _checked(result.origin)
    return replace(result, origin=origin, note=result.note[:_MAX_TEXT])


def _checked(info: RankInfo) -> RankInfo:
    for number in (info.rank, info.world):
        if number is not None and not 0 <= number < MAX_RANKS:
            raise ReportError(f"origin: {number} is not a valid rank or number of ranks")
    if not 0 <= info.began < 1 << 33:
        raise ReportError("origin.began is not a time in seconds since 1970")
    return replace(info, host=info.host[:_MAX_TEXT], version=info.version[:_MAX_TEXT])
