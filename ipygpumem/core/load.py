"""A report from the plain data that `Report.to_dict` made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import ReportError
from ipygpumem.core.from_dict import Plain, mapping, printable
from ipygpumem.core.grade import Grade
from ipygpumem.core.other_process import OtherProcessChange
from ipygpumem.core.reading import Counters, DeviceReading, HostReading
from ipygpumem.core.report import SCHEMA, DeviceReport, HostReport, Peak, ProfiledHost, Report
from ipygpumem.core.samples import OutsidePeak
from ipygpumem.features.limits.model import ExceededLimit
from ipygpumem.features.lines.model import DeviceLines
from ipygpumem.features.modules.model import ModuleTree
from ipygpumem.features.outside.model import OutsideMemory
from ipygpumem.features.profile.model import ProfileFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_ranges", "check_schema", "report_from"]

_NAMES: dict[str, Any] = {
    "Counters": Counters,
    "DeviceLines": DeviceLines,
    "DeviceReading": DeviceReading,
    "ExceededLimit": ExceededLimit,
    "Grade": Grade,
    "HostReading": HostReading,
    "ModuleTree": ModuleTree,
    "OtherProcessChange": OtherProcessChange,
    "OutsideMemory": OutsideMemory,
    "OutsidePeak": OutsidePeak,
    "ProfileFacts": ProfileFacts,
}
_strict, _lenient = Plain(_NAMES), Plain(_NAMES, lenient=True)
_LAST_TIME = 1 << 33
"""In the year 2242: what is later, or before 1970, is no time."""


def report_from(data: Any) -> Report:
    """The report that this was; derived figures in it are passed over, and told anew of the readings.

    Raises:
        ReportError: It is no report, or a broken one. Of a later schema than ours what we know is read.
    """
    schema = check_schema(mapping(data, ""))
    if schema <= SCHEMA:
        return _report(_strict, data)
    try:
        return _report(_lenient, data)
    except ReportError as error:
        raise ReportError(f"written by a later version (schema {schema}): {error}") from None


def check_schema(data: dict[str, Any], most: int | None = None) -> int:
    """The schema that something was written with.

    Args:
        data: What was written.
        most: The highest that will do; None takes any.

    Raises:
        ReportError: It names none, or a higher one: its figures may mean something else.
    """
    schema = data.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ReportError("it has no schema: nothing that ipygpumem wrote")
    if most is not None and schema > most:
        raise ReportError(f"written by a later version of ipygpumem (schema {schema}): this one knows up to {most}")
    return schema


def check_ranges(found: Mapping[str, Any]) -> None:
    """Look at the figures of a report that can be wrong by themselves.

    Raises:
        ReportError: A time that is none, a time or a number below zero.
    """
    if not 0 <= found.get("time", 0) < _LAST_TIME:
        raise ReportError("time is none: it counts seconds since 1970")
    for name in ("seconds", "cell"):
        if (found.get(name) or 0) < 0:
            raise ReportError(f"{name} is below zero")


def _report(plain: Plain, data: dict[str, Any]) -> Report:
    found = plain.fields(Report, data, skip=("devices", "host"))
    check_ranges(found)
    devices = mapping(data.get("devices"), "devices")
    host = mapping(data.get("host"), "host")
    return Report(
        devices={printable(name): _device(plain, printable(name), one) for name, one in devices.items()},
        host=(ProfiledHost if host.get("profiled") is True else HostReport)(
            before=plain.read(HostReading, host.get("before"), "host.before"),
            after=plain.read(HostReading, host.get("after"), "host.after"),
        ),
        **found,
    )


def _device(plain: Plain, name: str, data: Any) -> DeviceReport:
    where = f"devices.{name}"
    given = mapping(data, where)
    peaks = given.get("peaks")
    high = None
    if peaks is not None:
        exact = mapping(peaks, f"{where}.peaks").get("exact")
        counters = plain.read(Counters, peaks, f"{where}.peaks")
        high = Peak(counters, exact=exact is True)
    found = plain.fields(DeviceReport, given, where, skip=("name", "before", "after", "high"))
    return DeviceReport(
        name=name,
        before=plain.read(DeviceReading, given.get("before"), f"{where}.before"),
        after=plain.read(DeviceReading, given.get("after"), f"{where}.after"),
        high=high,
        **found,
    )
