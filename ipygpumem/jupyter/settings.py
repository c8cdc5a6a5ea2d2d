"""Settings of the extension, which users change with ``%config GPUMem`` or with ``c.GPUMem`` in ipython_config.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from traitlets import All, Bool, Enum, TraitError, TraitType, observe
from traitlets.config import Config, Configurable

from ipygpumem.core.device_names import split_devices
from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.units import MIB, parse_size
from ipygpumem.features.oom.observer import oom_path
from ipygpumem.measurement.runtime import current


class _ConvertingTrait(TraitType[Any, Any]):
    """Trait that validates and converts its values with a function. None, if allowed, is not converted."""

    def __init__(self, convert: Callable[[Any], Any], info: str, default: Any = None, **options: Any) -> None:
        options.setdefault("allow_none", True)
        super().__init__(default, **options)
        self.convert, self.info_text = convert, info

    def validate(self, obj: Any, value: Any) -> Any:  # noqa: ARG002 (traitlets' signature)
        try:
            return self.convert(value)
        except (OptionError, RecordingError) as error:
            raise TraitError(str(error)) from error


def _devices(value: Any) -> tuple[str, ...]:
    return current().monitor.parse_devices(split_devices(value, "devices"))


def _snapshot_path(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"{value!r} is not a file name: use a name such as 'oom_{{n}}.pickle', or None")
    try:
        oom_path(value, 1)
    except (OptionError, RecordingError) as error:
        raise OptionError(f"{value!r}: {error}") from error
    return value


def _log_path(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(f"log must be a path or None, but got {value!r}")
    from ipygpumem.features.history.load import ReportLog  # on first use, to save memory

    try:
        return str(ReportLog(value).path)
    except OptionError as error:
        raise OptionError(f"{os.fsdecode(value)!r}: {error}") from error


_SIZE = "a size such as '4 MiB', or a number of bytes"


class Settings(Configurable):
    """Configurable settings of the extension. ``%config GPUMem`` lists them."""

    preload = Enum(
        ["kernels", "context", "off"],
        "kernels",
        help="What %load_ext preloads on the current device, so that its memory is not attributed to a cell. kernels: "
        "the CUDA context and kernels of common operations. context: only the CUDA context. off: nothing.",
    ).tag(config=True)
    report = Enum(
        ["changed", "always", "off"],
        "changed",
        help="changed: show a report below each cell that changes memory usage. always: show a report below every "
        "cell. off: show only reports requested with %gpumem or %%gpumem.",
    ).tag(config=True)
    min_change = _ConvertingTrait(
        parse_size,
        _SIZE,
        MIB,
        allow_none=False,
        help="The smallest change in memory usage that is reported, such as '4 MiB' or a number of bytes.",
    ).tag(config=True)
    style = Enum(
        ["auto", "line", "table"],
        "auto",
        help="The form of reports. auto: one line below a cell, but tables below a cell with %%gpumem. line: one line "
        "below every cell, and the tables requested by %%gpumem options. table: the full breakdown below every cell.",
    ).tag(config=True)
    devices = _ConvertingTrait(
        _devices,
        "devices, such as ['cuda:0'] or '0,1', or None for all",
        help="The devices to monitor, such as ['cuda:0'] or '0,1'; None for all devices used by this process.",
    ).tag(config=True)
    outside = Enum(
        ["off", "library"],
        "off",
        help="library: report memory outside PyTorch by library after every cell, as %%gpumem --outside does for one "
        "cell. Requires ipygpumem[outside]. CUPTI then records allocations continuously, except while torch.profiler "
        "runs. off: report it only for %%gpumem --outside.",
    ).tag(config=True)
    live = Enum(
        ["auto", "off"],
        "auto",
        help="auto: show the memory breakdown below a notebook cell that runs longer than 2 s, until the report "
        "replaces it. off: show nothing before the report.",
    ).tag(config=True)
    peaks = Enum(
        ["exact", "untouched"],
        "exact",
        help="exact: reset PyTorch's peak counters for each cell; the peaks that your code reads do not change. "
        "untouched: never reset the counters; the peak of a cell is then exact only if it is a new maximum, otherwise "
        "an upper bound.",
    ).tag(config=True)
    host_peak = Enum(
        ["bound", "reset"],
        "bound",
        help="bound: the peak host memory is exact only if the operating system's peak counter increased, otherwise "
        "an upper bound. reset: reset the counter for each cell (Linux only), which also lowers ru_maxrss.",
    ).tag(config=True)
    limit = _ConvertingTrait(
        parse_size,
        _SIZE,
        help="The highest peak allowed on any GPU, relative to the start of the cell, such as '2 GiB' or a number of "
        "bytes. Cells that exceed it fail with GPUMemLimitExceeded. None: no limit. %%gpumem --limit sets the limit "
        "for a single cell.",
    ).tag(config=True)
    log = _ConvertingTrait(
        _log_path,
        "a path, such as 'session.jsonl', or None",
        help="A file to which each report is appended as a line of JSON, with the first line of the cell's code. "
        "Read the file with ipygpumem.load_reports. None: no file.",
    ).tag(config=True)
    synchronize = Bool(default_value=False, help="Wait for the current stream of each device before each reading.").tag(
        config=True
    )
    oom_snapshot = _ConvertingTrait(
        _snapshot_path,
        "a file name, such as 'oom_{n}.pickle', or None",
        help="A file to which the most recent events of PyTorch's allocation history are written when an allocation "
        "fails. A limited number of events is recorded continuously. In the name, {n} expands to a counter, {host} to "
        "the host name and {time} to the current time, as in 'oom_{n}.pickle'. None: record nothing.",
    ).tag(config=True)
    values = SimpleNamespace()  # the values of all settings, which take less time to read than the traits

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._update_values(None)

    @observe(All)
    def _update_values(self, _: Any) -> None:
        self.values = SimpleNamespace(**self.trait_values(config=True))


def without_invalid_values(config: Config, section: str) -> tuple[Config, list[str]]:
    """Remove invalid values from a section of a configuration. Return a tuple of the result and the error messages."""
    faults: list[str] = []
    values = config.get(section)
    if not values:  # Config.__getitem__ would create a missing section
        return config, faults
    valid = Config(config)
    valid[section] = Config(values)
    for name, value in values.items():
        if name not in Settings.class_traits(config=True):
            continue  # traitlets reports unknown names
        try:
            Settings(config=Config({"Settings": {name: value}}))
        except TraitError as error:
            faults.append(f"c.{section}.{name} = {value!r} is ignored: {str(error).splitlines()[0]}")
            del valid[section][name]
    return valid, faults
