"""The settings of ``%config GPUMem``, and of ``c.GPUMem`` in ipython_config.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Enum, TraitError, TraitType
from traitlets.config import Config, Configurable

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.units import MIB, parse_size
from ipygpumem.features.history.log import ReportLog
from ipygpumem.features.oom.history import oom_path
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable


class _ConvertingTrait(TraitType[Any, Any]):
    """A setting whose values ``convert`` checks and converts; None stays None if it is allowed."""

    def __init__(self, convert: Callable[[Any], Any], info: str, default: Any = None, **options: Any) -> None:
        options.setdefault("allow_none", True)
        super().__init__(default, **options)
        self.convert, self.info_text = convert, info

    def validate(self, obj: Any, value: Any) -> Any:  # noqa: ARG002 (traitlets' signature)
        """Return the converted value, or raise TraitError."""
        try:
            return self.convert(value)
        except (OptionError, RecordingError) as error:
            raise TraitError(str(error)) from error

    def from_string(self, s: str) -> Any:
        """Convert a value from the command line."""
        return None if self.allow_none and s == "None" else self.validate(None, s)


def _size(value: Any) -> int:
    count = parse_size(value)
    if count < 0:
        raise OptionError(f"a size must not be negative: {value!r}")
    return count


def _devices(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    if not names:
        raise OptionError("devices must not be empty: None monitors all devices")
    return current().monitor.parse_devices(str(name) for name in names)


def _snapshot_path(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"{value!r} is not a file name: use one such as 'oom_{{n}}.pickle', or None")
    try:
        oom_path(value, 1)
    except (OptionError, RecordingError) as error:
        raise OptionError(f"{value!r}: {error}") from error
    return value


def _log_path(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(f"log must be a path or None, not {value!r}")
    try:
        return str(ReportLog(value).path)
    except OptionError as error:
        raise OptionError(f"{os.fsdecode(value)!r}: {error}") from error


_SIZE = "a size, such as '4 MiB' or a number of bytes"


class Settings(Configurable):
    """The settings, as traits."""

    preload = Enum(
        ["kernels", "context", "off"],
        "kernels",
        help="What %load_ext starts on the current device, so that no cell is charged with it: the CUDA context and "
        "the first kernels, the context alone, or nothing (CUDA is not started before a cell starts it).",
    ).tag(config=True)
    report = Enum(
        ["changed", "always", "off"],
        "changed",
        help="Report after cells that changed memory, after every cell, or only for cells with %%gpumem.",
    ).tag(config=True)
    min_change = _ConvertingTrait(
        _size,
        _SIZE,
        MIB,
        allow_none=False,
        help="The smallest change that is reported, in bytes or as text ('4 MiB').",
    ).tag(config=True)
    style = Enum(
        ["auto", "line", "table"],
        "auto",
        help="The form of reports. auto: a line after each cell, and what was requested below %%gpumem. line, table: "
        "always this form.",
    ).tag(config=True)
    devices = _ConvertingTrait(
        _devices,
        "devices, such as ['cuda:0'] or '0,1', or None for all",
        help="The devices to monitor, such as ['cuda:0'] or '0,1'; None for all that this process uses.",
    ).tag(config=True)
    outside = Enum(
        ["off", "library"],
        "off",
        help="library: report memory outside PyTorch by library after every cell, as %%gpumem --outside does for one. "
        "Needs ipygpumem[outside]; CUPTI then records allocations all the time, except while torch.profiler runs.",
    ).tag(config=True)
    live = Enum(
        ["auto", "off"],
        "auto",
        help="auto: show the memory breakdown below a cell that runs longer than 2 s in a notebook, until its report "
        "replaces it. off: show nothing before the report.",
    ).tag(config=True)
    peaks = Enum(
        ["exact", "untouched"],
        "exact",
        help="exact: reset PyTorch's peak counters for each cell; the values that your code reads do not change. "
        "untouched: never reset them; a cell's peak is then exact if it is a new maximum, else an upper bound.",
    ).tag(config=True)
    host_peak = Enum(
        ["bound", "reset"],
        "bound",
        help="bound: the host's peak is exact if the kernel's record of it rose, else an upper bound. reset: reset "
        "that record for each cell (Linux), which lowers what resource.getrusage returns.",
    ).tag(config=True)
    limit = _ConvertingTrait(
        _size,
        _SIZE,
        help="The highest peak allowed on any GPU, in bytes or as text ('2 GiB'): a cell above it ends with "
        "GPUMemLimitExceeded. None: no limit. %%gpumem --limit sets one for its cell.",
    ).tag(config=True)
    log = _ConvertingTrait(
        _log_path,
        "a path, such as 'session.jsonl', or None",
        help="A file to which each report is appended as a line of JSON, with the first line of the cell's code; "
        "ipygpumem.load_reports reads it. None: no file.",
    ).tag(config=True)
    synchronize = Bool(default_value=False, help="Wait for the current stream of each device before each reading.").tag(
        config=True
    )
    oom_snapshot = _ConvertingTrait(
        _snapshot_path,
        "a file name, such as 'oom_{n}.pickle', or None",
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
