"""Exceptions of this package, and checks of arguments. Magics show the exceptions as one line."""

import reprlib
from collections.abc import Iterable
from typing import Any

from ipygpumem.core.text import error_line

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
    "UnsafeSnapshotError",
    "check_argument",
    "check_choice",
    "first_line",
]


class IpyGpuMemError(Exception):
    """Base class of the public exceptions that this package defines."""

    def __str__(self) -> str:
        return error_line(super().__str__())  # paths and names may contain line breaks


class OptionError(IpyGpuMemError, ValueError):
    """Raised if an option or argument is invalid, a file cannot be written, or an optional library is missing."""


class DeviceError(OptionError):
    """Raised if a device name is invalid or a device does not exist."""


class GPUMemLimitExceeded(IpyGpuMemError):  # noqa: N818 (part of the public API)
    """Raised if a cell or block exceeds a memory limit.

    Attributes:
        excesses: Exceeded limits, as `ipygpumem.features.limits.model.ExceededLimit` objects.
    """

    def __init__(self, message: str, excesses: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.excesses = excesses


class RecordingError(IpyGpuMemError):
    """Raised if memory usage cannot be measured or recorded, or if a recording cannot be saved."""


class ReportError(IpyGpuMemError):
    """Raised if reports cannot be read from a file or dict. The message contains the reason and any known position."""


class SnapshotError(IpyGpuMemError):
    """Raised if a file cannot be read as a snapshot. The message contains the reason and, if known, the position."""


class SnapshotFormatError(SnapshotError):
    """Raised if a file is not in the snapshot format."""


class UnsafeSnapshotError(SnapshotError):
    """Raised if loading a pickle would run code or create objects that snapshots never contain."""


class SnapshotLimitError(SnapshotError):
    """Raised if a file exceeds a limit, for example on its size, or there is not enough memory to read it."""


class NvmlError(IpyGpuMemError):
    """Raised if NVML is not available or a query fails. Readings are then made without the values from NVML."""


class CuptiError(IpyGpuMemError):
    """Raised if CUPTI is not available or a call fails. Memory outside PyTorch is then not attributed to libraries."""


def check_argument(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raise `OptionError` with the name of the argument if a value is a bool, or is not an instance of ``kinds``."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise OptionError(f"{name} must be {expected}, but got {reprlib.repr(value)}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise `OptionError` with the name of the argument if a value is not one of the strings in ``choices``."""
    if not isinstance(value, str) or value not in choices:
        *first, last = map(repr, choices)
        raise OptionError(f"{name} must be {', '.join(first)} or {last}, but got {reprlib.repr(value)}")


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of the exception's class if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
