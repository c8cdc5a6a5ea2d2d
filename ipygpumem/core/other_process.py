"""Other processes on a device, and changes in their memory during a measurement."""

from __future__ import annotations

from typing import Literal

from ipygpumem.core.data_classes import dataclass

Relation = Literal["child", "own", "other", "unknown"]
"""``child``: a descendant of this process; ``own``: another process of the same user; ``other``: a process of another
user; ``unknown``: a process about which no details can be read."""

Event = Literal["", "began", "came", "left", "ended"]
"""``began``, ``ended``: the process started or ended; ``came``, ``left``: it started or stopped using the device."""


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Another process that uses a device. The field names are also the keys in report files.

    Attributes:
        pid: Process ID in NVML's process list.
        amount: Memory usage on the device in bytes; None if unknown, and always None in `OtherProcessChange`.
        name: Program and script (``python train.py``); for processes of other users, only the program.
        user: Name of the user who owns the process; empty if unknown.
        role: Purpose of the process, if it can be determined: ``kernel``, ``rank 1``, ``DataLoader worker``.
        notebook: Notebook path according to the Jupyter server. Empty for processes of other users.
        command: Command line without values that may be secret. Empty for processes of other users.
        began: Start time in seconds since the Unix epoch; None if unknown.
        why: Reason why details are missing.
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
        return self.notebook.replace("\\", "/").rpartition("/")[2]

    @property
    def label(self) -> str:
        """Short description, such as ``kernel of train.ipynb`` or ``python, user ada``; may be empty."""
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
        """Process ID and label, such as ``pid 4711 (kernel of train.ipynb)``."""
        return f"pid {self.pid} ({self.label})" if self.label else f"pid {self.pid}"


@dataclass(frozen=True, slots=True)
class OtherProcessChange:
    """Change in the memory of another process on one device during a measurement.

    The field names are also the keys in report files.

    Attributes:
        before, after: Memory usage at the start and the end in bytes; 0 if the process was not using the device, or if
            its memory usage was unknown.
        event: What happened to the process during the measurement; empty if it used the device throughout.
    """

    device: str
    neighbour: OtherProcess
    before: int
    after: int
    event: Event = ""

    @property
    def change(self) -> int:
        return self.after - self.before
