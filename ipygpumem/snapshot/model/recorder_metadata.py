"""What our own recorder adds to a snapshot: cells, devices, dropped events, curves. As untrusted as the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ipygpumem.snapshot.reader.checks import integer, mapping, sequence, text

__all__ = ["Cell", "Own", "read_own", "read_sources"]

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a notebook cell.

    Attributes:
        number: The n of In[n], or None for code that has none.
        filename: The file name in the frames of code that the cell defines; empty where it was not known.
        start_us: Microseconds since 1970.
        end_us: Microseconds since 1970.
        success: Whether it ran through; None if unknown.
    """

    number: int | None
    filename: str
    start_us: int
    end_us: int
    success: bool | None

    @property
    def label(self) -> str:
        """``"In[3]"``, or the file name where the cell has no number."""
        return (self.filename or "(a cell)") if self.number is None else f"In[{self.number}]"


@dataclass(frozen=True, slots=True)
class Own:
    """The ``ipygpumem`` key of a file, or what stands for it where the file has none.

    Attributes:
        version: Version that wrote the file, or None if another program wrote it.
        torch: Version of torch.
        host: Name of the machine.
        cells: Runs of cells, by their beginning.
        numbers: The n of In[n] of cells that ran before the recording, by file name.
        dropped: For each device, how many allocations the ring buffer lost; None where that is not known.
        device_names: Name of each device, by index.
        device_totals: Bytes of each device, by index.
        readings: Byte counts ``before`` and ``after``, as they were written.
        curves: Further curves by name, as they were written: device, time_us, bytes.
    """

    version: str | None = None
    torch: str | None = None
    host: str | None = None
    cells: tuple[Cell, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    dropped: tuple[int | None, ...] = ()
    device_names: dict[int, str] = field(default_factory=dict)
    device_totals: dict[int, int] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)

    def dropped_of(self, device: int) -> int | None:
        """How many allocations of a device the ring buffer lost; None if the file does not say."""
        return self.dropped[device] if device < len(self.dropped) else None


def _optional(value: Any, read: Any, where: str) -> Any:
    return None if value is None else read(value, where)


def read_own(value: Any) -> Own:
    """The ``ipygpumem`` key. A later schema than ours is read as far as it looks like ours.

    Raises:
        SnapshotFormatError: A value of the wrong type; the message names it.
    """
    if value is None:
        return Own()
    own = mapping(value, "ipygpumem")
    integer(own.get("schema", _SCHEMA), "ipygpumem: schema", 1)
    recording = mapping(own.get("recording", {}), "ipygpumem: recording")
    devices = [
        mapping(device, f"ipygpumem: devices[{number}]")
        for number, device in enumerate(sequence(own.get("devices", ()), "ipygpumem: devices"))
    ]
    index = [
        integer(device.get("index", number), "ipygpumem: device index", 0) for number, device in enumerate(devices)
    ]
    return Own(
        version=_optional(own.get("version"), text, "ipygpumem: version"),
        torch=_optional(own.get("torch"), text, "ipygpumem: torch"),
        host=_optional(own.get("host"), text, "ipygpumem: host"),
        cells=_cells(own.get("cells", ())),
        numbers={
            name: integer(number, "ipygpumem: numbers", 0)
            for name, number in mapping(own.get("numbers", {}), "ipygpumem: numbers").items()
        },
        dropped=tuple(
            _optional(count, integer, "ipygpumem: dropped")
            for count in sequence(recording.get("dropped", ()), "ipygpumem: dropped")
        ),
        device_names={
            number: text(device["name"], "ipygpumem: device name")
            for number, device in zip(index, devices, strict=True)
            if device.get("name") is not None
        },
        device_totals={
            number: integer(device["total"], "ipygpumem: device total", 0)
            for number, device in zip(index, devices, strict=True)
            if device.get("total") is not None
        },
        readings=mapping(own.get("readings", {}), "ipygpumem: readings"),
        curves=mapping(own.get("curves", {}), "ipygpumem: curves"),
    )


def _cells(value: Any) -> tuple[Cell, ...]:
    cells = []
    for place, item in enumerate(sequence(value, "ipygpumem: cells")):
        where = f"ipygpumem: cells[{place}]"
        cell = mapping(item, where)
        success = cell.get("success")
        cells.append(
            Cell(
                number=_optional(cell.get("number"), integer, f"{where}: number"),
                filename=_optional(cell.get("filename"), text, f"{where}: filename") or "",
                start_us=integer(cell.get("start_us"), f"{where}: start_us", 0),
                end_us=integer(cell.get("end_us"), f"{where}: end_us", 0),
                success=success if type(success) is bool else None,
            )
        )
    return tuple(sorted(cells, key=lambda cell: (cell.start_us, -cell.end_us)))


def read_sources(value: Any) -> dict[str, str]:
    """The ``source_code`` key: text by file name."""
    if value is None:
        return {}
    sources = mapping(value, "source_code")
    return {name: text(source, "source_code: a text") for name, source in sources.items()}
