"""This process in main memory: one of the two modules that import psutil."""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipygpumem.core.reading import HostReading
from ipygpumem.core.units import KIB

__all__ = ["begin_of", "namespace_pids", "read_host", "reset_peak"]

_STATUS = "/proc/self/status"
_MEMORY = re.compile(rb"VmHWM:\s*(\d+) kB\nVmRSS:\s*(\d+) kB")


@lru_cache(maxsize=1)
def _process(pid: int) -> Any:
    import psutil

    return psutil.Process(pid)


@lru_cache(maxsize=1)
def _total() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def begin_of(pid: int) -> str:
    """When a process of this machine began: text that no other of the same number has; empty where it cannot be told.

    On Linux in ticks since the machine began, which all processes read alike: psutil's times follow the clock.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    import psutil

    try:
        return str(round(psutil.Process(pid).create_time()))
    except (psutil.Error, OSError, ValueError):
        return ""


def read_host(pinned: int | None = None, *, available: bool = False) -> HostReading:
    """Resident memory now and its high-water mark; ``available`` of the machine only when asked for (50 us)."""
    rss, peak = _linux_memory() or _other_memory()
    return HostReading(
        rss=rss,
        peak=peak,
        pinned=pinned,
        total=_total(),
        available=_available() if available else None,
    )


def _linux_memory() -> tuple[int, int] | None:
    """Both figures of one instant, in a third of the time that the library takes for one of them."""
    try:
        found = _MEMORY.search(os.pread(_status(os.getpid()), 4096, 0))
    except OSError:
        return None
    return None if found is None else (int(found[2]) * KIB, int(found[1]) * KIB)


@lru_cache(maxsize=1)
def _status(pid: int) -> int:  # noqa: ARG001 (one for each process: a fork would read its parent)
    """The kernel's page on this process, kept open: opening it costs as much as reading it."""
    return os.open(_STATUS, os.O_RDONLY)


def _other_memory() -> tuple[int, int | None]:
    memory = _process(os.getpid()).memory_info()
    windows_peak = getattr(memory, "peak_wset", None)
    return int(memory.rss), None if windows_peak is None else int(windows_peak)


def _available() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def reset_peak() -> bool:
    """Start the high-water mark anew from the present level (Linux). The user's ru_maxrss falls with it."""
    with contextlib.suppress(OSError), Path("/proc/self/clear_refs").open("wb", buffering=0) as switch:
        switch.write(b"5")
        return True
    return False


def namespace_pids() -> tuple[int, ...]:
    """The numbers of this process, own first: one in each PID namespace that the mounted /proc knows of."""
    pids = [os.getpid()]
    with contextlib.suppress(OSError, ValueError), Path(_STATUS).open(encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("NSpid:"):
                pids += [int(pid) for pid in line.split()[1:]]
    return tuple(dict.fromkeys(pids))
