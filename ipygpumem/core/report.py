"""The settled facts of one finished measurement: what moved between two readings, and how far to trust it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.samples import NOISE
from ipygpumem.core.units import MIB, duration, signed

if TYPE_CHECKING:
    from ipygpumem.core.other_process import OtherProcessChange
    from ipygpumem.core.reading import Counters, DeviceReading, HostReading
    from ipygpumem.core.samples import OutsidePeak
    from ipygpumem.features.limits.model import ExceededLimit
    from ipygpumem.features.lines.model import DeviceLines
    from ipygpumem.features.modules.model import ModuleTree
    from ipygpumem.features.outside.model import OutsideMemory
    from ipygpumem.features.profile.model import ProfileFacts

__all__ = ["SCHEMA", "DeviceReport", "HostReport", "Peak", "ProfiledHost", "RecordingFacts", "Report"]

SCHEMA = 1
"""Of a report as plain data; core/FORMAT.md describes it. It rises when a key changes its meaning."""
_COUNTER = "allocator counter"
_CARD_NOISE = 16 * MIB
_ONE_END = "the card could not be read by one and the same query at both ends"
_NOBODYS = "in no process's entry: page tables, managed memory or hidden processes"
_PROPERTIES = "CUDA's device properties"


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest level of each allocator counter while a measurement ran, in bytes.

    ``exact`` speaks of ``allocated``. False: the counters were not reset and stayed below an older record, so that it
    is an upper bound; counters that are not reset may give bounds for the other three either way.
    """

    counters: Counters
    exact: bool = True


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What one measurement moved on one device. Every figure is a change in bytes, or None with a grade's reason.

    ``sampled`` is what samples of the card prove about memory outside PyTorch; None where they prove nothing that the
    two readings do not tell. ``unsampled`` is why samples are missing, for some of the time or all of it; else empty.
    """

    name: str
    before: DeviceReading
    after: DeviceReading
    high: Peak | None = None
    sampled: OutsidePeak | None = None
    unsampled: str = ""

    @property
    def held(self) -> int | None:
        """Allocated after minus allocated before: what the cell's tensors still hold."""
        return _difference(self.before.allocated, self.after.allocated)

    @property
    def peak(self) -> int | None:
        """Highest allocated while it ran minus allocated before."""
        if self.high is None or self.before.allocated is None:
            return None
        return self.high.counters.allocated - self.before.allocated

    @property
    def pending(self) -> int | None:
        """Blocks freed but waiting for a stream."""
        return _difference(self.before.pending, self.after.pending)

    @property
    def cached(self) -> int | None:
        """PyTorch's cache."""
        return _difference(self.before.cached, self.after.cached)

    @property
    def process_wide(self) -> bool:
        """Whether both readings know this process's own entry, so that nobody else's memory is in the figures."""
        return self.before.process is not None and self.after.process is not None

    @property
    def outside(self) -> int | None:
        """Memory outside PyTorch: exact for this process, else (grade ``device``) of everybody on the card."""
        if self.process_wide:
            return _difference(self.before.outside, self.after.outside)
        if not self._comparable:
            return None
        return _difference(_around(self.before), _around(self.after))

    @property
    def outside_peak(self) -> int | None:
        """The highest of memory outside PyTorch over its level before, at least; None where nothing proves one.

        With what another process had that came and went in between: see `ledger.samples`.
        """
        proved = [one for one in (self.accounted, None if self.sampled is None else self.sampled.change) if one]
        return max(proved, default=None)

    @property
    def accounted(self) -> int | None:
        """What the driver's accounting of this process proves of that; None where it is off, or proves no more.

        Its record of the most that this process ever had rose meanwhile: to what it had at some instant. Of that
        PyTorch's were at most as many bytes as it ever had reserved meanwhile.
        """
        before, after, base = self.before.highest, self.after.highest, self.before.outside
        if before is None or after is None or after <= before or base is None or self.high is None:
            return None
        found = after - self.high.counters.reserved - base
        return found if found > max(self.outside or 0, 0) + NOISE else None

    @property
    def others(self) -> int | None:
        """Other processes in NVML's list."""
        return _difference(self.before.others, self.after.others) if self.process_wide else None

    @property
    def unattributed(self) -> int | None:
        """What moved on the card and in no process's entry: managed memory, page tables, hidden processes."""
        if not self.process_wide or not self._comparable:
            return None
        return _difference(self.before.unattributed, self.after.unattributed)

    @property
    def process(self) -> int | None:
        """NVML's entry of this process."""
        return _difference(self.before.process, self.after.process)

    @property
    def used(self) -> int | None:
        """The whole card after the measurement, the driver's reserve included. A level, not a change."""
        return self.after.used

    @property
    def total(self) -> int | None:
        """The card's size. A level, not a change."""
        return self.after.total

    @property
    def started(self) -> bool:
        """Whether this measurement brought the CUDA context of this process onto the device."""
        return self.after.context and not self.before.context

    @property
    def ooms(self) -> int:
        """Allocations that ended in an out-of-memory error."""
        return _difference(self.before.ooms, self.after.ooms) or 0

    @property
    def retries(self) -> int:
        """Allocations for which PyTorch had to give its whole cache back first."""
        return _difference(self.before.retries, self.after.retries) or 0

    def moved(self, least: int) -> bool:
        """Whether this process moved memory here: by ``least`` bytes or more, or into the wall.

        Where only the whole card is known, other processes' comings and goings within 16 MiB are noise.
        """
        figures = [
            self.held,
            self.peak if self.high is not None and self.high.exact else None,
            self.cached,
            self.pending,
        ]
        if self.process_wide or (self.outside is not None and abs(self.outside) >= _CARD_NOISE):
            figures.append(self.outside)
        figures.append(self.outside_peak)
        changed = any(figure is not None and abs(figure) >= least for figure in figures)
        return changed or self.ooms > 0 or self.retries > 0

    @property
    def _comparable(self) -> bool:
        return self.before.source == self.after.source and self.after.source is not None

    @property
    def grades(self) -> dict[str, Grade]:
        """The grade of each figure by name."""
        torch_grade = self._torch_grade()
        grades = dict.fromkeys(("held", "pending", "cached"), torch_grade)
        grades["peak"] = self._peak_grade(torch_grade)
        grades["outside"] = self._outside_grade()
        grades["outside_peak"] = self._sampled_grade()
        whole_card = grade("unknown", f"no attribution by process: {self.after.why}")
        grades["others"] = grades["unattributed"] = whole_card
        if self.process_wide:
            grades["others"] = grades["unattributed"] = grade("unknown", _ONE_END)
        if self.others is not None:
            grades["others"] = grade("exact", "NVML's process list: what this container may see")
        if self.unattributed is not None:
            grades["unattributed"] = grade("exact", _NOBODYS)
        for name in ("used", "total"):
            known = getattr(self, name) is not None
            grades[name] = (
                grade("exact", self.after.source or _PROPERTIES) if known else grade("unknown", self.after.why)
            )
        return grades

    def _torch_grade(self) -> Grade:
        if self.held is None:
            return grade("unknown", self.after.torch_why or self.before.torch_why or "PyTorch's counters are not there")
        return grade("exact", self.after.torch_why or _COUNTER)

    def _peak_grade(self, torch_grade: Grade) -> Grade:
        if self.high is None or self.peak is None:
            return torch_grade if self.held is None else grade("unknown", "the counters could not be read at the end")
        if self.high.exact:
            return torch_grade
        return grade("bound", "the counters are left alone (peaks = untouched) and an older record stands above")

    def _outside_grade(self) -> Grade:
        if self.outside is None:
            return grade("unknown", self.after.torch_why if self.after.reserved is None else self.after.why)
        if self.process_wide:
            return grade("exact", f"NVML's entry of this process minus PyTorch's reserved; {self.after.why}")
        return grade("device", f"this process or another: {self.after.why}")

    def _sampled_grade(self) -> Grade:
        found = self.sampled
        accounted = self.accounted
        if accounted is not None and accounted == self.outside_peak:
            why = "NVML's accounting of this process rose to what it had at one instant, less PyTorch's peak reserved"
            return Grade("sampled", why)
        missing = f"; {self.unsampled}" if self.unsampled else ""
        if found is None:
            return grade("unknown", f"no sample proves more than the readings at both ends{missing}")
        whose = "this process or one that came and went" if self.process_wide else "this process or another"
        return Grade(
            "sampled",
            f"{found.count:,} samples of the card from {duration(found.since)} on, largest gap {duration(found.gap)}"
            f"{missing}, against the most that PyTorch can have had reserved; {whose}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Every figure, both readings, the peaks and the grades, as plain data."""
        names = (
            *("held", "peak", "cached", "pending", "outside", "outside_peak", "others", "unattributed", "process"),
            *("used", "total"),
        )
        return {
            **{name: getattr(self, name) for name in names},
            "started": self.started,
            "ooms": self.ooms,
            "retries": self.retries,
            "peaks": None if self.high is None else {**asdict(self.high.counters), "exact": self.high.exact},
            "sampled": None if self.sampled is None else asdict(self.sampled),
            "unsampled": self.unsampled,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "grades": {name: asdict(one) for name, one in self.grades.items()},
        }


def _around(reading: DeviceReading) -> int | None:
    """Everything on the card but PyTorch's reserved and the driver's own."""
    if reading.used is None or reading.reserved is None:
        return None
    return reading.used - (reading.driver_reserved or 0) - reading.reserved


_OLDER = "the kernel's high-water mark is older than this measurement"
_PROFILED = "torch.profiler's own records are in it"


@dataclass(frozen=True, slots=True)
class HostReport:
    """What one measurement moved in this process's main memory: changes in bytes.

    Attributes:
        before: The reading at the begin.
        after: The reading at the end.
        profiled: Whether torch.profiler was at work, whose records take resident memory: figures are then at most.
    """

    before: HostReading
    after: HostReading
    profiled: ClassVar[bool] = False

    @property
    def held(self) -> int | None:
        """Resident memory after minus before."""
        return _difference(self.before.rss, self.after.rss)

    @property
    def peak(self) -> int | None:
        """Highest resident memory minus that before; the grade tells exact from bound."""
        if self.after.peak is None or self.before.rss is None:
            return None
        # the kernel sums what each core has counted only now and then: its mark can lag behind a level that was read
        return max(self.after.peak, self.before.rss, self.after.rss or 0) - self.before.rss

    @property
    def pinned(self) -> int | None:
        """PyTorch's page-locked memory."""
        return _difference(self.before.pinned, self.after.pinned)

    @property
    def exact(self) -> bool:
        """Whether the high-water mark is this measurement's own: it rose, or it was the level itself at the start."""
        if self.profiled or self.before.peak is None or self.after.peak is None or self.before.rss is None:
            return False
        return self.after.peak > self.before.peak or self.before.peak <= self.before.rss

    @property
    def grades(self) -> dict[str, Grade]:
        """The grade of each figure by name."""
        unknown = grade("unknown", "this system does not tell")
        held = peak = unknown
        if self.held is not None:
            held = grade("bound", _PROFILED) if self.profiled else grade("exact", "resident memory of this process")
        if self.peak is not None:
            peak = (
                grade("exact", "the kernel's high-water mark")
                if self.exact
                else grade("bound", _PROFILED if self.profiled else _OLDER)
            )
        return {
            "held": held,
            "peak": peak,
            "pinned": (
                grade("exact", "PyTorch's host allocator")
                if self.pinned is not None
                else grade("unknown", "CUDA has not started, or this PyTorch does not count pinned memory")
            ),
        }

    def to_dict(self) -> dict[str, Any]:
        """Every figure, both readings and the grades, as plain data."""
        return {
            "held": self.held,
            "peak": self.peak,
            "pinned": self.pinned,
            "profiled": self.profiled,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "grades": {name: asdict(one) for name, one in self.grades.items()},
        }


@dataclass(frozen=True, slots=True)
class ProfiledHost(HostReport):
    """The same under torch.profiler. A class of its own, for a field would take memory in every report."""

    profiled: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """What became of a measurement's allocation history.

    ``path``: where it lies, None when it could not be written (``error`` says why). ``size`` in bytes, ``events`` over
    all devices, ``dropped`` the events that the ring lost, None when that cannot be known. ``own`` False: the user was
    recording already, and the file is cut out of that trace.
    """

    path: str | None
    size: int = 0
    events: int = 0
    dropped: int | None = 0
    own: bool = True
    error: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The settled facts of one finished measurement.

    ``cell`` is the In number (None outside a stored cell), ``seconds`` the wall time, ``success`` False when the code
    raised. ``notes`` are sentences for the reader. ``lines`` (of each device, the code line by line), ``modules``
    (of each device, the model's tree) and ``excesses`` (what was over a limit) are there where they were asked for.
    ``neighbours`` are the other processes that moved.
    ``code`` is the first line of the code, clipped (see `ipygpumem.core.code_label`). No value, error or
    traceback of the user's is kept.
    """

    devices: dict[str, DeviceReport]
    host: HostReport
    seconds: float
    cell: int | None = None
    cell_id: str | None = None
    success: bool | None = True
    time: float = 0.0
    notes: tuple[str, ...] = ()
    recording: RecordingFacts | None = field(default=None)
    lines: tuple[DeviceLines, ...] = ()
    excesses: tuple[ExceededLimit, ...] = ()
    modules: tuple[ModuleTree, ...] = ()
    libraries: tuple[OutsideMemory, ...] = ()
    profile: ProfileFacts | None = None
    neighbours: tuple[OtherProcessChange, ...] = ()
    code: str = ""

    @classmethod
    def from_dict(cls, data: Any) -> Report:
        """The report that `to_dict` made this of.

        Raises:
            ReportError: It is no report, or a broken one.
        """
        from ipygpumem.core.load import report_from

        return report_from(data)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: bytes as int, unknown as None."""
        return {
            "schema": SCHEMA,
            "code": self.code,
            "cell": self.cell,
            "cell_id": self.cell_id,
            "seconds": self.seconds,
            "success": self.success,
            "time": self.time,
            "notes": list(self.notes),
            "recording": None if self.recording is None else asdict(self.recording),
            "lines": [one.to_dict() for one in self.lines],
            "excesses": [asdict(one) for one in self.excesses],
            "modules": [one.to_dict() for one in self.modules],
            "libraries": [one.to_dict() for one in self.libraries],
            "profile": None if self.profile is None else asdict(self.profile),
            "neighbours": [asdict(one) for one in self.neighbours],
            "devices": {name: device.to_dict() for name, device in self.devices.items()},
            "host": self.host.to_dict(),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def __repr__(self) -> str:
        """Short, for a prompt: ``<Report In [7], 2.31 s: cuda:0 held +400.0 MiB, peak +1.2 GiB>``."""
        parts = [f"{name} {_figures(device)}" for name, device in self.devices.items()] or [
            f"host {_figures(self.host)}"
        ]
        where = "" if self.cell is None else f"In [{self.cell}], "
        return f"<Report {where}{duration(self.seconds)}: {'; '.join(parts)}>"


def _figures(part: DeviceReport | HostReport) -> str:
    texts = ((name, getattr(part, name)) for name in ("held", "peak"))
    return ", ".join(f"{name} {'unknown' if value is None else signed(value)}" for name, value in texts)
