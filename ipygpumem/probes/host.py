"""This process in main memory: the only module that imports psutil."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipygpumem.ledger.reading import HostReading
from ipygpumem.units import KIB

__all__ = ["namespace_pids", "read_host", "reset_peak"]

_STATUS = Path("/proc/self/status")


@lru_cache(maxsize=1)
def _process(pid: int) -> Any:
    import psutil

    return psutil.Process(pid)


@lru_cache(maxsize=1)
def _total() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def read_host(pinned: int | None = None, *, available: bool = False) -> HostReading:
    """Resident memory now and its high-water mark; ``available`` of the machine only when asked for (50 us)."""
    memory = _process(os.getpid()).memory_info()
    return HostReading(
        rss=int(memory.rss),
        peak=_high_water(memory),
        pinned=pinned,
        total=_total(),
        available=_available() if available else None,
    )


def _available() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _high_water(memory: Any) -> int | None:
    value = _status_field("VmHWM")
    if value is not None:
        return value
    windows_peak = getattr(memory, "peak_wset", None)
    return None if windows_peak is None else int(windows_peak)


def _status_field(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), _STATUS.open("rb", buffering=0) as status:
        text = status.read(4096)
        at = text.find(name.encode() + b":")
        return int(text[at:].split(None, 2)[1]) * KIB if at >= 0 else None
    return None


def reset_peak() -> bool:
    """Start the high-water mark anew from the present level (Linux). The user's ru_maxrss falls with it."""
    with contextlib.suppress(OSError), Path("/proc/self/clear_refs").open("wb", buffering=0) as switch:
        switch.write(b"5")
        return True
    return False


def namespace_pids() -> tuple[int, ...]:
    """The numbers of this process, own first: one in each PID namespace that the mounted /proc knows of."""
    pids = [os.getpid()]
    with contextlib.suppress(OSError, ValueError), _STATUS.open(encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("NSpid:"):
                pids += [int(pid) for pid in line.split()[1:]]
    return tuple(dict.fromkeys(pids))
