"""Observers of torch.profiler, which must not run at the same time as some collectors.

* torch.profiler and the collector of memory outside PyTorch cannot share CUPTI's activity buffers. A profiler receives
  no records if it starts while such a collector is running (observed with torch 2.11 and CUPTI 13.0).
* Preparing a second profiler ends the first profiler, whose result is then empty. If the second profiler runs in
  another thread, the process crashes when the first profiler stops (observed with torch 2.13).
"""

from __future__ import annotations

import sys

from ipygpumem.sources.pytorch import CallObservers

_MODULE = "torch.autograd.profiler"


def profiling() -> bool:
    """Return whether torch.profiler is running."""
    return bool(getattr(sys.modules.get(_MODULE), "_is_profiler_enabled", False))


class ProfilerObservers(CallObservers):
    """Observers of torch.profiler. ``current().state(ProfilerObservers)`` returns the instance of this process.

    Observers are notified before a profiler is prepared or started, and after it has stopped. An exception raised by
    an observer before the start prevents the profiler from starting.
    """

    def __init__(self) -> None:
        super().__init__(_MODULE, before=("_prepare_profiler", "_enable_profiler"), after=("_disable_profiler",))
