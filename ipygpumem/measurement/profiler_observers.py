"""Notification of uses of torch.profiler, which must not run together with other collectors.

* torch.profiler and our records of memory outside PyTorch cannot both use CUPTI's buffers: while our callbacks are
  registered, a profiler that starts gets no records (seen with torch 2.11 and CUPTI 13.0).
* A second profiler ends the first while it prepares, and the first has an empty result. In another thread the process
  crashes when the first one stops (seen with torch 2.13).
"""

from __future__ import annotations

import sys

from ipygpumem.sources.pytorch import CallObservers

_MODULE = "torch.autograd.profiler"


def profiling() -> bool:
    """Return whether torch.profiler is running."""
    return bool(getattr(sys.modules.get(_MODULE), "_is_profiler_enabled", False))


class ProfilerObservers(CallObservers):
    """Observers of torch.profiler, one object per runtime: ``current().state(ProfilerObservers)``.

    An observer is notified each time a profiler prepares or starts, and each time it has stopped. If it raises an error
    before, that profiler does not start.
    """

    def __init__(self) -> None:
        super().__init__(_MODULE, before=("_prepare_profiler", "_enable_profiler"), after=("_disable_profiler",))
