"""A rank or an engine: its identification, its host and devices, and its measurements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ipygpumem.core.errors import ReportError
from ipygpumem.core.report import Report
from ipygpumem.core.serialization import DataReader, PlainData, check_schema, mapping
from ipygpumem.features.lines.model import AllocationSite

SCHEMA = 1
"""Version of the JSON form: ``{"schema", "state", "origin", "report", ...}``."""
MAX_RANKS = 1 << 24
_MAX_TEXT = 200
"""Maximum length of strings read from another process."""

State = Literal["done", "running", "late", "died", "missing", "absent"]
"""``done``: the process sent a report. ``running``: it has started, but its current state is unknown. ``late``: it is
still running. ``died``: it terminated before it sent a report. ``missing``: it sent no report. ``absent``: it is not
monitored, for example because ipygpumem is not installed."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device, named as in the process; ``uuid`` is the same in all processes on the host."""

    name: str
    uuid: str | None
    label: str
    total: int | None


@dataclass(frozen=True, slots=True)
class RankInfo(PlainData):
    """Identification of the process that wrote a report, with its rank and the world size if they are known.

    Attributes:
        version: Version of ipygpumem.
        clock: Offset in seconds of the shared folder's clock from the host's clock; None without a folder.
        began: Start of the measurement by the host's clock, in seconds since the Unix epoch.
        launch: Pairs (kind, value) that distinguish this launch of the ranks from other launches.
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
    """Summary of a snapshot on one device, whose size does not depend on the size of the snapshot.

    Attributes:
        requested: Requested memory in bytes at the peak.
        events: Number of recorded events.
        dropped: Number of allocations dropped from the ring buffer; None if unknown.
        lines: The lines of code that hold most of the peak, largest first; ``rest`` is the total of all other lines.
        curve: (seconds, bytes) with the peak of each of about 120 intervals; empty without timestamps.
        start_us: Start of the measurement in microseconds since the Unix epoch, which is time zero of ``curve``.
    """

    device: int
    requested: int
    events: int
    dropped: int | None
    lines: tuple[AllocationSite, ...]
    rest: AllocationSite
    curve: tuple[tuple[float, int], ...] = ()
    start_us: int | None = None


@dataclass(frozen=True, slots=True)
class RankResult(PlainData):
    """The result of one rank or engine.

    Attributes:
        name: Its rank, such as ``"0"``, or the name of its file.
        report: Its report; None unless ``state`` is ``done``.
        note: Additional information, such as the reason for a missing report.
        snapshot: Path of its snapshot on its own host.
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
        """Name of its host; empty if unknown."""
        return "" if self.origin is None else self.origin.host

    @property
    def highest(self) -> RankPeak | None:
        """The peak of the device with the highest recorded peak."""
        return max(self.peaks, key=lambda peak: peak.requested, default=None)

    def device_info(self, name: str) -> DeviceInfo | None:
        """Return the device with this name; None if it is unknown."""
        devices = () if self.origin is None else self.origin.devices
        return next((device for device in devices if device.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data without the report's lines and modules, which can be large."""
        report = None if self.report is None else replace(self.report, lines=(), modules=()).to_dict()
        return {"schema": SCHEMA, "report": report, **PlainData.to_dict(self)}


_READER = DataReader({"AllocationSite": AllocationSite})


def rank_result_from(data: Any, name: str) -> RankResult:
    """Create a result from the data returned by `RankResult.to_dict`; `ReportError` if the data is invalid."""
    check_schema(mapping(data, ""))
    if "state" not in data:
        raise ReportError("not the report of a rank: state is missing")
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
        raise ReportError("origin.began is not a timestamp in seconds since the Unix epoch")
    return replace(info, host=info.host[:_MAX_TEXT], version=info.version[:_MAX_TEXT])
