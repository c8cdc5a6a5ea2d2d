"""The exceptions of this package. Each message is one line, which notebooks show as a ``UsageError``."""

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
    """Base class of all exceptions of this package."""


class OptionError(IpyGpuMemError, ValueError):
    """An invalid option, argument or size."""


class DeviceError(OptionError):
    """A device that does not exist."""


class GPUMemLimitExceeded(IpyGpuMemError):  # noqa: N818 (part of the public API)
    """A cell or block exceeded a memory limit.

    Attributes:
        excesses: The exceeded limits: `ipygpumem.features.limits.model.ExceededLimit`.
    """

    def __init__(self, message: str, excesses: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.excesses = excesses


class RecordingError(IpyGpuMemError):
    """Allocation history cannot be recorded or saved."""


class ReportError(IpyGpuMemError):
    """A file cannot be read as reports; the message names the line."""


class SnapshotError(IpyGpuMemError):
    """A file cannot be read as a snapshot; the message says why, and where."""


class SnapshotFormatError(SnapshotError):
    """A file does not have the format of a snapshot."""


class SnapshotUnsafeError(SnapshotError):
    """A pickle would run code or create objects that no snapshot contains."""


class SnapshotLimitError(SnapshotError):
    """A file exceeds the limits on size, nesting or time."""


class NvmlError(IpyGpuMemError):
    """NVML is not available, or a query failed. Readings continue without it."""


class CuptiError(IpyGpuMemError):
    """CUPTI is not available, or a call failed. Memory outside PyTorch is not split by library."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class name if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
