"""Data classes for a rank or an engine: its identity, host, devices and measurements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ipygpumem.core.errors import ReportError
from ipygpumem.core.report import Report
from ipygpumem.core.serialization import DataclassReader, Serializable, check_schema, mapping
from ipygpumem.features.lines.model import AllocationSite

SCHEMA = 1  # schema version of the JSON data that `RankResult.to_dict` returns
MAX_RANKS = 1 << 24
_MAX_DEVICES = 1024
_MAX_LAUNCH_IDS = 100
_MAX_TEXT = 200  # maximum length of strings read from another process

State = Literal["done", "running", "late", "died", "missing", "absent"]
"""State of a process. ``done``: it sent a report. ``running``: it has started, but its current state is unknown.
``late``: it is still running. ``died``: it terminated before it sent a report. ``missing``: it sent no report.
``absent``: it is not monitored, for example because ipygpumem is not installed."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device of a rank or an engine.

    Attributes:
        name: Name in PyTorch, such as ``cuda:0``.
        uuid: UUID, which is the same in all processes on the host; None if it is unknown.
        label: Product name.
        total: Total memory in bytes; None if it is unknown.
    """

    name: str
    uuid: str | None
    label: str
    total: int | None


@dataclass(frozen=True, slots=True)
class RankInfo(Serializable):
    """Identity of the process that wrote a report. Unknown values are None unless stated otherwise.

    Attributes:
        clock: Offset of the shared file system's clock from the host's clock, in seconds.
        began: Start of the measurement by the host's clock, in seconds since the Unix epoch; 0 if unknown.
        launch: IDs as pairs (kind, value) that distinguish this launch of the ranks from other launches.
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
        """Start of the measurement in seconds since the Unix epoch, by the clock of the shared file system.

        If ``clock`` is None, the time refers to the clock of the host.
        """
        return self.began + (self.clock or 0.0)


@dataclass(frozen=True, slots=True)
class RankPeak:
    """Peak and memory usage over time of one device in a snapshot, with a limited number of lines and intervals.

    Attributes:
        device: Device index.
        requested: Requested memory at the peak, in bytes.
        dropped: Number of allocations whose events the ring buffer dropped; None if unknown.
        lines: Lines of code that allocated the most memory in use at the peak, in descending order of size.
        rest: Total size of the allocations by all other lines.
        curve: Pairs (seconds, bytes): start and peak usage of each of 120 intervals, and the end of the recording with
            the usage at the end. Empty if there are no timestamps.
        start_us: Start of the measurement in microseconds since the Unix epoch; None if unknown. The times in
            ``curve`` are relative to this start or, if it is unknown, to the first event.
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
class RankResult(Serializable):
    """The result of one rank or engine.

    Attributes:
        name: Rank or engine ID, such as ``"0"``, or a file name if the rank is unknown.
        state: State of the process.
        origin: Identity of the process; None if it is unknown.
        report: Report of the process; None unless ``state`` is ``done``.
        peaks: Peak of each device in the snapshot; empty if there is no snapshot.
        note: Additional information, such as the reason why there is no report; empty if there is none.
        snapshot: Path of the snapshot on the host of the process; None if there is no snapshot.
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
        return "" if self.origin is None else self.origin.host

    @property
    def highest(self) -> RankPeak | None:
        return max(self.peaks, key=lambda peak: peak.requested, default=None)

    def device_info(self, name: str) -> DeviceInfo | None:
        devices = () if self.origin is None else self.origin.devices
        return next((device for device in devices if device.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data without the report's lines and modules, which can be large."""
        report = None if self.report is None else replace(self.report, lines=(), modules=()).to_dict()
        return {"schema": SCHEMA, "report": report, **Serializable.to_dict(self)}


_READER = DataclassReader({"AllocationSite": AllocationSite})


def rank_result_from(data: Any, name: str) -> RankResult:
    check_schema(mapping(data, ""))
    if "state" not in data:
        raise ReportError("not the report of a rank: the field 'state' is missing")
    report = data.get("report")
    fields = _READER.fields(RankResult, data)
    result = RankResult(name, report=None if report is None else Report.from_dict(report), **fields)
    if result.state == "done" and report is None:
        raise ReportError("the field 'report' is missing")
    origin = None if result.origin is None else _checked(result.origin)
    return replace(result, origin=origin, note=result.note[:_MAX_TEXT])


def _checked(info: RankInfo) -> RankInfo:
    for number in (info.rank, info.world):
        if number is not None and not 0 <= number < MAX_RANKS:
            raise ReportError(f"origin: {number} is not a valid rank or world size")
    if not 0 <= info.began < 1 << 33:
        raise ReportError("origin.began is not a timestamp in seconds since the Unix epoch")
    if len(info.devices) > _MAX_DEVICES:
        raise ReportError(
            f"origin.cards contains {len(info.devices):,} devices: at most {_MAX_DEVICES:,} are supported"
        )
    if len(info.launch) > _MAX_LAUNCH_IDS:
        raise ReportError(f"origin.launch contains {len(info.launch):,} IDs: at most {_MAX_LAUNCH_IDS} are supported")
    return replace(info, host=info.host[:_MAX_TEXT], version=info.version[:_MAX_TEXT])
