"""GPU memory reports for Jupyter notebooks and PyTorch programs.

After ``%load_ext ipygpumem``, each cell that changes GPU memory usage is followed by a one-line report that splits the
change into PyTorch tensors, PyTorch's cache, memory outside PyTorch and other processes. Without IPython, use
``with ipygpumem.measure() as m: ...`` and then ``m.report``.

Importing this package imports neither PyTorch nor IPython. Most public names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import (
    DeviceError,
    GPUMemLimitExceeded,
    IpyGpuMemError,
    NvmlError,
    OptionError,
    RecordingError,
    ReportError,
    SnapshotError,
)
from ipygpumem.core.version import __version__

if TYPE_CHECKING:
    from ipygpumem.compat.zeta import print_cuda_memory_usage, save_memory_snapshot
    from ipygpumem.core.reading import Baseline, Reading
    from ipygpumem.core.report import Report
    from ipygpumem.features.explain.collect import explain
    from ipygpumem.features.fit.collect import fit
    from ipygpumem.features.fit.model import Fit
    from ipygpumem.features.history.reports import Reports, load_reports
    from ipygpumem.features.holders.collect import holders
    from ipygpumem.features.holders.model import Holder, Holders
    from ipygpumem.features.processes.collect import processes
    from ipygpumem.features.ranks.collect import read_ranks
    from ipygpumem.features.ranks.merge import merge_reports
    from ipygpumem.measure_block import measure
    from ipygpumem.snapshot import Snapshot

    last: Report | None
    reports: Reports

__all__ = [
    "Baseline",
    "DeviceError",
    "Fit",
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
    "fit",
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

_MODULES = {
    "Baseline": "core.reading",
    "Fit": "features.fit.model",
    "Holder": "features.holders.model",
    "Holders": "features.holders.model",
    "Reading": "core.reading",
    "Report": "core.report",
    "Snapshot": "snapshot",
    "explain": "features.explain.collect",
    "fit": "features.fit.collect",
    "holders": "features.holders.collect",
    "load_reports": "features.history.reports",
    "measure": "measure_block",
    "merge_reports": "features.ranks.merge",
    "print_cuda_memory_usage": "compat.zeta",
    "processes": "features.processes.collect",
    "read_ranks": "features.ranks.collect",
    "save_memory_snapshot": "compat.zeta",
}


def __getattr__(name: str) -> Any:
    if name in {"last", "reports"}:
        from ipygpumem.features.history.reports import session_reports

        reports = session_reports()
        return reports if name == "reports" else next(reversed(reports), None)
    if name in _MODULES:
        return getattr(importlib.import_module(f"ipygpumem.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ipygpumem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def reading() -> Reading:
    """Return a `Reading` of the current memory usage. Example: ``reading().devices["cuda:0"].free``."""
    from ipygpumem.measurement.runtime import current

    return current().reading()


def preload_pytorch() -> Baseline:
    """Initialize CUDA on PyTorch's current device, run common kernels there and return the baseline.

    Later reports then exclude the memory of the CUDA context and of these kernels. Without a GPU, the baseline contains
    only host memory, and its ``note`` states the reason.
    """
    from ipygpumem.measurement.runtime import current

    return current().preload()


def load_ipython_extension(shell: Any) -> None:
    """Load the extension, as ``%load_ext ipygpumem`` does."""
    from ipygpumem.jupyter.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Unload the extension, as ``%unload_ext ipygpumem`` does."""
    from ipygpumem.jupyter.extension import unload

    unload(shell)
