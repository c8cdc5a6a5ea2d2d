"""Host memory and loaded shared libraries of this process; names, users and command lines of other processes.

In a container, NVML may report PIDs of the host's PID namespace. A process is therefore described only if its PID is
known to belong to the PID namespace of this process, or if the process with this PID there has the same user as this
process and has opened a GPU.

psutil is imported on first use because the shell commands for snapshots require only numpy.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipygpumem.core.introspection import attempt
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import HostReading
from ipygpumem.core.redaction import redact_command, short_name
from ipygpumem.core.text import printable
from ipygpumem.core.units import KIB

_STATUS = "/proc/self/status"
_MAPS = "/proc/self/maps"
_MEMORY = re.compile(rb"VmHWM:\s*(\d+) kB\nVmRSS:\s*(\d+) kB")


@lru_cache(maxsize=1)
def _total() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def process_start(pid: int) -> str:
    """Return the start time of a process as an opaque string, which is empty if the time is unknown.

    On Linux, the time is in clock ticks since boot, because psutil's value changes when the system clock is set.
    """
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    import psutil

    return str(attempt(lambda: round(psutil.Process(pid).create_time())) or "")


def read_host(pinned: int | None = None, *, available: bool = False) -> HostReading:
    """If ``available`` is true, the available memory is also read, which takes about 50 us longer."""
    rss, peak = _linux_memory() or _portable_memory()
    available_memory = None
    if available:
        import psutil

        available_memory = int(psutil.virtual_memory().available)
    return HostReading(rss, peak, pinned, _total(), available_memory)


def _linux_memory() -> tuple[int, int] | None:
    """Return the resident memory and its peak in bytes; None if they cannot be read.

    A single read is three times as fast as psutil.
    """
    try:
        match = _MEMORY.search(os.pread(_status(os.getpid()), 4096, 0))
    except OSError:
        return None
    return None if match is None else (int(match[2]) * KIB, int(match[1]) * KIB)


@lru_cache(maxsize=1)
def _status(pid: int) -> int:  # noqa: ARG001 (cache key: a forked child must not use its parent's file)
    """Return a cached file descriptor of ``/proc/self/status``, because opening it takes as long as reading it."""
    return os.open(_STATUS, os.O_RDONLY)


def _portable_memory() -> tuple[int, int | None]:
    import psutil

    memory = psutil.Process().memory_info()
    windows_peak = getattr(memory, "peak_wset", None)
    return int(memory.rss), None if windows_peak is None else int(windows_peak)


def reset_peak() -> bool:
    """Reset the peak resident memory of this process, and with it ``ru_maxrss``.

    Return whether this succeeded. The peak can be reset only on Linux.
    """
    with contextlib.suppress(OSError), Path("/proc/self/clear_refs").open("wb", buffering=0) as clear_refs:
        clear_refs.write(b"5")
        return True
    return False


def namespace_pids() -> tuple[int, ...]:
    """Return the PIDs of this process in all PID namespaces visible in /proc, starting with ``os.getpid()``."""
    pids = [os.getpid()]
    with contextlib.suppress(OSError, ValueError), Path(_STATUS).open(encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("NSpid:"):
                pids += [int(pid) for pid in line.split()[1:]]
    return tuple(dict.fromkeys(pids))


def loaded_library(name: str) -> str | None:
    """Return the path of the first loaded shared library whose file name starts with ``name``, or None.

    The result is always None on operating systems other than Linux.
    """
    with contextlib.suppress(OSError), Path(_MAPS).open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "".join(line.split(maxsplit=5)[5:]).strip()
            if path.rpartition("/")[2].startswith(name):
                return path
    return None


_INITIAL_NAMESPACE = "pid:[4026531836]"
_FOREIGN_PID = "not looked up, because NVML's PID may belong to another PID namespace"
_ENDED = "the process has ended or is hidden from this user"
_UNREADABLE = "the operating system provides no information about the process"
_MAX_PROCESSES = 4096
_KERNEL_NAME_LENGTH = 15
"""Maximum length of a program name in the Linux kernel. Longer names of other users' processes are truncated."""
_MAX_NAME_LENGTH = 100
_MAX_RANK_DIGITS = 9
_START_TOLERANCE = 2.0  # tolerance in seconds when comparing start times, which depend on an adjustable clock


