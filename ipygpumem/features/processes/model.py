"""Other processes on a card: who they are, as far as one may know, and what each did during a measurement."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.report import DeviceReport

__all__ = ["DeviceProcesses", "Event", "OtherProcess", "OtherProcessChange", "Relation", "other_process_changes"]

Relation = Literal["child", "own", "other", "unknown"]
"""``child``: this process started it, or its parent; ``own``: of the same user; ``other``: of another user."""

Event = Literal["", "began", "came", "left", "ended"]
"""``began`` and ``ended``: the process itself; ``came`` and ``left``: it was there before, or lives on elsewhere."""


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Another process on the card.

    Attributes:
        pid: Its number in NVML's list.
        amount: Its bytes on the card; None where the driver does not tell, and in an `OtherProcessChange`.
        name: Program and script of this user's processes (``python train.py``), of others' the program alone.
        relation: Whose it is.
        user: The user's name.
        role: What it is there for, where that shows: ``kernel``, ``rank 1``, ``DataLoader worker``.
        notebook: The notebook from which it was started, as its Jupyter server named it; of this user's only.
        command: Its command line with secrets blotted out; of this user's only.
        began: When it was started, in seconds since 1970.
        why: Why nothing more is known.
    """

    pid: int
    amount: int | None
    name: str = ""
    relation: Relation = "unknown"
    user: str = ""
    role: str = ""
    notebook: str = ""
    command: str = ""
    began: float | None = None
    why: str = ""

    @property
    def label(self) -> str:
        """Who it is, in a few words; empty where nobody knows: ``kernel of train.ipynb``, ``python, of user ada``."""
        file = self.notebook.replace("\\", "/").rpartition("/")[2]
        if self.role == "kernel":
            return f"kernel of {file}" if file else f"kernel, {self.name}"
        what = ", ".join(part for part in (self.role, self.name) if part)
        if self.relation == "child":
            return f"{what or 'unnamed'}, child of this process"
        if self.relation == "own" and file:
            return f"{what}, from {file}"
        if self.relation == "other" and self.user:
            return f"{what or 'unnamed'}, of user {self.user}"
        return what

    @property
    def title(self) -> str:
        """With its number: ``pid 4711 (kernel of train.ipynb)``."""
        return f"pid {self.pid} ({self.label})" if self.label else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class OtherProcessChange:
    """What a neighbour did on one device during a measurement; bytes.

    ``before`` and ``after``: what it had; 0 where it was not in the list.
    """

    device: str
    neighbour: OtherProcess
    before: int
    after: int
    event: Event = ""

    @property
    def change(self) -> int:
        """After minus before."""
        return self.after - self.before

    @property
    def moved(self) -> bool:
        """Whether anything happened."""
        return bool(self.change or self.event)


@dataclass(frozen=True, slots=True)
class DeviceProcesses:
    """Every process on one card at one instant; bytes.

    Attributes:
        device: As PyTorch names it, or as nvidia-smi counts where this process has not started CUDA.
        own: This process's entry; None where it is not known which that is.
        pid: The number of this process in that list; None as above.
        neighbours: The others, the largest first.
        used: What the card has given away without the driver's own reserve, as nvidia-smi shows it where NVML tells.
        unattributed: Of it, what is in nobody's entry; None where that cannot be told.
        why: What is to be known of the list.
        label: The card's name.
        source: Who tells what is used; empty for NVML.
    """

    device: str
    own: int | None
    pid: int | None
    neighbours: tuple[OtherProcess, ...]
    used: int | None = None
    unattributed: int | None = None
    why: str = ""
    label: str = ""
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def other_process_changes(
    device: DeviceReport, who: Callable[[int, Event], tuple[OtherProcess, Event]], *, standing: bool = False
) -> tuple[OtherProcessChange, ...]:
    """Each neighbour that moved, the largest change first; their changes add up to the device's `others`.

    Args:
        device: A settled report.
        who: Gives a neighbour by its number, and what became of it where it ``came`` into the list or ``left`` it.
        standing: Those that did not move come along.
    """
    if not device.process_wide or device.before.others is None or device.after.others is None:
        return ()
    before, after = dict(device.before.listed), dict(device.after.listed)
    found = []
    for pid in before | after:
        old, new = before.get(pid) or 0, after.get(pid) or 0
        listed: Event = "came" if pid not in before else "left" if pid not in after else ""
        if old != new or listed or standing:
            neighbour, event = who(pid, listed)
            if before.keys() == after.keys() == {pid}:  # the sums are these very numbers: one object for many reports
                old, new = device.before.others, device.after.others
            found.append(OtherProcessChange(device.name, _public(neighbour), old, new, event))
    return tuple(sorted(found, key=lambda one: (-abs(one.change), -one.after, one.neighbour.pid)))


@lru_cache(maxsize=256)
def _public(one: OtherProcess) -> OtherProcess:
    """Without its command line, for a report is logged and given away; thousands of reports share the one object."""
    return replace(one, amount=None, command="")
