"""Host memory usage, process IDs and loaded shared libraries of this process.

psutil is imported on first use because the shell commands for snapshots require only numpy.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path

from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import HostReading
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
    """Return the usage of host memory. If ``available`` is true, add the available memory, which takes 50 us longer."""
    rss, peak = _linux_memory() or _portable_memory()
    unused = None
    if available:
        import psutil

        unused = int(psutil.virtual_memory().available)
    return HostReading(rss, peak, pinned, _total(), unused)


def _linux_memory() -> tuple[int, int] | None:
    """Return the current and peak resident memory from a single read, which is three times as fast as psutil."""
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
    """Reset the peak resident memory of this process (Linux only), which also resets ``ru_maxrss``."""
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
    """Return the path of the first loaded shared library whose file name starts with ``name`` (Linux only)."""
    with contextlib.suppress(OSError), Path(_MAPS).open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "".join(line.split(maxsplit=5)[5:]).strip()
            if path.rpartition("/")[2].startswith(name):
                return path
    return None
