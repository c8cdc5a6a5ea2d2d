"""The settings of ``%config GPUMem``, and of ``c.GPUMem`` in ipython_config.py."""

from __future__ import annotations

import os
from typing import Any

from traitlets import Bool, Enum, TraitError, TraitType
from traitlets.config import Config, Configurable

from ipygpumem.core.errors import DeviceError, OptionError, RecordingError
from ipygpumem.core.units import MIB, parse_size
from ipygpumem.features.history.log import ReportLog
from ipygpumem.features.oom.history import oom_path
from ipygpumem.measurement.runtime import current

__all__ = ["Devices", "LogPath", "Settings", "Size", "SnapshotPath", "without_faults"]


class Size(TraitType[int, Any]):
    """A number of bytes, also written as text: ``"4 MiB"``."""

    info_text = "a size, such as '4 MiB' or a number of bytes"

    def validate(self, obj: Any, value: Any) -> int:  # noqa: ARG002 (traitlets' signature)
        """Return the size in bytes.

        Raises:
            TraitError: The value is not a size, or is negative.
        """
        try:
            count = parse_size(value)
        except OptionError as error:
            raise TraitError(str(error)) from error
        if count < 0:
            raise TraitError(f"a size must not be negative: {value!r}")
        return count

    def from_string(self, s: str) -> int | None:
        """Validate a value from the command line."""
        return None if self.allow_none and s == "None" else self.validate(None, s)


class Devices(TraitType[Any, Any]):
    """Devices by name, also written as ``"0,1"`` or ``0``; None for all."""

    default_value = None
    info_text = "devices, such as ['cuda:0'] or '0,1', or None for all"

    def validate(self, obj: Any, value: Any) -> tuple[str, ...] | None:  # noqa: ARG002 (traitlets' signature)
        """Return the names of the devices.

        Raises:
            TraitError: The value is not a device, or this process has no such device.
        """
        if value is None:
            return None
        names = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        if not names:
            raise TraitError("devices must not be empty: None monitors all devices")
        try:
            return current().monitor.parse_devices(str(name) for name in names)
        except DeviceError as error:
            raise TraitError(str(error)) from error

    def from_string(self, s: str) -> Any:
        """Validate a value from the command line."""
        return self.validate(None, None if s == "None" else s)


class SnapshotPath(TraitType[Any, Any]):
    """The file for snapshots of out-of-memory errors; None for no snapshots."""

    default_value = None
    info_text = "a file name, such as 'oom_{n}.pickle', or None"

    def validate(self, obj: Any, value: Any) -> str | None:  # noqa: ARG002 (traitlets' signature)
        """Check that the file can be written.

        Raises:
            TraitError: A name in braces is unknown, or the file cannot be written.
        """
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise TraitError(f"{value!r} is not a file name: use one such as 'oom_{{n}}.pickle', or None")
        try:
            oom_path(value, 1)
        except (OptionError, RecordingError) as error:
            raise TraitError(f"{value!r}: {error}") from error
        return value

    def from_string(self, s: str) -> Any:
        """Validate a value from the command line."""
        return self.validate(None, None if s == "None" else s)


class LogPath(TraitType[Any, Any]):
    """A file to which reports are appended; None for no file."""

    default_value = None
    info_text = "a path, such as 'session.jsonl', or None"

    def validate(self, obj: Any, value: Any) -> str | None:  # noqa: ARG002 (traitlets' signature)
        """Return the absolute path.

        Raises:
            TraitError: The file cannot be written, or contains something else.
        """
        if value is None:
            return None
        if not isinstance(value, (str, os.PathLike)):
            raise TraitError(f"log must be a path or None, not {value!r}")
        try:
            return str(ReportLog(value).path)
        except OptionError as error:
            raise TraitError(f"{os.fsdecode(value)!r}: {error}") from error

    def from_string(self, s: str) -> str | None:
        """Validate a value from the command line."""
        return self.validate(None, None if s == "None" else s)


