"""One process of several: who it is, where it ran, and what it measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import Plain, mapping
from ipygpumem.core.load import check_schema, report_from
from ipygpumem.features.lines.model import CodeLine

if TYPE_CHECKING:
    from ipygpumem.core.report import DeviceReport, Report

__all__ = ["MOST_RANKS", "SCHEMA", "DeviceFacts", "RankInfo", "RankPeak", "RankResult", "State", "rank_result_from"]

SCHEMA = 1
"""Of a member as plain data: ``{"schema", "state", "origin", "report"}``."""

State = Literal["done", "running", "late", "died", "missing", "absent"]
"""``done``: it has a report. ``running``: it began, and no more is known. ``late``: it is still at work. ``died``: its
process is gone. ``missing``: it sent nothing. ``absent``: it was never under watch (the package is not there)."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of this process and the card that it is: ``uuid`` is the same in every process on the machine."""

    name: str
    uuid: str | None
    label: str
    total: int | None


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Whose report it is.

    Attributes:
        rank: Number in the run; None where the process does not know it.
        world: How many ranks the run has; None where the process does not know it.
        host: Name of the machine.
        pid: Process id there.
        version: Of ipygpumem.
        cards: The devices that this process uses.
        clock: Seconds that the clock of the shared folder is ahead of this machine's; None where there is no folder.
        began: When the measurement began, in seconds since 1970 by this machine's clock.
        launch: What tells this launch of the ranks from others, as (what, value).
    """

    rank: int | None = None
    world: int | None = None
    host: str = ""
    pid: int = 0
    version: str = ""
    cards: tuple[DeviceFacts, ...] = ()
    clock: float | None = None
    began: float = 0.0
    launch: tuple[tuple[str, str], ...] = ()

    def card(self, device: str) -> DeviceFacts | None:
        """The card behind a device's name; None where that is not known."""
        return next((one for one in self.cards if one.name == device), None)


@dataclass(frozen=True, slots=True)
class RankPeak:
    """One device's peak out of a recording, small whatever the recording was.

    Attributes:
        device: Its index.
        requested: Bytes that the program asked for, at the highest point.
        events: Events of the recording.
        dropped: Allocations that the ring lost; None where that is not known.
        lines: The lines that hold most of it, the largest first.
        rest: What the other lines hold.
        curve: (seconds, bytes): the highest level in each of some hundred stretches of time; empty without times.
        start_us: When the measurement began, in microseconds since 1970, as the recording has it: the curve's 0.
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
class RankResult:
    """One process of several, with what it measured.

    Attributes:
        name: What it is called: ``"0"``, or a file's name where nothing better is known.
        state: What became of it.
        origin: Whose report it is; None where nothing was heard.
        report: What it measured; None but for ``done``.
        peaks: Out of its recording, where there is one.
        note: What else is to be said, such as why there is no report.
        snapshot: The recording's path, on this member's machine; None where there is none.
    """

    name: str
    state: State
    origin: RankInfo | None = None
    report: Report | None = None
    peaks: tuple[RankPeak, ...] = ()
    note: str = ""
    snapshot: str | None = None

    @property
    def devices(self) -> list[DeviceReport]:
        """The devices that its process uses."""
        if self.report is None:
            return []
        return [one for one in self.report.devices.values() if one.before.context or one.after.context]

    @property
    def host(self) -> str:
        """Name of its machine; empty where not known."""
        return "" if self.origin is None else self.origin.host

    @property
    def highest(self) -> RankPeak | None:
        """The device with the highest recorded peak."""
        return max(self.peaks, key=lambda peak: peak.requested, default=None)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; lines of code and modules of the report stay behind, as they are large."""
        report = None if self.report is None else replace(self.report, lines=(), modules=()).to_dict()
        return {
            "schema": SCHEMA,
            "state": self.state,
            "origin": None if self.origin is None else asdict(self.origin),
            "report": report,
            "peaks": [asdict(peak) for peak in self.peaks],
            "note": self.note,
            "snapshot": self.snapshot,
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())


_PLAIN = Plain({"CodeLine": CodeLine, "RankInfo": RankInfo, "DeviceFacts": DeviceFacts, "RankPeak": RankPeak})
MOST_RANKS = 1 << 24
"""No rank is as high."""
_WORDS = 200
"""Characters of a text that somebody else wrote."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A member as it is written, apart from its report."""

    state: State
    origin: RankInfo | None = None
    peaks: tuple[RankPeak, ...] = ()
    note: str = ""
    snapshot: str | None = None


def rank_result_from(data: Any, name: str) -> RankResult:
    """The member that `RankResult.to_dict` made this of.

    Raises:
        ReportError: It is none, or a broken one.
    """
    check_schema(mapping(data, ""))
    if "state" not in data:
        raise ReportError("no report of a rank: it has no state")
    found = _PLAIN.read(_Written, data)
    origin = found.origin
    if origin is not None:
        for number in (origin.rank, origin.world):
            if number is not None and not 0 <= number < MOST_RANKS:
                raise ReportError(f"origin: {number} is no rank")
        origin = replace(origin, host=origin.host[:_WORDS], version=origin.version[:_WORDS])
        if not 0 <= origin.began < 1 << 33:
            raise ReportError("origin.began is no time: it counts seconds since 1970")
    report = data.get("report")
    if found.state == "done" and report is None:
        raise ReportError("report is missing")
    return RankResult(
        name,
        found.state,
        origin,
        None if report is None else report_from(report),
        found.peaks,
        found.note[:_WORDS],
        found.snapshot,
    )
