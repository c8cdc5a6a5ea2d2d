"""From the two readings of a measurement and the peaks between them to a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipygpumem.core.from_dict import printable
from ipygpumem.core.reading import DeviceReading, shared
from ipygpumem.core.report import DeviceReport, HostReport, Report

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.core.reading import Reading
    from ipygpumem.core.report import Peak, RecordingFacts
    from ipygpumem.core.samples import OutsidePeak

__all__ = ["CODE_WIDTH", "Code", "Label", "build_report", "code_label"]


CODE_WIDTH = 80
"""Maximum length of a code label in characters."""
_SEARCHED = 2_000
"""Characters of the code that are searched for its first line: a cell may contain a page of data."""


def code_label(code: str) -> str:
    """The first line of the code that is not a comment or a cell magic, clipped to 80 characters."""
    lines = [line.strip() for line in code[:_SEARCHED].splitlines() if line.strip()]
    statements = (line for line in lines if not line.startswith(("#", "%%")))
    label = printable(next(statements, lines[0] if lines else "").replace("\t", " "))
    return label if len(label) <= CODE_WIDTH else label[: CODE_WIDTH - 1] + "…"


@dataclass(frozen=True)
class Code:
    """The code that was measured, as far as collectors need it.

    ``sources`` and ``numbers`` are the text and the In numbers of notebook cells by file name. ``block`` is the file
    name, first line, last line and name of the measured code; None if it is not known.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    block: tuple[str, int, int, str] | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """What was measured: a cell of a notebook (``cell`` is its In number), a statement or a block.

    ``filename`` is that of the cell in tracebacks.
    """

    code: str = ""
    cell: int | None = None
    cell_id: str | None = None
    filename: str | None = None


def build_report(
    before: Reading,
    after: Reading,
    peaks: Mapping[str, Peak],
    *,
    seconds: float,
    label: Label = Label(),
    success: bool | None = True,
    devices: Collection[str] | None = None,
    sampled: Mapping[str, OutsidePeak] | None = None,
    sampling_problems: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
    recording: RecordingFacts | None = None,
) -> Report:
    """Build the report of one measurement from its readings and its peaks by device name.

    ``devices`` are the names of the devices to report on; None for all that this process uses. ``sampled`` has the
    peaks of memory outside PyTorch that samples prove, and ``sampling_problems`` why samples are missing, by
    device name.
    """
    reports = {}
    for name, end in after.devices.items():
        start = before.devices.get(name) or _before_context(end)
        if name not in devices if devices is not None else not (start.context or end.context):
            continue
        reports[name] = DeviceReport(
            before=start,
            after=shared(start, end),
            high=peaks.get(name),
            sampled=(sampled or {}).get(name),
            unsampled=(sampling_problems or {}).get(name, ""),
        )
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
    """The reading before CUDA started in this process: its own figures were 0, those of the device are unknown."""
    own = ("allocated", "reserved", "active", "requested", "inactive_split", "retries", "ooms", "process")
    zeros: dict[str, Any] = {name: 0 for name in own if getattr(end, name) is not None}
    return DeviceReading(name=end.name, context=False, mode=end.mode, why=end.why, torch_why=end.torch_why, **zeros)
