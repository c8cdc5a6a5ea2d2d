"""Where the columns meet: measuring without IPython, the session's baseline and reports."""

from ipygpumem.session.block import measure
from ipygpumem.session.reports import Reports, load_reports
from ipygpumem.session.session import Session, current
from ipygpumem.session.zeta import print_cuda_memory_usage, save_memory_snapshot

__all__ = [
    "Reports",
    "Session",
    "current",
    "load_reports",
    "measure",
    "print_cuda_memory_usage",
    "save_memory_snapshot",
]
