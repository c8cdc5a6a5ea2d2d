"""Who other processes are, as far as this user may know: the other module that imports psutil.

NVML's numbers need not be ours: a container has numbers of its own, and some drivers list those of the host. A number
is looked up only once it is certain that both mean the same process; else it stays a number, with the reason.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.from_dict import printable
from ipygpumem.features.processes.model import OtherProcess
from ipygpumem.sources.command_lines import command, short_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.features.processes.model import Relation

__all__ = ["ProcessDirectory", "own_pid"]

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's number of the outermost PID namespace."""
_ELSEWHERE = "NVML's numbers are of another PID namespace, or may be: not looked up"
_GONE = "it has ended, or this system hides it"
_DEEP = 64
_MOST = 4096
_COMMAND = 15
"""Characters that the kernel keeps of a program's name: what anybody may see of another user's process."""
_LONGEST = 100
_DIGITS = 9
_DRIFT = 2.0
"""Seconds by which a beginning may seem to move: it is told against a clock that is being set."""


@dataclass(slots=True)
class _Met:
    """A process that was looked up, with what makes sure that the number is still its own."""

    neighbour: OtherProcess
    trusted: bool


class ProcessDirectory:
    """The processes that were met on a card. Each is looked at once: one that has ended can still be named."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}

    def record(self, listed: Iterable[tuple[int, int | None]], *, trusted: bool) -> None:
        """Look at those that are new. ``trusted``: our own process stands in that list under our own number."""
        pids = [pid for pid, _ in listed]
        if len(self._met) > _MOST:
            self._met = {pid: self._met[pid] for pid in pids if pid in self._met}
        for pid in pids:
            met = self._met.get(pid)
            if met is None or (trusted and not met.trusted):
                self._met[pid] = _Met(_look(pid, trusted=trusted), trusted)

    def lookup(self, pid: int, amount: int | None = None, *, trusted: bool) -> OtherProcess:
        """A process that is on the card now."""
        met = self._met.get(pid)
        if met is None or (trusted and not met.trusted) or not _lives(met.neighbour):
            met = self._met[pid] = _Met(_look(pid, trusted=trusted), trusted)
        return met.neighbour if amount is None else replace(met.neighbour, amount=amount)

    def lookup_ended(self, pid: int, *, trusted: bool) -> tuple[OtherProcess, bool]:
        """A process that is on the card no more, and whether it lives on; what was known of it while it was there."""
        met = self._met.pop(pid, None)
        neighbour = _look(pid, trusted=trusted) if met is None else met.neighbour
        return neighbour, _lives(neighbour)


def own_pid() -> int:
    """This process's number in the namespace of the mounted /proc, which is the one that others are looked up in."""
    return _number_of(os.getpid())


@lru_cache(maxsize=1)
def _number_of(pid: int) -> int:
    try:
        return int(Path("/proc/self").readlink().name)
    except (OSError, ValueError):
        return pid


@lru_cache(maxsize=1)
def _nested() -> bool:
    """Whether this may be a PID namespace inside another one: certain is only the outermost."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return str(Path("/proc/self/ns/pid").readlink()) != _FIRST_NAMESPACE
    except OSError:
        return True


def _lives(known: OtherProcess) -> bool:
    """Whether a process is still there: numbers are given again, but not the same beginning with them."""
    import psutil

    if known.began is None:
        return False
    try:
        began = float(psutil.Process(known.pid).create_time())
    except (psutil.Error, OSError, ValueError):
        return False
    return abs(began - known.began) < _DRIFT


def _look(pid: int, *, trusted: bool) -> OtherProcess:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            mine = _same_user(process)
            if not (trusted and not _nested()) and not (mine and _drives(pid)):
                return OtherProcess(pid, None, why=_ELSEWHERE)
            return _facts(process, mine=mine)
    except psutil.NoSuchProcess:
        return OtherProcess(pid, None, why=_GONE if trusted else _ELSEWHERE)
    except (psutil.Error, OSError, ValueError):
        return OtherProcess(pid, None, why="this system does not tell")


def _drives(pid: int) -> bool:
    """Whether a process has the driver open: then its number in NVML's list is the same as here."""
    try:
        links = (str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
        return any(link.startswith(("/dev/nvidia", "/dev/dxg")) for link in links)
    except OSError:
        return False


def _same_user(process: Any) -> bool:
    if hasattr(os, "getuid"):
        return bool(process.uids().real == os.getuid())
    import psutil

    return bool(process.username() == psutil.Process().username())


def _facts(process: Any, *, mine: bool) -> OtherProcess:
    pid, began = process.pid, float(process.create_time())
    user = _user(process)
    program = printable(str(process.name()))
    if not mine:
        # beyond these characters the name would be out of the command line, which may be anything
        return OtherProcess(pid, None, program[:_COMMAND], "other", user, began=began)
    words, settings = _allowed(process.cmdline, []), _allowed(process.environ, {})
    relation: Relation = "child" if _descends(process) else "own"
    role = _role(process, program, settings, child=relation == "child")
    notebook = _clipped(settings.get("JPY_SESSION_NAME", ""))
    if relation == "child" and (role != "kernel" or notebook == _clipped(os.environ.get("JPY_SESSION_NAME", ""))):
        notebook = ""  # it inherits this one's
    return OtherProcess(
        pid,
        None,
        short_name(words) or program,
        relation,
        user,
        role=role,
        notebook=notebook,
        command=command(words),
        began=began,
    )


def _allowed(question: Any, otherwise: Any) -> Any:
    """An answer, or what stands in its place: a process may hide its environment from its own user."""
    import psutil

    try:
        return question()
    except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return otherwise


def _user(process: Any) -> str:
    if not hasattr(os, "getuid"):
        return printable(str(_allowed(process.username, "")))
    return _user_name(process.uids().real)


@lru_cache(maxsize=64)
def _user_name(number: int) -> str:
    """The name of a user, asked once: a directory service may take its time."""
    import pwd

    try:
        return printable(pwd.getpwuid(number).pw_name)
    except KeyError:  # as in most containers
        return str(number)


def _descends(process: Any) -> bool:
    """Whether this process is among the parents of another one."""
    import psutil

    here = own_pid()
    for _ in range(_DEEP):
        parent = process.ppid()
        if parent == here:
            return True
        if parent in {0, 1}:
            return False
        try:
            process = psutil.Process(parent)
        except psutil.Error:  # another user's, on a system that hides those: no parent of ours, and none below us
            return False
    return False


def _role(process: Any, program: str, settings: dict[str, str], *, child: bool) -> str:
    """What a process of this user's is there for."""
    if program == "pt_data_worker":  # PyTorch 2.6 and later name them
        return "DataLoader worker"
    rank = settings.get("RANK", "")
    if rank.isascii() and rank.isdecimal() and len(rank) <= _DIGITS and "WORLD_SIZE" in settings:
        return f"rank {rank}"
    # what a kernel starts inherits its environment, but has another parent
    if settings.get("JPY_PARENT_PID") == str(process.ppid()):
        return "kernel"
    return _worker(process.pid) if child else ""


def _worker(pid: int) -> str:
    """The name under which multiprocessing started a child: read, not asked, for the question would reap others."""
    module = sys.modules.get("multiprocessing.process")
    for one in tuple(getattr(module, "_children", ())):
        if getattr(getattr(one, "_popen", None), "pid", None) == pid:
            return _clipped(str(one.name))
    return ""


def _clipped(name: str) -> str:
    """A name on one line and of a length that a table can bear: its end, for that is the file."""
    name = printable(" ".join(name.split()))
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