class ProcessInfoCache:
    """Cache of descriptions of other processes.

    The argument ``trusted`` of all methods states whether NVML's PIDs belong to the PID namespace of this process.
    """

    def __init__(self) -> None:
        self._processes: dict[tuple[int, bool], OtherProcess] = {}

    def record(self, entries: Iterable[tuple[int, int | None]], *, trusted: bool) -> None:
        keys = [(pid, trusted) for pid, _ in entries]
        if len(self._processes) > _MAX_PROCESSES:
            self._processes = {key: self._processes[key] for key in keys if key in self._processes}
        for key in keys:
            if key not in self._processes:
                self._processes[key] = _look_up(*key)

    def lookup(self, pid: int, amount: int | None = None, *, trusted: bool) -> OtherProcess:
        process = self._processes.get((pid, trusted))
        if process is None or not _is_running(process):
            process = self._processes[pid, trusted] = _look_up(pid, trusted)
        return process if amount is None else replace(process, amount=amount)

    def lookup_all(self, entries: Iterable[tuple[int, int | None]], *, trusted: bool) -> tuple[OtherProcess, ...]:
        processes = [self.lookup(pid, nbytes, trusted=trusted) for pid, nbytes in entries]
        return tuple(sorted(processes, key=lambda process: (-(process.amount or 0), process.pid)))

    def lookup_ended(self, pid: int, *, trusted: bool) -> tuple[OtherProcess, bool]:
        process = self._processes.pop((pid, trusted), None) or _look_up(pid, trusted)
        return process, _is_running(process)


def own_pid() -> int:
    """Return the PID of this process in the PID namespace of the mounted /proc."""
    return int(attempt(lambda: Path("/proc/self").readlink().name) or os.getpid())


@lru_cache(maxsize=1)
def _may_be_nested() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return bool(attempt(lambda: str(Path("/proc/self/ns/pid").readlink())) != _INITIAL_NAMESPACE)


def _is_running(process: OtherProcess) -> bool:
    import psutil

    if process.began is None:
        return False
    start = attempt(lambda: psutil.Process(process.pid).create_time())
    return start is not None and bool(abs(start - process.began) < _START_TOLERANCE)


def _look_up(pid: int, trusted: bool) -> OtherProcess:
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            same_user = _has_same_user(process)
            if (trusted and not _may_be_nested()) or (same_user and _uses_driver(pid)):
                return _describe(process, same_user=same_user)
            return OtherProcess(pid, None, why=_FOREIGN_PID)
    except psutil.NoSuchProcess:
        return OtherProcess(pid, None, why=_ENDED if trusted else _FOREIGN_PID)
    except (psutil.Error, OSError, ValueError):
        return OtherProcess(pid, None, why=_UNREADABLE)


def _uses_driver(pid: int) -> bool:
    try:
        links = (str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
        return any(link.startswith(("/dev/nvidia", "/dev/dxg")) for link in links)
    except OSError:
        return False


def _has_same_user(process: Any) -> bool:
    import psutil

    if hasattr(os, "getuid"):
        return bool(process.uids().real == os.getuid())
    return bool(process.username() == psutil.Process().username())


def _describe(process: Any, *, same_user: bool) -> OtherProcess:
    pid, began = process.pid, float(process.create_time())
    user = printable(str(_read(process.username, "")))
    program = printable(str(process.name()))
    if not same_user:
        # psutil takes longer names from the command line, which may contain secrets
        return OtherProcess(pid, None, program[:_KERNEL_NAME_LENGTH], "other", user, began=began)
    arguments, environment = _read(process.cmdline, []), _read(process.environ, {})
    child = _is_descendant(process)
    role = _role(process, program, environment, child=child)
    notebook = _clip(environment.get("JPY_SESSION_NAME", ""))
    if child and (role != "kernel" or notebook == _clip(os.environ.get("JPY_SESSION_NAME", ""))):
        notebook = ""  # inherited from this process
    return OtherProcess(
        pid,
        None,
        short_name(arguments) or program,
        "child" if child else "own",
        user,
        role=role,
        notebook=notebook,
        command=redact_command(arguments),
        began=began,
    )


def _read(getter: Any, default: Any) -> Any:
    import psutil

    try:
        return getter()
    except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return default


def _is_descendant(process: Any) -> bool:
    return any(parent.pid == own_pid() for parent in _read(process.parents, []))


def _role(process: Any, program: str, environment: dict[str, str], *, child: bool) -> str:
    if program == "pt_data_worker":  # process name set by PyTorch 2.6 and later
        return "DataLoader worker"
    rank = environment.get("RANK", "")
    if rank.isascii() and rank.isdecimal() and len(rank) <= _MAX_RANK_DIGITS and "WORLD_SIZE" in environment:
        return f"rank {rank}"
    # children of a kernel inherit its environment, but have another parent
    if environment.get("JPY_PARENT_PID") == str(process.ppid()):
        return "kernel"
    return _multiprocessing_name(process.pid) if child else ""


def _multiprocessing_name(pid: int) -> str:
    """Return the name that ``multiprocessing`` assigned to a child process, or an empty string if there is none.

    ``active_children()`` is not called because it joins ended children.
    """
    module = sys.modules.get("multiprocessing.process")
    for child in tuple(getattr(module, "_children", ())):
        if getattr(getattr(child, "_popen", None), "pid", None) == pid:
            return _clip(str(child.name))
    return ""


def _clip(name: str) -> str:
    name = printable(" ".join(name.split()))
    return name if len(name) <= _MAX_NAME_LENGTH else f"…{name[1 - _MAX_NAME_LENGTH :]}"
