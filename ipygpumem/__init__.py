"""Every notebook cell says where the GPU's memory went.

After ``%load_ext ipygpumem`` each cell that moves memory is followed by one line: PyTorch tensors, PyTorch's cache,
memory outside PyTorch, other processes. Without IPython: ``with ipygpumem.measure() as m: ...`` and then ``m.report``.

Importing this package imports nothing else; every name below brings what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipygpumem.errors import (
        DeviceError,
        GPUMemLimitExceeded,
        IpyGpuMemError,
        NvmlError,
        OptionError,
        RecordingError,
        ReportError,
        SnapshotError,
    )
    from ipygpumem.ledger import Baseline, Holder, Holders, Reading, Report
    from ipygpumem.session import Reports, load_reports, measure, print_cuda_memory_usage, save_memory_snapshot
    from ipygpumem.session.explain import explain
    from ipygpumem.session.holders import holders
    from ipygpumem.session.merge import merge_reports
    from ipygpumem.session.processes import processes
    from ipygpumem.session.ranks import read_ranks
    from ipygpumem.snapshot import Snapshot

    last: Report | None
    reports: Reports

__version__ = "0.1.0"

__all__ = [
    "Baseline",
    "DeviceError",
    "GPUMemLimitExceeded",
    "Holder",
    "Holders",
    "IpyGpuMemError",
    "NvmlError",
    "OptionError",
    "Reading",
    "RecordingError",
    "Report",
    "ReportError",
    "Snapshot",
    "SnapshotError",
    "__version__",
    "explain",
    "holders",
    "last",
    "load_ipython_extension",
    "load_reports",
    "measure",
    "merge_reports",
    "preload_pytorch",
    "print_cuda_memory_usage",
    "processes",
    "read_ranks",
    "reading",
    "reports",
    "save_memory_snapshot",
    "unload_ipython_extension",
]

_HOMES = {
    "Baseline": "ledger",
    "DeviceError": "errors",
    "GPUMemLimitExceeded": "errors",
    "Holder": "ledger",
    "Holders": "ledger",
    "IpyGpuMemError": "errors",
    "NvmlError": "errors",
    "OptionError": "errors",
    "Reading": "ledger",
    "RecordingError": "errors",
    "Report": "ledger",
    "ReportError": "errors",
    "Snapshot": "snapshot",
    "SnapshotError": "errors",
    "explain": "session.explain",
    "holders": "session.holders",
    "load_reports": "session",
    "measure": "session",
    "merge_reports": "session.merge",
    "print_cuda_memory_usage": "session",
    "read_ranks": "session.ranks",
    "processes": "session.processes",
    "save_memory_snapshot": "session",
}


def __getattr__(name: str) -> Any:
    """Public names on first use; ``last`` and ``reports`` are the session's, new at each look."""
    if name in {"last", "reports"}:
        from ipygpumem.session import current

        return getattr(current(), name)
    if name in _HOMES:
        return getattr(importlib.import_module(f"ipygpumem.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ipygpumem' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


def reading() -> Reading:
    """Every counter of this process and its devices now, in bytes: ``reading().devices["cuda:0"].outside``."""
    from ipygpumem.session import current

    return current().reading()


def preload_pytorch() -> Baseline:
    """Start CUDA on PyTorch's current device, run the first kernels there and take the baseline.

    Later measurements are then not charged with what every program needs once. Where PyTorch has no GPU the baseline
    is the host's, and its ``note`` says why.
    """
    from ipygpumem.session import current

    return current().preload()


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext ipygpumem``."""
    from ipygpumem.notebook.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext ipygpumem``."""
    from ipygpumem.notebook.extension import unload

    unload(shell)
