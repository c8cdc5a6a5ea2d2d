"""What can go wrong, as one tree.

::

    IpyGpuMemError                 root: catch this to catch them all
    ├── OptionError                a word, number or size that means nothing here (also a ValueError)
    │   └── DeviceError            a device that is not there
    ├── GPUMemLimitExceeded        a cell or block took more than it was allowed
    ├── RecordingError             an allocation history that cannot be recorded or saved
    ├── SnapshotError              a file that is no snapshot, or a broken one (the message says what and where)
    │   ├── SnapshotFormatError    not of a snapshot's shape
    │   ├── SnapshotUnsafeError    a pickle that wants to run code or to build what no snapshot holds
    │   └── SnapshotLimitError     larger, deeper or slower than the stated bounds
    ├── ReportError                a file of reports that is none, or a broken one (the message says which line)
    ├── NvmlError                  NVML is absent or refuses; the reading goes on without it
    └── CuptiError                 CUPTI is absent or refuses; memory outside PyTorch has no names then

Each message is one line. In a notebook they arrive as ``UsageError``: one red line, no traceback.
"""

from typing import Any

__all__ = [
    "CuptiError",
    "DeviceError",
    "GPUMemLimitExceeded",
    "IpyGpuMemError",
    "NvmlError",
    "OptionError",
    "RecordingError",
    "ReportError",
    "SnapshotError",
    "SnapshotFormatError",
    "SnapshotLimitError",
    "SnapshotUnsafeError",
    "first_line",
]


class IpyGpuMemError(Exception):
    """Root of this package's exceptions."""


class OptionError(IpyGpuMemError, ValueError):
    """A word, number or size that means nothing here."""


class DeviceError(OptionError):
    """A device that is not there."""


class GPUMemLimitExceeded(IpyGpuMemError):  # noqa: N818 (it says what happened, and stands in people's CI logs)
    """A cell or block took more memory than it was allowed.

    Attributes:
        excesses: What was over its limit: `ipygpumem.features.limits.model.ExceededLimit`.
    """

    def __init__(self, message: str, excesses: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.excesses = excesses


class RecordingError(IpyGpuMemError):
    """An allocation history that cannot be recorded or saved."""


class ReportError(IpyGpuMemError):
    """A file of reports that is none, or a broken one."""


class SnapshotError(IpyGpuMemError):
    """A file that is no snapshot, or a broken one."""


class SnapshotFormatError(SnapshotError):
    """Not of a snapshot's shape."""


class SnapshotUnsafeError(SnapshotError):
    """A pickle that wants to run code, or to build what no snapshot holds."""


class SnapshotLimitError(SnapshotError):
    """Larger, deeper or slower than the stated bounds."""


class NvmlError(IpyGpuMemError):
    """NVML is absent or refuses."""


class CuptiError(IpyGpuMemError):
    """CUPTI is absent or refuses."""


def first_line(error: BaseException) -> str:
    """What an exception says, in one line; its name where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