class Settings(Configurable):
    """The settings, as traits."""

    preload = Enum(
        ["kernels", "context", "off"],
        default_value="kernels",
        help="What %load_ext starts on the current device, so that no cell is charged with it: the CUDA context and "
        "the first kernels, the context alone, or nothing (CUDA is not started before a cell starts it).",
    ).tag(config=True)
    report = Enum(
        ["changed", "always", "off"],
        default_value="changed",
        help="Report after cells that changed memory, after every cell, or only for cells with %%gpumem.",
    ).tag(config=True)
    min_change = Size(MIB, help="The smallest change that is reported, in bytes or as text ('4 MiB').").tag(config=True)
    style = Enum(
        ["auto", "line", "table"],
        default_value="auto",
        help="The form of reports. auto: a line after each cell, and what was requested below %%gpumem. line, table: "
        "always this form.",
    ).tag(config=True)
    devices = Devices(
        allow_none=True,
        help="The devices to monitor, such as ['cuda:0'] or '0,1'; None for all that this process uses.",
    ).tag(config=True)
    outside = Enum(
        ["off", "library"],
        default_value="off",
        help="library: report memory outside PyTorch by library after every cell, as %%gpumem --outside does for one. "
        "Needs ipygpumem[outside]; CUPTI then records allocations all the time, except while torch.profiler runs.",
    ).tag(config=True)
    live = Enum(
        ["auto", "off"],
        default_value="auto",
        help="auto: show the memory breakdown below a cell that runs longer than 2 s in a notebook, until its report "
        "replaces it. off: show nothing before the report.",
    ).tag(config=True)
    peaks = Enum(
        ["exact", "untouched"],
        default_value="exact",
        help="exact: reset PyTorch's peak counters for each cell; the values that your code reads do not change. "
        "untouched: never reset them; a cell's peak is then exact if it is a new maximum, else an upper bound.",
    ).tag(config=True)
    host_peak = Enum(
        ["bound", "reset"],
        default_value="bound",
        help="bound: the host's peak is exact if the kernel's record of it rose, else an upper bound. reset: reset "
        "that record for each cell (Linux), which lowers what resource.getrusage returns.",
    ).tag(config=True)
    limit = Size(
        None,
        allow_none=True,
        help="The highest peak allowed on any GPU, in bytes or as text ('2 GiB'): a cell above it ends with "
        "GPUMemLimitExceeded. None: no limit. %%gpumem --limit sets one for its cell.",
    ).tag(config=True)
    log = LogPath(
        allow_none=True,
        help="A file to which each report is appended as a line of JSON, with the first line of the cell's code; "
        "ipygpumem.load_reports reads it. None: no file.",
    ).tag(config=True)
    synchronize = Bool(default_value=False, help="Wait for the current stream of each device before each reading.").tag(
        config=True
    )
    oom_snapshot = SnapshotPath(
        allow_none=True,
        help="Record PyTorch's allocation history all the time, with a maximum number of events, and write it to this "
        "file when an allocation fails, as in 'oom_{n}.pickle' ({n} is a counter; {host} and {time} are replaced). "
        "None: record nothing.",
    ).tag(config=True)


def without_faults(config: Config, section: str) -> tuple[Config, list[str]]:
    """A user's configuration without the invalid values of one section, and a message for each of these."""
    faults: list[str] = []
    values = config.get(section)
    if not values:  # asking a Config for a missing section with [] would create it
        return config, faults
    valid = Config(config)
    valid[section] = Config(values)
    for name, value in values.items():
        if name not in Settings.class_traits(config=True):
            continue  # traitlets reports unknown names itself
        try:
            Settings(config=Config({"Settings": {name: value}}))
        except TraitError as error:
            faults.append(f"c.{section}.{name} = {value!r} is ignored: {str(error).splitlines()[0]}")
            del valid[section][name]
    return valid, faults
