"""What ``%config GPUMem`` offers: also ``c.GPUMem.*`` in ipython_config.py."""

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
        """The bytes.

        Raises:
            TraitError: It is no size, or below zero.
        """
        try:
            count = parse_size(value)
        except OptionError as error:
            raise TraitError(str(error)) from error
        if count < 0:
            raise TraitError(f"a size is not below zero: {value!r}")
        return count

    def from_string(self, s: str) -> int | None:
        """From the command line."""
        return None if self.allow_none and s == "None" else self.validate(None, s)


class Devices(TraitType[Any, Any]):
    """Devices by name, also written as ``"0,1"`` or ``0``; None for all."""

    default_value = None
    info_text = "devices, such as ['cuda:0'] or '0,1', or None for all"

    def validate(self, obj: Any, value: Any) -> tuple[str, ...] | None:  # noqa: ARG002 (traitlets' signature)
        """The names.

        Raises:
            TraitError: A word that is no device, or a device that is not there.
        """
        if value is None:
            return None
        words = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        if not words:
            raise TraitError("devices names none: write None to watch all")
        try:
            return current().monitor.parse_devices(str(word) for word in words)
        except DeviceError as error:
            raise TraitError(str(error)) from error

    def from_string(self, s: str) -> Any:
        """From the command line."""
        return self.validate(None, None if s == "None" else s)


class SnapshotPath(TraitType[Any, Any]):
    """Where out-of-memory errors leave their snapshot; None for nowhere."""

    default_value = None
    info_text = "a file's name, such as 'oom_{n}.pickle', or None"

    def validate(self, obj: Any, value: Any) -> str | None:  # noqa: ARG002 (traitlets' signature)
        """The name, proved to be writable.

        Raises:
            TraitError: A name that does not expand, or a place where nothing can be written.
        """
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise TraitError(f"{value!r} is no file's name: write one such as 'oom_{{n}}.pickle', or None")
        try:
            oom_path(value, 1)
        except (OptionError, RecordingError) as error:
            raise TraitError(f"{value!r}: {error}") from error
        return value

    def from_string(self, s: str) -> Any:
        """From the command line."""
        return self.validate(None, None if s == "None" else s)


class LogPath(TraitType[Any, Any]):
    """A file to which reports are added, proved when it is set; None for none."""

    default_value = None
    info_text = "a path, such as 'session.jsonl', or None"

    def validate(self, obj: Any, value: Any) -> str | None:  # noqa: ARG002 (traitlets' signature)
        """The path made absolute.

        Raises:
            TraitError: Nothing can be written there, or the file holds something else.
        """
        if value is None:
            return None
        if not isinstance(value, (str, os.PathLike)):
            raise TraitError(f"log is a path, or None, not {value!r}")
        try:
            return str(ReportLog(value).path)
        except OptionError as error:
            raise TraitError(f"{os.fsdecode(value)!r}: {error}") from error

    def from_string(self, s: str) -> str | None:
        """From the command line."""
        return self.validate(None, None if s == "None" else s)


class Settings(Configurable):
    """The traits, apart from the magics that carry them."""

    preload = Enum(
        ["kernels", "context", "off"],
        default_value="kernels",
        help="What %load_ext runs on the current device, so that no cell is blamed for it: the CUDA context and the "
        "first kernels, the context alone, or nothing at all (CUDA stays untouched until a cell starts it).",
    ).tag(config=True)
    report = Enum(
        ["changed", "always", "off"],
        default_value="changed",
        help="Report after cells that moved memory, after every cell, or only where %%gpumem asks.",
    ).tag(config=True)
    min_change = Size(MIB, help="The least change that counts as moved memory, in bytes or as text ('4 MiB').").tag(
        config=True
    )
    style = Enum(
        ["auto", "line", "table"],
        default_value="auto",
        help="The form of reports: auto is a line after each cell and the full table under %%gpumem.",
    ).tag(config=True)
    devices = Devices(
        allow_none=True, help="The devices to watch, as in ['cuda:0'] or '0,1'; None for all that this process uses."
    ).tag(config=True)
    outside = Enum(
        ["off", "library"],
        default_value="off",
        help="library: memory outside PyTorch is told by library after every cell, as %%gpumem --outside does for one. "
        "Needs ipygpumem[outside]; CUPTI then records allocations all the time, and steps aside for torch.profiler.",
    ).tag(config=True)
    live = Enum(
        ["auto", "off"],
        default_value="auto",
        help="auto: under a cell that runs longer than 2 s, where somebody watches a notebook, the books of now, which "
        "its report takes the place of. off: nothing before the report.",
    ).tag(config=True)
    peaks = Enum(
        ["exact", "untouched"],
        default_value="exact",
        help="exact: PyTorch's peak counters are reset for each cell, and what you read of them stays what it would "
        "be. untouched: no counter is ever reset; a cell's peak is exact when it set a record, else a bound.",
    ).tag(config=True)
    host_peak = Enum(
        ["bound", "reset"],
        default_value="bound",
        help="bound: the host's peak is exact when the kernel's high-water mark rose. reset: the mark is reset for "
        "each cell (Linux), which lowers what resource.getrusage shows.",
    ).tag(config=True)
    limit = Size(
        None,
        allow_none=True,
        help="The highest peak that a cell may have on any GPU, in bytes or as text ('2 GiB'): a cell over it ends "
        "with GPUMemLimitExceeded. None is no limit; %%gpumem --limit sets one for its cell.",
    ).tag(config=True)
    log = LogPath(
        allow_none=True,
        help="A file that gets each report as it settles, one line of JSON each, with the first line of the cell's "
        "code; ipygpumem.load_reports reads it. What is there stays, and is added to. None for none.",
    ).tag(config=True)
    synchronize = Bool(default_value=False, help="Wait for the current stream of each device before each reading.").tag(
        config=True
    )
    oom_snapshot = SnapshotPath(
        allow_none=True,
        help="Keep PyTorch's allocation history running, bounded, and write it to this file when an allocation fails, "
        "as in 'oom_{n}.pickle' ({n} counts, {host} and {time} expand); None keeps none.",
    ).tag(config=True)


def without_faults(config: Config, section: str) -> tuple[Config, list[str]]:
    """A user's configuration without the values that one section cannot take, and one line for each of these."""
    faults: list[str] = []
    given = config.get(section)
    if not given:  # to ask a Config for a section that is not there would make it
        return config, faults
    sound = Config(config)
    sound[section] = Config(given)
    for name, value in given.items():
        if name not in Settings.class_traits(config=True):
            continue  # traitlets has its own words for these
        try:
            Settings(config=Config({"Settings": {name: value}}))
        except TraitError as error:
            faults.append(f"c.{section}.{name} = {value!r} is passed over: {str(error).splitlines()[0]}")
            del sound[section][name]
    return sound, faults
