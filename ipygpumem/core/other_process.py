"""Other processes on a device, and how their memory changed during a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Relation = Literal["child", "own", "other", "unknown"]
"""``child``: started by this process or one of its children; ``own``: of the same user; ``other``: of another user."""

Event = Literal["", "began", "came", "left", "ended"]
"""``began`` and ``ended``: the process itself. ``came`` and ``left``: it only started or stopped using the device."""


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Another process on a device. The field names are those of the report format.

    Attributes:
        pid: Its id in NVML's list.
        amount: Its bytes on the device; None if the driver does not report them, and in an `OtherProcessChange`.
        name: Program and script (``python train.py``); of other users' processes only the program.
        relation: Its relation to this process.
        user: The user's name.
        role: Its purpose, if it can be determined: ``kernel``, ``rank 1``, ``DataLoader worker``.
        notebook: The notebook that it runs, as the Jupyter server named it. Only of this user's processes.
        command: Its command line without values that may be secret. Only of this user's processes.
        began: When it was started, in seconds since 1970.
        why: Why details are missing.
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
    def file(self) -> str:
        """The notebook's file name without folders."""
        return self.notebook.replace("\\", "/").rpartition("/")[2]

    @property
    def label(self) -> str:
        """A short description, empty if nothing is known: ``kernel of train.ipynb``, ``python, user ada``."""
        if self.role == "kernel":
            return f"kernel of {self.file}" if self.file else f"kernel, {self.name}"
        description = ", ".join(part for part in (self.role, self.name) if part)
        if self.relation == "child":
            return f"{description or 'unnamed'}, child of this process"
        if self.relation == "own" and self.file:
            return f"{description}, from {self.file}"
        if self.relation == "other" and self.user:
            return f"{description or 'unnamed'}, user {self.user}"
        return description

    @property
    def title(self) -> str:
        """The pid with the label: ``pid 4711 (kernel of train.ipynb)``."""
        return f"pid {self.pid} ({self.label})" if self.label else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class OtherProcessChange:
    """The change of another process's memory on one device during a measurement, in bytes.

    ``before`` and ``after`` are 0 if the process was not on the device. The field names are those of the report format.
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
        """Whether its memory changed, or it started or stopped using the device."""
        return bool(self.change or self.event)
